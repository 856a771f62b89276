"""Little programs, run by themselves and under `hookscope run`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Three steps of a model of two layers; `steps`, `lr` and `model` can be set by a line before it.
TRAINING = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(x=torch.ones(4, 2)):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""


@dataclass(frozen=True)
class Done:
    """How a program ended; addresses of objects in its output are masked."""

    code: int
    out: str
    err: str


def environment() -> dict[str, str]:
    """That of the tests, without what changes the output of a program; streams are buffered as they are by default."""
    changing = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "PYTHONUNBUFFERED")
    return {**{key: value for key, value in os.environ.items() if key not in changing}, "OMP_NUM_THREADS": "1"}


def python(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> Done:
    """`python COMMAND` in the directory `cwd`."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**environment(), **(env or {})},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=120,
    )
    return Done(done.returncode, _masked(done.stdout), _masked(done.stderr))


def watched(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> Done:
    """`hookscope run COMMAND`."""
    return python("-m", "hookscope", "run", *command, cwd=cwd, env=env)


def write(folder: Path, text: str, name: str = "train.py") -> Path:
    """The program in a file of its own."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _masked(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)
