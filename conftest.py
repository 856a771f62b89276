"""What every test and every docstring example runs under."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pathlib import Path

# Before torch is imported: the tests share the cores among their processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Before Triton is: without a GPU its kernels run in its interpreter.
if not any(os.path.exists(device) for device in ("/dev/nvidiactl", "/dev/kfd")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shared machine makes any deadline a coin toss; a test that is too slow shows in --durations.
settings.register_profile("hookscope", deadline=None)
settings.load_profile("hookscope")


@pytest.fixture(autouse=True)
def _nothing_is_compiled() -> None:
    """Where anything in the process was compiled, the origin of a bad value is not looked for: a test must not leave the next one so."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None and any(map(callable, dynamo.cached_backends.values())):
        sys.modules["torch._dynamo"].reset()


@pytest.fixture(autouse=True)
def _every_step_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the opening of a watch would be over within a test; those of the budget say so themselves."""
    if pace := sys.modules.get("hookscope._watch._pace"):
        monkeypatch.setattr(pace, "OPENING_S", 1e9)


@pytest.fixture(autouse=True)
def _doctest_in_its_own_directory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that writes `runs/base` writes it where nobody looks for it."""
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(tmp_path)
