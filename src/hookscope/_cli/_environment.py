"""The environment that hookscope finds itself in: versions, what reduces tensors, extras, devices."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from .. import __version__

CORE = ("torch", "numpy", "pyarrow", "rich")
FOR_DEVELOPERS = ("dev", "docs", "bench")  # extras that nobody needs to use hookscope
_EXTRA = re.compile(r"""^([\w.-]+).*;\s*extra\s*==\s*["']([\w-]+)["']""")


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional part: the packages it needs, and those that are missing."""

    name: str
    packages: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Environment:
    """`versions` is None for what is not installed; `kernel` what reduces CPU tensors, and `fallback` why it is not the native one."""

    versions: dict[str, str | None]
    kernel: str | None
    fallback: str | None
    extras: tuple[Extra, ...]
    threads: int | None
    cores: int
    devices: dict[str, str | None]
    trouble: str | None = None

    @property
    def verdict(self) -> str:
        """One line."""
        missing = [name for name in CORE if self.versions[name] is None]
        if "torch" in missing:
            return "without torch runs can be read, shown and diagnosed, but nothing can be watched: pip install torch"
        if missing:
            return f"not ready: {', '.join(missing)} missing"
        if self.trouble:
            return f"runs can be read, but nothing can be watched: {self.trouble}"
        return "ready" if self.fallback is None else "ready, and slower on a CPU than it could be: torch operations read the tensors"

    @property
    def ready(self) -> bool:
        """Whether a training can be watched here."""
        return self.trouble is None and all(self.versions[name] is not None for name in CORE)


def environment() -> Environment:
    """Look around; this imports torch."""
    versions = {"hookscope": __version__, "python": platform.python_version(), **{name: _version(name) for name in CORE}}
    kernel = fallback = threads = trouble = None
    devices: dict[str, str | None] = {}
    if versions["torch"] is not None:
        try:
            kernel, fallback = _kernel()
            threads, devices = _torch()
        except Exception as error:  # noqa: BLE001  # a torch that cannot be imported is what one asks a doctor about
            trouble = f"{type(error).__name__}: {error}"
    return Environment(versions, kernel, fallback, tuple(_extras()), threads, os.cpu_count() or 1, devices, trouble)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _kernel() -> tuple[str, str | None]:
    from .._stats._backend import SWITCH, backend

    found = backend()
    if found.startswith("native"):
        return found, None
    if os.environ.get(SWITCH) == "0":
        return found, f"{SWITCH}=0 asks for it"
    if importlib.util.find_spec("hookscope._stats._native") is None:
        return found, "the native kernel was not built: no C compiler when hookscope was installed"
    return found, "the native kernel cannot be loaded here"


def _torch() -> tuple[int, dict[str, str | None]]:
    """Its threads, and the devices besides the CPU: their names, None where there is none."""
    import torch

    cuda = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) if torch.cuda.is_available() else None
    return torch.get_num_threads(), {"CUDA": cuda, "MPS": "available" if torch.backends.mps.is_available() else None}


def _extras() -> list[Extra]:
    try:
        lines = requires("hookscope") or []
    except PackageNotFoundError:  # run from its source, without being installed
        return []
    wanted: dict[str, list[str]] = {}
    for line in lines:
        if (match := _EXTRA.match(line)) and match[2] not in FOR_DEVELOPERS:
            wanted.setdefault(match[2], []).append(match[1])
    return [Extra(name, tuple(packages), tuple(p for p in packages if _version(p) is None)) for name, packages in wanted.items()]
