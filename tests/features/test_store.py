"""Batches go in, files of the field come out: one .npy a site, safetensors or Parquet, and `Features` gives back what went in."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

import hookscope as hs
from hookscope._core._site import Site
from hookscope._features import _shard_store
from hookscope._features._batch import Piece
from hookscope._features._manifest import Plan

from ._given import PLAN, batch, files, piece, written

STORAGES = ("npy", "safetensors", "parquet")
DTYPES = ("float16", "float32", "float64", "bfloat16", "int8", "int32", "int64", "uint8", "bool", "float8_e5m2", "complex64")


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(_shard_store, "SHARD_BYTES", 64)  # so that a few samples make several shards
    return str(request.param)


def plan(storage: str) -> Plan:
    return Plan(PLAN.what, storage)


def test_a_site_is_one_plain_npy_file_that_numpy_opens_alone(tmp_path: Path) -> None:
    values = np.arange(30, dtype=np.float32).reshape(5, 3, 2)
    written(tmp_path, [batch(0, piece(values[:4])), batch(4, piece(values[4:]))])
    opened = np.load(tmp_path / "fc.npy", mmap_mode="r")
    assert (opened.dtype, opened.tolist(), opened.offset % 64) == (np.float32, values.tolist(), 0)
    assert (tmp_path / "fc.npy").stat().st_size == 256 + values.nbytes
    assert np.load(tmp_path / "ids.npy").tolist() == [0, 1, 2, 3, 4]
    assert sorted(files(tmp_path)) == ["fc.npy", "features.json", "ids.npy"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_comes_back_as_it_went_in(tmp_path: Path, storage: str, dtype: str) -> None:
    kind = getattr(torch, dtype)
    tensor = (torch.randn(7, 4, generator=torch.Generator().manual_seed(0)) * 9).to(kind)
    raw = {
        "bfloat16": lambda: tensor.view(torch.int16).numpy().view(np.uint16),
        "float8_e5m2": lambda: tensor.view(torch.uint8).numpy(),
    }.get(dtype, tensor.numpy)()
    if (storage, dtype) == ("parquet", "complex64"):
        with pytest.raises(hs.FeaturesError, match="Arrow and Parquet have no type complex64: choose storage='npy' or 'safetensors'"):
            written(tmp_path, [batch(0, piece(raw, dtype=dtype))], plan(storage))
        return
    written(tmp_path, [batch(0, piece(raw[:5], dtype=dtype)), batch(5, piece(raw[5:], dtype=dtype))], plan(storage))
    feature = hs.Features(tmp_path)["fc"]
    back = feature.torch()
    assert isinstance(back, torch.Tensor)
    assert back.dtype == kind
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))
    assert feature.stored_dtype == dtype
    shown = {"bfloat16": tensor.float, "float8_e5m2": lambda: tensor.view(torch.uint8)}.get(dtype, lambda: tensor)()
    assert torch.equal(torch.from_numpy(np.array(feature)), shown)


@st.composite
def any_batches(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """Batches of sequences of some lengths, and the sequences one by one."""
    inner = draw(st.sampled_from([(), (1,), (2, 3)]))
    given_lengths = draw(st.booleans())
    batches, samples, start = [], [], 0
    for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)):
        lengths = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)) if given_lengths else [draw(st.integers(1, 3))] * size
        own = [np.arange(n * int(np.prod(inner)), dtype=np.float32).reshape(n, *inner) + 100 * (start + i) for i, n in enumerate(lengths)]
        batches.append(batch(start, piece(np.concatenate(own), lengths=lengths) if given_lengths else piece(np.stack(own))))
        samples += own
        start += size
    return batches, samples


@given(any_batches(), st.sampled_from(STORAGES), st.data())
def test_sequences_of_any_lengths_in_any_batches_come_back_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, given_: tuple[list[Any], list[Any]], storage: str, data: st.DataObject
) -> None:
    batches, samples = given_
    to = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_shard_store, "SHARD_BYTES", 64)
        written(to, batches, plan(storage))
    feature = hs.Features(to)["fc"]
    assert len(feature) == len(samples)
    assert all(np.array_equal(got, sample) for got, sample in zip(feature, samples, strict=True))
    assert np.array_equal(feature.values.reshape(-1), np.concatenate([sample.reshape(-1) for sample in samples]))
    assert np.diff(feature.offsets).tolist() == [len(sample) for sample in samples]
    chosen = data.draw(st.lists(st.integers(-len(samples), len(samples) - 1), max_size=4))
    assert all(np.array_equal(got, samples[i]) for i, got in zip(chosen, feature[np.array(chosen, np.int64)], strict=True))
    if not feature.ragged:
        assert feature.shape == (len(samples), *samples[0].shape)
        assert np.array_equal(feature[1:], np.stack(samples)[1:])
    else:
        assert feature.shape == (len(samples), None, *samples[0].shape[1:])


def test_a_file_becomes_ragged_when_the_first_other_length_comes(tmp_path: Path) -> None:
    batches = [batch(0, piece(np.ones((2, 3, 4)))), batch(2, piece(np.full((1, 5, 4), 2.0)))]
    written(tmp_path, batches)
    assert np.load(tmp_path / "fc.npy", mmap_mode="r").shape == (11, 4)
    assert np.load(tmp_path / "fc.offsets.npy").tolist() == [0, 3, 6, 11]
    feature = hs.Features(tmp_path)["fc"]
    assert (feature[2].shape, feature.ragged, feature.nbytes) == ((5, 4), True, 11 * 16)
    with pytest.raises(hs.UsageError, match=r"the samples of fc differ in length, so they are no array: take one, feature\[i\]"):
        np.asarray(feature)
    with pytest.raises(hs.UsageError, match="differ in length: take one"):
        _ = feature[:, 0]
    assert [t.shape for t in feature.torch(slice(1, None))] == [(3, 4), (5, 4)]


def test_shards_of_one_length_each_are_ragged_together(tmp_path: Path, storage: str) -> None:
    """64 bytes are a shard here: each batch is one, and none of them is ragged by itself."""
    written(tmp_path, [batch(0, piece(np.ones((2, 3, 4)))), batch(2, piece(np.full((2, 5, 4), 2.0)))], plan(storage))
    feature = hs.Features(tmp_path)["fc"]
    assert (feature.ragged, feature.shape) == (True, (4, None, 4))
    assert [one.shape for one in feature] == [(3, 4), (3, 4), (5, 4), (5, 4)]


def test_a_feature_is_asked_like_an_array(tmp_path: Path, storage: str) -> None:
    values = np.random.default_rng(0).normal(size=(9, 4, 2)).astype(np.float32)
    written(tmp_path, [batch(i, piece(values[i : i + 2])) for i in range(0, 8, 2)] + [batch(8, piece(values[8:]))], plan(storage))
    feature = hs.Features(tmp_path)["fc"]
    for key in (
        3,
        -1,
        slice(2, 7),
        slice(None, None, -2),
        [1, 5, 5],
        np.array([True] * 3 + [False] * 6),
        (slice(2), 1),
        (4, 0, 1),
        (slice(None), ..., 0),
    ):
        assert np.array_equal(feature[key], values[key]), key
    assert np.array_equal(np.asarray(feature, np.float64), values.astype(np.float64))
    assert feature.shape == values.shape
    with pytest.raises(IndexError, match="there is no sample 9: fc has 9"):
        _ = feature[9]
    again = pickle.loads(pickle.dumps(feature))
    assert len(pickle.dumps(feature)) < 2000
    assert np.array_equal(again[3:5], values[3:5])


def test_a_tensor_may_be_written_to_and_the_file_stays(tmp_path: Path) -> None:
    written(tmp_path, [batch(0, piece(np.ones((4, 2))))])
    before = files(tmp_path)
    tensor = hs.Features(tmp_path)["fc"].torch()
    assert isinstance(tensor, torch.Tensor)
    tensor.zero_()
    assert files(tmp_path) == before
    assert hs.Features(tmp_path)["fc"].numpy().sum() == 8


def test_sites_kinds_calls_and_odd_names_have_files_of_their_own(tmp_path: Path) -> None:
    given_ = [
        piece([[1.0]], site=Site(0, "h.0", "output")),
        piece([[2.0]], site=Site(0, "h.0", "output"), call=1),
        piece([[3.0]], site=Site(1, "h.0", "input", output_path='["a/b"]')),
        piece([[4.0]], site=Site(2, "H.0", "output")),
        piece([[5.0]], site=Site(3, "", "output")),
        piece([[6.0]], site=Site(4, "ids", "output")),
        piece([[7.0]], site=Site(5, "h.0", "output_grad", label="inner")),
    ]
    written(tmp_path, [batch(0, *given_)])
    assert sorted(files(tmp_path)) == sorted(
        [
            "(root).npy",
            "H.0.npy",
            "features.json",
            "h.0.input[_a_b_].npy",
            "h.0.output_grad.inner.npy",
            "h.0@0.npy",
            "h.0@1.npy",
            "ids.npy",
            "ids~2.npy",
        ]
    )
    features = hs.Features(tmp_path)
    assert list(features) == ["h.0@0", "h.0@1", 'h.0:input["a/b"]', "H.0", "(root)", "ids", "h.0:output_grad/inner"]
    assert [float(features[key][0, 0]) for key in features] == [1, 2, 3, 4, 5, 6, 7]
    assert (features["h.0@1"], features["h.0", 1], features["(root):output"][0, 0]) == (features["h.0@1"], features["h.0@1"], 5)
    with pytest.raises(hs.SelectionError, match=r"h\.0:output is there 2 times: write 'h\.0@0', 'h\.0@1'"):
        _ = features["h.0"]
    with pytest.raises(hs.SelectionError, match="is there 2 times, not for call 5"):
        _ = features["h.0", 5]
    with pytest.raises(hs.SelectionError, match="did you mean 'ids'"):
        _ = features["idz"]
    assert ("idz" in features, "ids" in features, 3 in features) == (False, True, False)


def test_names_that_differ_in_case_alone_do_not_share_a_file(tmp_path: Path) -> None:
    written(tmp_path, [batch(0, piece([[1.0]], site=Site(0, "a", "output")), piece([[2.0]], site=Site(1, "A", "output")))])
    names = [name for name in files(tmp_path) if name.endswith(".npy")]
    assert len({name.casefold() for name in names}) == 3
    assert [float(value[0, 0]) for value in hs.Features(tmp_path).values()] == [1, 2]


def test_ids_are_whole_numbers_or_text(tmp_path: Path, storage: str) -> None:
    names = ["ä.png", 'b"\n.png', ""]
    written(tmp_path / "text", [batch(0, piece([[1.0]] * 2), ids=names[:2]), batch(2, piece([[1.0]]), ids=names[2:])], plan(storage))
    assert hs.Features(tmp_path / "text").ids.tolist() == names
    written(tmp_path / "number", [batch(0, piece([[1.0]] * 2), ids=np.array([7, 3]))], plan(storage))
    assert hs.Features(tmp_path / "number").ids.tolist() == [7, 3]


def test_safetensors_shards_are_read_by_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shard_store, "SHARD_BYTES", 64)
    tensor = torch.randn(8, 3, 5).bfloat16()
    raw = tensor.view(torch.int16).numpy().view(np.uint16)
    written(tmp_path, [batch(i, piece(raw[i : i + 2], dtype="bfloat16")) for i in range(0, 8, 2)], plan("safetensors"))
    shards = [safetensors.torch.load_file(path)["values"] for path in sorted((tmp_path / "fc").iterdir())]
    assert len(shards) > 1
    assert torch.equal(torch.cat(shards), tensor)


def test_parquet_shards_are_read_by_duckdb_with_their_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shard_store, "SHARD_BYTES", 64)
    values = np.arange(24, dtype=np.float32).reshape(8, 3)
    written(tmp_path, [batch(i, piece(values[i : i + 2]), ids=[f"s{i}", f"s{i + 1}"]) for i in range(0, 8, 2)], plan("parquet"))
    found = duckdb.sql(f"select id, values from '{tmp_path}/fc/*.parquet' order by id").fetchall()
    assert [(name, list(row)) for name, row in found] == [(f"s{i}", values[i].tolist()) for i in range(8)]
    assert pq.read_schema(next((tmp_path / "fc").iterdir())).field("values").type == pa.list_(
        pa.field("item", pa.float32(), nullable=False), 3
    )


def test_everything_goes_to_arrow_and_to_one_parquet_file(tmp_path: Path, storage: str) -> None:
    ragged = Site(1, "seq", "output")
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    batches = [
        batch(0, piece(values[:2]), piece(np.ones((3, 2)), site=ragged, lengths=[1, 2])),
        batch(2, piece(values[2:]), piece(np.full((4, 2), 2.0), site=ragged, lengths=[0, 4])),
    ]
    written(tmp_path / "feats", batches, plan(storage))
    features = hs.Features(tmp_path / "feats")
    features.to_parquet(tmp_path / "all.parquet")
    for table in (features.arrow(), pq.read_table(tmp_path / "all.parquet")):
        assert table["id"].to_pylist() == [0, 1, 2, 3]
        assert table["fc"].to_pylist() == values.tolist()
        assert table["seq"].to_pylist() == [[[1, 1]], [[1, 1]] * 2, [], [[2, 2]] * 4]
    assert features.arrow("fc").column_names == ["id", "fc"]


def test_the_table_of_what_there_is_is_calm(tmp_path: Path) -> None:
    written(tmp_path, [batch(0, piece(np.ones((2, 300, 4))), piece([[1, 2]] * 2, dtype="bfloat16", site=Site(1, "encoder.3", "input")))])
    assert repr(hs.Features(tmp_path)).splitlines() == [
        f"Features {tmp_path}: 2 samples, 2 sites",
        "  fc               (2, 300, 4)  float32   9.6 kB",
        "  encoder.3:input  (2, 2)       bfloat16  8 B",
    ]


def test_the_manifest_says_what_was_asked_and_holds_no_time(tmp_path: Path) -> None:
    batches = [batch(0, piece([[1.0]]))]
    written(tmp_path / "a", batches)
    written(tmp_path / "b", batches)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    said = json.loads((tmp_path / "a" / "features.json").read_text())
    assert (said["format"], said["complete"], said["samples"], said["what"]) == (1, True, 1, dict(PLAN.what))
    assert hs.Features(tmp_path / "a").about == PLAN.what


def test_what_differs_from_the_first_batch_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    first = batch(0, piece(np.ones((2, 3))), ids=["a", "b"])
    wrong = {
        r"fc:output gives float16 now and gave float32 before": batch(2, piece(np.ones((2, 3)), dtype="float16"), ids=["c", "d"]),
        r"fc:output gives samples of shape \(3, 2\) now and gave \(3,\) before": batch(2, piece(np.ones((2, 3, 2))), ids=["c", "d"]),
        r"batch 1 does not give the sites that the first batch gave: other:output differ": batch(
            2, piece(np.ones((2, 3))), piece(np.ones((2, 3)), site=Site(1, "other", "output")), ids=["c", "d"]
        ),
        r"the id 2 is a whole number and those before it were text": batch(2, piece(np.ones((2, 3)))),
        r"fc:output gives 2 samples, but there are 1 ids": batch(2, piece(np.ones((2, 3))), ids=["c"]),
    }
    for number, (match, second) in enumerate(wrong.items()):
        to = tmp_path / str(number)
        with pytest.raises(hs.FeaturesError, match=match):
            written(to, [first, second])
        features = hs.Features(to, partial=True)
        assert (features["fc"].shape, features.ids.tolist(), features.complete) == ((2, 3), ["a", "b"], False)
    with pytest.raises(hs.FeaturesError, match="values of type complex32 cannot be stored"):
        written(
            tmp_path / "c",
            [batch(0, Piece(Site(0, "fc", "output"), 0, "complex32", np.ones((2, 3))))],
        )
