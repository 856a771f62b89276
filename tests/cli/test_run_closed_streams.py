"""A script that closes its stderr runs to its end, and its run names what went wrong, and how to see it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ._programs import python, watched, write

SCRIPT = """
import os, sys
import torch
from torch import nn
{close}
torch.manual_seed(0)
net = nn.Linear(4, 1)
sgd = torch.optim.SGD(net.parameters(), 0.1)
for step in range(6):
    loss = net(torch.randn(3, 4)).square().mean()
    if step == 3:
        loss = loss * torch.log(loss * 0 - 1)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    print(step, loss.item())
"""


@pytest.mark.slow
@pytest.mark.parametrize("close", ["sys.stderr.close()", "os.close(2)", "sys.stderr = None"])
def test_a_script_that_closes_stderr_is_diagnosed_as_ever(tmp_path: Path, close: str) -> None:
    script = write(tmp_path, SCRIPT.replace("{close}", close))
    done = watched("--to", "run", script, cwd=tmp_path)
    assert (done.code, done.out) == (0, python(script, cwd=tmp_path).out)
    told = python("-m", "hookscope", "diagnose", "run", "--fail-on", "never", cwd=tmp_path).out
    assert "6 steps" in told
    assert "nonfinite-loss" in told
    assert "again: hookscope replay run/incidents/3" in told
