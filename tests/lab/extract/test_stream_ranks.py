"""Several processes extract a part each, and one view of it equals what a single process writes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import hookscope as hs

from ._streaming import bare, convnet, images, loader


def sharded(rank: int, world_size: int, count: int = 22, *, shuffle: bool = False, **how: Any) -> DataLoader[Any]:
    dataset = TensorDataset(images(count), torch.arange(count) % 5)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=shuffle)
    return DataLoader(dataset, batch_size=5, sampler=sampler, **how)


def by_ranks(to: Path, world_size: int, *, shuffle: bool = False, **how: Any) -> hs.Features:
    for rank in range(world_size):
        part = sharded(rank, world_size, shuffle=shuffle)
        hs.extract(convnet(), part, ["0", "3"], to=hs.Store(to, rank=(rank, world_size), **how))
    return hs.Features(to)


@pytest.mark.parametrize("storage", ["npy", "parquet"])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_view_equals_a_single_process_in_the_order_of_the_samples(tmp_path: Path, world_size: int, storage: Any) -> None:
    """22 samples do not divide by 3 or 4: the sampler repeats some, and the view has each once."""
    features = by_ranks(tmp_path / "f", world_size, storage=storage)
    single = hs.extract(convnet(), loader(), ["0", "3"], to=tmp_path / "single")
    assert features.ids.tolist() == single.ids.tolist() == [*range(22)]
    assert features.samples == 22
    for name in ("0", "3"):
        assert features[name].shape == single[name].shape
        torch.testing.assert_close(features[name].torch(), single[name].torch())
        assert np.array_equal(features[name][[21, 4, 4]], features[name].numpy()[[21, 4, 4]])
    assert sorted(path.name for path in (tmp_path / "f").iterdir()) == [f"rank-{r:05d}-of-{world_size:05d}" for r in range(world_size)]


def test_the_same_batches_on_ranks_give_the_same_bits(tmp_path: Path) -> None:
    """One sample a batch, so that the arithmetic is that of a single process with one sample a batch."""
    dataset = TensorDataset(images(7))
    for rank in range(2):
        part = DataLoader(dataset, batch_size=1, sampler=DistributedSampler(dataset, 2, rank, shuffle=False))
        hs.extract(convnet(), part, "3", to=hs.Store(tmp_path / "f", rank=(rank, 2)))
    single = hs.extract(convnet(), DataLoader(dataset, batch_size=1), "3", to=tmp_path / "single")
    assert torch.equal(hs.Features(tmp_path / "f")["3"].torch(), single["3"].torch())  # type: ignore[arg-type]  # no list


def test_a_shuffling_sampler_and_names_come_back_in_the_order_of_the_dataset(tmp_path: Path) -> None:
    names = [f"{i}.png" for i in range(22)]
    features = by_ranks(tmp_path / "f", 2, shuffle=True, ids=names)
    assert features.ids.tolist() == names
    torch.testing.assert_close(features["3"].torch(), bare(convnet(), loader())["3"])


class Stretch(IterableDataset[Any]):
    """Samples from one number to another, with that number as id."""

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers

    def __iter__(self) -> Any:
        return ({"input": torch.full((3, 6, 6), float(i)), "id": i} for i in self.numbers)


def test_without_a_sampler_the_ids_give_the_order(tmp_path: Path) -> None:
    for rank in range(2):
        part = DataLoader(Stretch(range(rank, 9, 2)), batch_size=3)
        with pytest.raises(hs.UsageError, match="2 processes extract, and without a DistributedSampler it is not known which samples"):
            hs.extract(convnet(), part, "0", to=hs.Store(tmp_path / "wrong", rank=(rank, 2)))
        hs.extract(convnet(), part, "0", to=hs.Store(tmp_path / "f", rank=(rank, 2), ids="id"))
    features = hs.Features(tmp_path / "f")
    assert features.ids.tolist() == [*range(9)]
    first = features["0"].numpy()[:, 0, 2, 2]
    assert np.allclose(np.diff(first), first[1] - first[0], atol=1e-4)


def test_text_ids_without_a_sampler_leave_rank_after_rank(tmp_path: Path) -> None:
    for rank in range(2):
        part = DataLoader(Stretch(range(rank, 5, 2)), batch_size=3)
        hs.extract(
            convnet(), part, "0", to=hs.Store(tmp_path / "f", rank=(rank, 2), ids=lambda batch: [f"s{i}" for i in batch["id"].tolist()])
        )
    assert hs.Features(tmp_path / "f").ids.tolist() == ["s0", "s2", "s4", "s1", "s3"]


def test_sequences_of_different_lengths_on_ranks_are_one_view(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Identity())
    for rank in range(2):
        part = [{"input": torch.full((2, 3 + rank, 1), float(rank)), "id": torch.tensor([rank, rank + 2])}]
        hs.extract(model, part, "0", to=hs.Store(tmp_path / "f", rank=(rank, 2), ids="id"))
    feature = hs.Features(tmp_path / "f")["0"]
    assert (feature.ragged, feature.shape) == (True, (4, None, 1))
    assert [one[:, 0].tolist() for one in feature] == [[0.0] * 3, [1.0] * 4] * 2
    assert feature.offsets.tolist() == [0, 3, 7, 10, 14]
    assert feature.values.shape == (14, 1)


def test_ranks_that_are_missing_unfinished_or_of_another_model_are_told(tmp_path: Path) -> None:
    hs.extract(convnet(), sharded(0, 2), "3", to=hs.Store(tmp_path / "f", rank=(0, 2)))
    with pytest.raises(hs.FeaturesError, match="are not of one extraction by 2 ranks: rank 1 has written nothing"):
        hs.Features(tmp_path / "f")
    hs.extract(convnet().train(), sharded(1, 2), "3", to=hs.Store(tmp_path / "f", rank=(1, 2)))
    with pytest.raises(hs.FeaturesError, match="hold features of different models, selections or options"):
        hs.Features(tmp_path / "f")


def test_what_torchrun_sets_is_taken_for_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    for rank in range(2):
        for name, value in {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost"}.items():
            monkeypatch.setenv(name, str(value))
        part = hs.extract(convnet(), sharded(rank, 2), "3", to=tmp_path / "f")
        assert part.ids.tolist() == [*range(rank, 22, 2)]
        alone = hs.extract(convnet(), loader(), "3", to=hs.Store(tmp_path / f"alone{rank}", rank=(0, 1)))
        assert alone.samples == 22
    torch.testing.assert_close(hs.Features(tmp_path / "f")["3"].torch(), bare(convnet(), loader())["3"])


PROGRAM = """
import sys
sys.path.insert(0, {here!r})
import torch
import hookscope as hs
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from _streaming import convnet, images

torch.distributed.init_process_group("gloo")
dataset = TensorDataset(images(), torch.arange(22) % 5)
loader = DataLoader(dataset, batch_size=5, sampler=DistributedSampler(dataset, shuffle=False))
model = torch.nn.parallel.DistributedDataParallel(convnet())
part = hs.extract(model, loader, ["0", "3"], to=sys.argv[1])
assert part.samples == 11
"""


@pytest.mark.slow  # it starts two programs that import torch
def test_two_processes_that_speak_to_each_other_write_one_view(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = PROGRAM.format(here=str(Path(__file__).parent))
    children = []
    for rank in range(2):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-c", code, str(tmp_path / "f")]
        children.append(subprocess.Popen(command, env={**os.environ, **place}, stderr=subprocess.PIPE, text=True))
    for child in children:
        _, err = child.communicate(timeout=240)
        assert child.returncode == 0, err
    features = hs.Features(tmp_path / "f")
    right = bare(convnet(), loader())
    assert features.ids.tolist() == [*range(22)]
    torch.testing.assert_close(features["3"].torch(), right["3"])
    torch.testing.assert_close(features["0"].torch(), right["0"])
