"""Runs something right after the program itself has imported a module, so that we need not import it before the program does.

A script may set environment variables that torch reads when it is imported; importing torch for it would come before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Told(Loader):
    """The module's own loader, and a call when it is done."""

    def __init__(self, loader: Loader, then: Callable[[], None]) -> None:
        self.loader = loader
        self.then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = self.loader  # the module is to look as if we had not been here
        self.loader.exec_module(module)
        self.then()


class _Finder(MetaPathFinder):
    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next((found for finder in others if (found := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Told(spec.loader, self._imported)
        return spec

    def _imported(self) -> None:
        """Only now is the finder done: who asks whether there is a torch (transformers does) finds it and does not import it."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self.then()


def after_import(name: str, then: Callable[[], None]) -> None:
    """Call `then` once the module `name` has been imported: now, if it has been already."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Finder(name, then))
