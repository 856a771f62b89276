"""Whatever ends the process or fills the disk, what was committed stays, and the same call goes on to the same bytes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import hookscope as hs
from hookscope._features import _npy_store, _shard_store

from ._streaming import convnet, files

KILLS = int(os.environ.get("HOOKSCOPE_KILLS", "3"))
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _every_batch_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_npy_store.NpyStore, "full", lambda *_: True)
    monkeypatch.setattr(_shard_store, "SHARD_BYTES", 5000)


@pytest.mark.slow  # it starts a program that imports torch
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    program = [sys.executable, str(HERE / "_killing.py"), str(tmp_path), str(KILLS), "7"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = re.findall(r"(\w+): (\d+) kills, \d+ extractions, (\d+) went on behind a commit", done.stdout)
    assert [storage for storage, _, _ in told] == ["npy", "safetensors", "parquet"]
    assert all(int(kills) >= KILLS and int(went_on) > 0 for _, kills, went_on in told), done.stdout


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """A limit on the size of each file, which stands for a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def extracted(to: Path, storage: Any = "npy") -> hs.Features:
    batches = [torch.full((10, 3, 6, 6), float(i)) for i in range(40)]
    ids = None if storage == "npy" else [f"{i:0200}" for i in range(400)]  # what outgrows a shard, and so any limit on the size of one
    return hs.extract(convnet(), batches, ["0", "3"], to=hs.Store(to, storage=storage, ids=ids))


def fills_up(to: Path, reason: str, storage: Any = "npy") -> None:
    """The extraction fails for that reason, and what it says is kept is there."""
    with pytest.raises(hs.FeaturesError, match=f"cannot write features to {to}: {reason}; .* the same call goes on behind them") as told:
        extracted(to, storage)
    there = hs.Features(to, partial=True)
    assert f"; {there.samples} samples are kept" in str(told.value)
    assert 0 < there.samples < 400
    assert (len(there["0"]), len(there["3"]), len(there.ids)) == (there.samples,) * 3
    assert bool((there["3"].numpy()[:, 0] != 0).all())


@pytest.mark.parametrize("storage", ["npy", "parquet"])
def test_a_full_disk_keeps_what_was_committed(tmp_path: Path, storage: str) -> None:
    with small_files(100_000 if storage == "npy" else 40_000):
        fills_up(tmp_path / "f", "File too large", storage)
    extracted(tmp_path / "f", storage)
    extracted(tmp_path / "whole", storage)
    assert files(tmp_path / "f") == files(tmp_path / "whole")


def mount(at: Path, size: str) -> bool:
    """Put a small file system there, or make it larger, where that is allowed."""
    at.mkdir(exist_ok=True)
    options = f"size={size}" + (",remount" if at.is_mount() else "")
    try:
        return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(at)], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_a_file_system_that_fills_up_keeps_what_was_committed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    if not mount(disk, "120k"):
        pytest.skip("no file system may be mounted here")
    try:
        fills_up(disk / "f", "No space left on device")
        assert mount(disk, "4m")
        extracted(disk / "f")
        extracted(tmp_path / "whole")
        assert files(disk / "f") == files(tmp_path / "whole")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)  # lazily: a map of a file may be alive


MEMORY = """
import resource, sys
import torch
from torch import nn
import hookscope as hs

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.site = nn.Identity()
    def forward(self, x):
        return self.site(x.repeat(1, 4096))

def batches(count):
    for number in range(count):
        yield torch.full((64, 4), float(number))

to, megabytes = sys.argv[1], int(sys.argv[2])
for storage in ("npy", "safetensors"):
    hs.extract(Wide(), batches(4), "site", to=hs.Store(to + "/warm " + storage, storage=storage))
    before = peak()
    features = hs.extract(Wide(), batches(megabytes // 4), "site", to=hs.Store(to + "/" + storage, storage=storage))
    print(features["site"].nbytes / 2**20, peak() - before)
    assert float(features["site"][features.samples - 1][0]) == megabytes // 4 - 1
"""


@pytest.mark.slow  # it starts a program that imports torch
def test_what_is_larger_than_memory_takes_little_of_it(tmp_path: Path) -> None:
    """200 MB, of which a batch is held. HOOKSCOPE_MEGABYTES=10240 for 10 GB."""
    size = os.environ.get("HOOKSCOPE_MEGABYTES", "200")
    done = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path), size], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (npy, grown), (shards, grown_by_shards) = (map(float, line.split()) for line in done.stdout.splitlines())
    assert npy == shards == int(size) // 4 * 4
    assert grown < 60, done.stdout
    assert grown_by_shards < 60, done.stdout
