"""An unmodified script under torchrun, by hand, with Accelerate and with Lightning: `-m hookscope run` watches it on each rank."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hookscope as hs

from ._launch import free_port

pytestmark = pytest.mark.slow  # real processes, each of which loads torch

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
def batch(step, rank):
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(100 * step + rank))
"""
SCRIPTS = {
    "torch": """
import torch.distributed as dist
dist.init_process_group("gloo")
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), 0.05)
for step in range(5):
    optimizer.zero_grad()
    ddp(batch(step, dist.get_rank())).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
""",
    "accelerate": """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
ddp, optimizer = accelerator.prepare(model, optimizer)
for step in range(5):
    optimizer.zero_grad()
    accelerator.backward(ddp(batch(step, accelerator.process_index)).square().mean())
    optimizer.step()
accelerator.end_training()
""",
    "lightning": """
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model
    def training_step(self, item, index):
        return self.net(batch(index, self.global_rank)).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False)
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, **quiet)
trainer.fit(Module(), torch.utils.data.DataLoader(range(5), batch_size=1))
""",
}


@pytest.mark.parametrize("host", SCRIPTS)
def test_a_script_is_watched_on_every_rank(tmp_path: Path, host: str) -> None:
    if importlib.util.find_spec(host) is None:
        pytest.skip(f"{host} is not installed")
    (tmp_path / "train.py").write_text(HEAD + SCRIPTS[host])
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    words = [sys.executable, *launcher, "-m", "hookscope", "run", "--to", "run", "--every", "1", "train.py"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(words, check=False, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr[-3000:]
    run = hs.Run(tmp_path / "run")
    assert run.ranks == (0, 1)
    assert run.steps.tolist() == [0, 1, 2, 3, 4]
    weight = next(site for site in run.sites if site.kind == "param" and site.path.endswith("0.weight"))
    output = next(site for site in run.sites if site.kind == "output" and site.path.endswith("0") and site.label == "")
    assert run[weight, "count"].values.tolist() == [32.0] * 5  # held in common: once
    assert run[output, "count"].values.tolist() == [64.0] * 5  # of both ranks' samples
    local = next(site for site in run.sites if site.path == weight.path and site.label == "local")
    averaged = next(site for site in run.sites if site.path == weight.path and site.kind == "param_grad" and not site.label)
    mean = run.per_rank(local, "sum").values.mean(axis=1)
    assert run[averaged, "sum"].values.tolist() == pytest.approx(mean.tolist(), rel=1e-3, abs=1e-5)
    assert [event for event in run.events if event["event"] == "switched_off"] == []
