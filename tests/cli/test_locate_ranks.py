"""Several processes are not run twice by `--locate`, which says what to do instead; and that names the rank with the line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hookscope as hs

from ._programs import environment, watched, write

TRAINING = """
import torch
import torch.distributed as dist
from torch import nn
torch.manual_seed(0)
dist.init_process_group("gloo")
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.calls = nn.Linear(4, 8), nn.Linear(8, 2), 0
    def forward(self, x, bad):
        self.calls += 1  # when the forward alone is run again, it is another call
        h = self.a(x).relu()
        return self.b(torch.log(h * 0 - 1) if bad and self.calls == 6 else h)
net = nn.parallel.DistributedDataParallel(Net())
sgd = torch.optim.SGD(net.parameters(), 0.1)
torch.manual_seed(dist.get_rank())
for step in range(7):
    loss = net(torch.randn(3, 4), step == 5 and dist.get_rank() == 1).square().mean()
    sgd.zero_grad()
    loss.backward()
    sgd.step()
dist.destroy_process_group()
"""


def test_under_torchrun_it_says_what_to_do_instead(tmp_path: Path) -> None:
    script = write(tmp_path, "print(1)")
    done = watched("--locate", script, cwd=tmp_path, env={"MASTER_ADDR": "localhost"})
    assert (done.code, done.out) == (2, "")
    assert "with HOOKSCOPE_ARMED=12 in the environment and --to another directory" in done.err


@pytest.mark.slow
def test_armed_ranks_name_the_line_of_the_one_that_was_bad(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(20000 + os.getpid() % 20000)]
    command += ["-m", "hookscope", "run", "--quiet", "--to", "run", str(write(tmp_path, TRAINING))]
    subprocess.run(command, cwd=tmp_path, env={**environment(), "HOOKSCOPE_ARMED": "4"}, check=True, timeout=120, capture_output=True)
    first = hs.diagnose(hs.Run(tmp_path / "run")).findings[0]
    assert (first.rule, first.op, first.first_step, first.rank) == ("nonfinite-forward", "log", 5, 1)
    assert first.source is not None
    assert "torch.log(h * 0 - 1)" in first.source["code"]
