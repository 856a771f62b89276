"""A program that extracts in children and kills them: run with a directory, a number of kills and a seed.

Children are forked from a process that has imported torch, so that a kill costs no start of an interpreter.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import hookscope as hs
from hookscope._features import _npy_store, _shard_store

BATCHES = 100


class Net(nn.Module):
    """One site of a fixed shape and one of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens).mean(1))  # type: ignore[no-any-return]


def batches() -> Iterator[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    for number in range(BATCHES):
        size = 1 + int(torch.randint(6, (1,), generator=draw))
        tokens = torch.randint(50, (size, 12), generator=draw)
        time.sleep(0.001)
        yield {"tokens": tokens, "mask": torch.arange(12) < 1 + tokens[:, :1] % 12, "name": [f"{number}/{i}.png" for i in range(size)]}  # type: ignore[dict-item]


def extract(to: Path, storage: str) -> None:
    torch.manual_seed(0)
    hs.extract(Net().eval(), batches(), ["embed", "head"], to=hs.Store(to, ids="name", mask="mask", storage=storage))  # type: ignore[arg-type]


def child(to: Path, storage: str) -> int:
    """Extract in a forked process; commits come at random batches, so that kills find every moment of one."""
    number = os.fork()
    if number == 0:
        try:
            draw = random.Random(os.getpid())
            _npy_store.NpyStore.full = lambda *_: draw.random() < 0.5  # type: ignore[method-assign]
            extract(to, storage)
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the parent is to see it
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
    return number


def killed(to: Path, storage: str, patience: float) -> bool:
    """Whether a child was killed before it was done."""
    number = child(to, storage)
    time.sleep(patience)
    os.kill(number, signal.SIGKILL)
    _, status = os.waitpid(number, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a child failed"
    return os.WIFSIGNALED(status)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def drill(root: Path, kills: int, seed: int, storage: str) -> None:
    draw = random.Random(seed)
    root.mkdir(parents=True)
    _shard_store.SHARD_BYTES = 8000
    start = time.monotonic()
    extract(root / "whole", storage)
    seconds = time.monotonic() - start
    right, done, rounds, resumed = files(root / "whole"), 0, 0, 0
    while done < kills:
        to, rounds = root / f"f{rounds}", rounds + 1
        while not (to / "features.json").exists() or b'"complete": true' not in (to / "features.json").read_bytes():
            resumed += (to / "commits.jsonl").exists()
            done += killed(to, storage, draw.uniform(0, seconds))
        extract(to, storage)
        got = {name: data for name, data in files(to).items() if name != ".writing"}
        assert got == right, sorted(name for name in {*got, *right} if got.get(name) != right.get(name))
    sys.stdout.write(f"{storage}: {done} kills, {rounds} extractions, {resumed} went on behind a commit\n")


if __name__ == "__main__":
    for way in ("npy", "safetensors", "parquet"):
        drill(Path(sys.argv[1]) / way, int(sys.argv[2]), int(sys.argv[3]), way)
