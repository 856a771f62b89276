"""Shards that are written while they grow hold what was given, whenever it turns out that samples differ in length."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hookscope as hs
from hookscope._features import _open_parquet, _open_shard
from hookscope._features._manifest import Plan
from hookscope._features._writer import FeatureWriter

from ._given import PLAN, batch, files, piece

STORAGES = ("safetensors", "parquet")


def sequences(sizes: list[tuple[int, int, bool]]) -> list[tuple[np.ndarray, list[int] | None]]:
    """Batches of (samples, length, whether lengths are told) with values that never repeat."""
    made, start = [], 0.0
    for samples, length, told in sizes:
        values = start + np.arange(samples * length * 2, dtype=np.float32).reshape(samples, length, 2)
        made.append((values.reshape(-1, 2), [length] * samples) if told else (values, None))
        start += values.size
    return made


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.booleans()), min_size=1, max_size=8),
    group=st.sampled_from([1, 60, 1 << 20]),
    texts=st.booleans(),
    storage=st.sampled_from(STORAGES),
)
def test_any_batches_come_back(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int, bool]], group: int, texts: bool, storage: str
) -> None:
    to, given_, start = tmp_path_factory.mktemp("any"), sequences(sizes), 0
    if given_[0][1] is not None:  # the first batch says whether all come with their lengths
        given_ = [(values.reshape(-1, 2), lengths or [values.shape[1]] * len(values)) for values, lengths in given_]
    with pytest.MonkeyPatch.context() as patch, FeatureWriter(to, Plan(PLAN.what, storage)) as writer:
        patch.setattr(_open_parquet, "GROUP_BYTES", group)
        for values, lengths in given_:
            one = piece(values, lengths=lengths)
            writer.write(batch(start, one, ids=[f"s{start + i}" for i in range(one.samples)] if texts else None))
            start += one.samples
        writer.finish()
    features = hs.Features(to)
    wanted = [sample for values, lengths in given_ for sample in (values if lengths is None else np.split(values, np.cumsum(lengths)[:-1]))]
    assert len(wanted) == features.samples == start
    for i, sample in enumerate(wanted):
        np.testing.assert_array_equal(features["fc"][i], sample)
    if storage == "parquet":
        ids = pq.read_table(to / "fc" / "000000.parquet")["id"].to_pylist()
        assert ids == ([f"s{i}" for i in range(start)] if texts else list(range(start)))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hookscope-parquet")]


@pytest.mark.parametrize("storage", STORAGES)
def test_after_a_failed_write_nothing_more_is_taken_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    """A shard that is open holds earlier batches, too: to go on as if only one were lost would lose them in silence."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    writer = FeatureWriter(tmp_path, Plan(PLAN.what, storage))
    writer.write(batch(0, piece(np.ones((2, 3)))))
    with monkeypatch.context() as patch:
        patch.setattr(_open_shard, "append_whole", full)
        patch.setattr(_open_parquet.OpenParquet, "append", full)
        with pytest.raises(hs.FeaturesError, match="No space left on device"):
            writer.write(batch(2, piece(np.ones((2, 3)))))
    with pytest.raises(hs.FeaturesError, match="a batch could not be written"):
        writer.write(batch(2, piece(np.ones((2, 3)))))
    writer.close()
    assert not [name for name in files(tmp_path) if name.startswith("fc/")]


def test_what_the_thread_could_not_write_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_open_parquet, "GROUP_BYTES", 1)
    monkeypatch.setattr(pq.ParquetWriter, "write_table", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    writer = FeatureWriter(tmp_path, Plan(PLAN.what, "parquet"))
    with pytest.raises(hs.FeaturesError, match="No space left on device"):  # noqa: PT012  # by the next batch or by the end
        writer.write(batch(0, piece(np.ones((2, 3)))))
        writer.write(batch(2, piece(np.ones((2, 3)))))
    writer.close()
    assert not list((tmp_path / "fc").iterdir())


def test_shards_hold_no_more_than_a_batch_of_values(tmp_path: Path) -> None:
    """By the arrays that are referenced after a batch was written."""
    import weakref

    writer = FeatureWriter(tmp_path, Plan(PLAN.what, "safetensors"))
    values = np.ones((2, 3), np.float32)
    gone = weakref.ref(values)
    writer.write(batch(0, piece(values)))
    del values
    assert gone() is None
    writer.close()
