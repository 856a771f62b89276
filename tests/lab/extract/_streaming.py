"""Small models and datasets for streaming, and what a bare loop gives for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookscope as hs


def convnet() -> nn.Sequential:
    """Two layers and a head; the second writes over the output of the first."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()


def images(count: int = 22) -> torch.Tensor:
    return torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def loader(count: int = 22, **how: Any) -> DataLoader[Any]:
    """Images with labels, the last batch smaller."""
    return DataLoader(TensorDataset(images(count), torch.arange(count) % 5), **{"batch_size": 5, **how})


@torch.no_grad()
def bare(model: nn.Sequential, batches: Iterable[Any]) -> dict[str, torch.Tensor]:
    """What layers 0 and 3 return, by calling them one after the other."""
    first, last = [], []
    for batch in batches:
        x = batch[0]
        first.append(model[0](x))
        last.append(model[3](model[2](torch.relu(first[-1]))))
    return {"0": torch.cat(first), "3": torch.cat(last)}


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class StoppedError(Exception):
    """The user's, out of a loader."""


def until(batches: Any, count: int, error: BaseException) -> Iterator[Any]:
    """The first batches, then an exception."""
    for number, batch in enumerate(batches):
        if number == count:
            raise error
        yield batch


def stopped(to: hs.Store, count: int = 3) -> None:
    with pytest.raises(StoppedError):
        hs.extract(convnet(), until(loader(), count, StoppedError()), ["0", "3"], to=to)
