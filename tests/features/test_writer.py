"""However a writing is cut into processes and ranks, the result is that of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hookscope as hs
from hookscope._core._site import Site
from hookscope._features import _npy_store, _shard_store
from hookscope._features._batch import Batch
from hookscope._features._manifest import Plan
from hookscope._features._parts import rank_folder
from hookscope._features._writer import FeatureWriter

from ._given import PLAN, files, piece

STORAGES = ("npy", "safetensors", "parquet")
SEQUENCE = Site(1, "seq", "output")


@st.composite
def batches(draw: st.DrawFn) -> list[Batch]:
    """Batches of any sizes with a fixed site and one of sequences, some of which come padded to one length and some do not."""
    found, start = [], 0
    for number, size in enumerate(draw(st.lists(st.integers(1, 3), min_size=1, max_size=7))):
        length = draw(st.integers(1, 2))
        fixed = np.arange(size * 2, dtype=np.float32).reshape(size, 2) + number
        names = [f"{start + i}" for i in range(size)]
        found.append(Batch((piece(fixed), piece(np.full((size, length, 3), number), site=SEQUENCE)), names, f"mark {number}"))
        start += size
    return found


@settings(max_examples=40)
@given(batches(), st.sampled_from(STORAGES), st.lists(st.integers(0, 6), max_size=4), st.integers(0, 2**7 - 1), st.booleans())
def test_written_in_any_pieces_the_files_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, given_: list[Batch], storage: str, stops: list[int], commits: int, tidy: bool
) -> None:
    """`stops` are the batches at which a process ends, tidily or as by a kill; `commits` says behind which batches one is made."""
    to = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_shard_store, "SHARD_BYTES", 60)
        for folder, ends in (("whole", []), ("pieces", stops)):
            for end in [*ends, len(given_)]:
                writer = FeatureWriter(to / folder, Plan(PLAN.what, storage))
                for number in range(writer.batches, min(end, len(given_))):
                    patch.setattr(_npy_store.NpyStore, "full", lambda *_, n=number: commits >> n & 1)
                    writer.write(given_[number])
                if end == len(given_) and not writer.complete:
                    writer.finish()
                if tidy or end == len(given_):
                    writer.close()
                else:
                    writer._release()  # what is not committed is lost, as by a kill
    assert files(to / "whole") == files(to / "pieces")
    assert hs.Features(to / "whole").samples == sum(len(batch.ids) for batch in given_)


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=3), st.sampled_from(STORAGES))
def test_ranks_with_any_samples_are_one_view_in_order_each_sample_once(
    tmp_path_factory: pytest.TempPathFactory, held: list[list[int]], storage: str
) -> None:
    to = tmp_path_factory.mktemp("ranks")
    for rank, numbers in enumerate(held):
        plan = Plan(PLAN.what, storage, rank, len(held))
        with FeatureWriter(to / rank_folder(rank, len(held)), plan) as writer:
            for start in range(0, len(numbers), 2):
                some = np.array(numbers[start : start + 2])
                values = np.stack([some, some * 10], 1)
                writer.write(Batch((piece(values),), [f"n{i}" for i in some], f"mark {start}", some))
            writer.finish()
    features = hs.Features(to)
    right: list[Any] = sorted({number for numbers in held for number in numbers}) if len(held) > 1 else held[0]
    assert features["fc"].numpy().tolist() == [[i, 10 * i] for i in right]
    assert features.ids.tolist() == [f"n{i}" for i in right]
    assert [float(features["fc"][i][0]) for i in range(len(right))] == right


def test_a_batch_that_fails_in_its_second_site_leaves_nothing_of_its_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Batch((piece(np.ones((2, 2))), piece(np.ones((2, 1, 3)), site=SEQUENCE)), np.arange(2), "a")
    append = _npy_store.NpyColumn.append

    def fails(self: Any, given_: Any) -> None:
        append(self, given_)
        if given_.site is SEQUENCE and self.extent.samples == 4:
            raise OSError(28, "No space left on device")

    with FeatureWriter(tmp_path, PLAN) as writer:
        writer.write(one)
        with monkeypatch.context() as patch:
            patch.setattr(_npy_store.NpyColumn, "append", fails)
            with pytest.raises(hs.FeaturesError, match=r"cannot write features to .*: No space left on device"):
                writer.write(one)
        writer.write(Batch(one.pieces, np.array([7, 8]), "b"))
        writer.finish()
    features = hs.Features(tmp_path)
    assert (features["fc"].shape, features["seq"].shape, features.ids.tolist()) == ((4, 2), (4, 1, 3), [0, 1, 7, 8])


def test_an_interrupt_behind_the_last_file_and_before_the_count_commits_nothing_of_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Batch((piece(np.ones((2, 2))),), np.arange(2), "a")
    append = FeatureWriter._append

    def interrupted(self: FeatureWriter, given_: Batch) -> None:
        append(self, given_)
        raise KeyboardInterrupt

    with FeatureWriter(tmp_path, PLAN) as writer:
        writer.write(one)
        writer._commit()
        monkeypatch.setattr(FeatureWriter, "_append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.write(one)
    assert len((tmp_path / "commits.jsonl").read_text().splitlines()) == 1
    assert hs.Features(tmp_path, partial=True).samples == 2
