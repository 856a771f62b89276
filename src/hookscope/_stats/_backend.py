"""Which code reduces tensors in this process: kernels where they were built and are wanted, else torch operations."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from hookscope._core._errors import UsageError

SWITCH = "HOOKSCOPE_NATIVE"


def _wanted() -> bool:
    wanted = os.environ.get(SWITCH, "1")
    if wanted not in ("0", "1"):
        raise UsageError(f"{SWITCH}={wanted!r}: choose 1 (the native kernel where it was built, the default) or 0 (torch operations only)")
    return wanted == "1"


def load(name: str, package: str | None = __package__) -> ModuleType | None:
    """What is written in C in this folder, or another one; None where none is wanted, or no compiler was there."""
    if not WANTED:
        return None
    try:
        return importlib.import_module(f".{name}", package)
    except ImportError:
        return None


WANTED = _wanted()
KERNEL = load("_native")


def backend() -> str:
    """Say what reduces CPU tensors here: `native avx512`, `native avx2`, `native neon`, `native generic` or `torch`.

    Chosen when hookscope's statistics are first imported; the environment variable `HOOKSCOPE_NATIVE=0` asks for `torch`, on GPUs too.
    CUDA devices use Triton kernels where Triton is installed, all others torch operations.

    >>> backend().split()[0] in ("native", "torch")
    True
    """
    return f"native {KERNEL.level()}" if KERNEL else "torch"
