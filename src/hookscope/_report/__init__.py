"""Show a run and its findings: one view model, many outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._build import build
from ._json import diagnosis_json
from ._sight import Sight, sight, sight_json
from ._view import Facts, FindingView, ModuleView, View

if TYPE_CHECKING:
    from ._terminal import Picture, text
    from ._terminal_sight import Listing, SightPicture

__all__ = [
    "Facts",
    "FindingView",
    "Listing",
    "ModuleView",
    "Picture",
    "Sight",
    "SightPicture",
    "View",
    "build",
    "diagnosis_json",
    "sight",
    "sight_json",
    "text",
]


def __getattr__(name: str) -> Any:
    if name in ("Picture", "text"):  # rich is loaded by those who draw with it, not by `diagnose --json`
        from . import _terminal

        return getattr(_terminal, name)
    if name in ("Listing", "SightPicture"):
        from . import _terminal_sight

        return getattr(_terminal_sight, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
