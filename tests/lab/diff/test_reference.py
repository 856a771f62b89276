"""References on disk: the same answer in another process, and less of it within a budget."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import hookscope as hs

MODEL = """
import sys, torch
from torch import nn
import hookscope as hs
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64, eps=float(sys.argv[2])), nn.Dropout(0.2), nn.ReLU(), nn.Linear(64, 64))
batch = torch.randn(32, 64)
"""
WRITE = MODEL + "hs.record_reference(model, batch, to=sys.argv[1])"
READ = MODEL + "torch.manual_seed(99); found = hs.diff(sys.argv[1], model, batch); print(found.verdict); sys.exit(not found)"


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64))


def batch() -> torch.Tensor:
    return torch.randn(32, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
def test_two_processes_agree_with_the_same_random_numbers_and_part_at_a_fault(tmp_path: Path) -> None:
    def run(code: str, eps: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code, str(tmp_path / "ref"), eps], capture_output=True, text=True, check=False)

    assert run(WRITE, "1e-5").returncode == 0
    same = run(READ, "1e-5")
    assert (same.returncode, same.stdout.strip()) == (0, "equal to the last bit at all 6 sites"), same.stderr
    other = run(READ, "1e-3")
    assert other.returncode == 1
    assert other.stdout.startswith("first divergence at `1` (LayerNorm)")
    assert "eps is 1e-05 in a and 0.001 in b" in other.stdout


def test_a_reference_says_what_a_live_model_says(tmp_path: Path) -> None:
    other = model()
    other[1].eps = 1e-3
    ref = hs.record_reference(model(), batch(), to=tmp_path / "ref")
    written, live = hs.diff(ref, other, batch()), hs.diff(model(), other, batch())
    assert written.verdict == live.verdict
    assert written.sites == live.sites
    assert {file.suffix for file in ref.rglob("*") if file.is_file()} == {".json", ".npy"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_tensors_of_every_dtype_come_back_as_they_were(tmp_path: Path, dtype: torch.dtype) -> None:
    ref = hs.record_reference(model().to(dtype), batch().to(dtype), to=tmp_path / "ref")
    assert hs.diff(ref, model().to(dtype), batch().to(dtype)).verdict.startswith("equal to the last bit")
    assert hs.diff(ref, model(), batch())


def test_over_its_budget_a_reference_still_tells_equality_and_where_not_but_not_who_adds(tmp_path: Path) -> None:
    ref = hs.record_reference(model(), batch(), to=tmp_path / "ref", budget=64 << 10, full="0")
    assert sum(file.stat().st_size for file in ref.glob("tensors/*")) < 80 << 10
    assert hs.diff(ref, model(), batch()).verdict.startswith("equal to the last bit")
    other = model()
    other[2] = nn.GELU(approximate="tanh")
    found = hs.diff(ref, other, batch())
    assert found.first is not None
    assert found.first.a == "2"
    assert found.first.total is not None
    assert found.first.total.estimated
    exact = hs.diff(model(), other, batch()).sites[2].total
    assert exact is not None
    assert found.first.total.relative == pytest.approx(exact.relative, rel=0.5)
    follower = found.sites[3]
    assert (follower.status, follower.added, follower.note) == ("unknown", None, "side a's inputs were not kept")


def test_a_whole_budget_that_runs_out_is_told(tmp_path: Path) -> None:
    big = torch.randn(256, 64)
    ref = hs.record_reference(model(), big, to=tmp_path / "ref", budget=100 << 10)
    assert any("over its budget" in note for note in hs.diff(ref, model(), big).notes)


def test_gradients_are_kept_too(tmp_path: Path) -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(x).square().mean()
        return out

    ref = hs.record_reference(model(), batch(), to=tmp_path / "ref", loss_fn=loss)
    assert hs.diff(ref, model(), batch(), loss_fn=loss).verdict == "equal to the last bit at all 5 sites and in every gradient"


def test_before_and_after_a_change_of_the_same_object(tmp_path: Path) -> None:
    changed = model()
    ref = hs.record_reference(changed, batch(), to=tmp_path / "before")
    changed[2] = nn.ReLU()
    found = hs.diff(ref, changed, batch())
    assert found.first is not None
    assert found.first.likely[0] == "a computes GELU, b computes ReLU"
    assert copy.deepcopy(changed)  # nothing of ours is left on it


def test_wrong_use_is_told(tmp_path: Path) -> None:
    with pytest.raises(hs.UsageError, match=r"holds no reference: write one with hs\.record_reference"):
        hs.diff(tmp_path / "nowhere", model(), batch())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(hs.UsageError, match="is not empty"):
        hs.record_reference(model(), batch(), to=tmp_path / "full")
    with pytest.raises(hs.UsageError, match="budget=12 is no budget: give at least 65536 bytes"):
        hs.record_reference(model(), batch(), to=tmp_path / "small", budget=12)
    with pytest.raises(hs.SelectionError, match="no site matches '7'"):
        hs.record_reference(model(), batch(), to=tmp_path / "none", full="7")
