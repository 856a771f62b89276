"""hookscope watches, extracts, diagnoses and edits what flows inside a PyTorch model, through hooks alone.

Importing it imports neither torch nor anything else that is slow: each name below is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._core._errors import (
        AttachError,
        FeaturesError,
        FindingError,
        FindingWarning,
        HookscopeError,
        HookscopeWarning,
        NonFiniteError,
        RunError,
        RunExistsError,
        RunUnreadableError,
        SelectionError,
        UsageError,
    )
    from ._core._finding import Diagnosis, Finding
    from ._core._select import Selection, select
    from ._core._site import Site
    from ._features import Features
    from ._lab import Extracted, Pool, Store, capture, diagnose_dead_neurons, extract, find_nonfinite, replay
    from ._origin import Verdict
    from ._record import Incident, Run, Series
    from ._rules import diagnose
    from ._taps import sites
    from ._watch import GradientMonitor, watch

__version__ = "0.1.0"

_HOME = {
    "AttachError": "_core._errors",
    "Diagnosis": "_core._finding",
    "Extracted": "_lab",
    "Features": "_features",
    "FeaturesError": "_core._errors",
    "Finding": "_core._finding",
    "FindingError": "_core._errors",
    "FindingWarning": "_core._errors",
    "GradientMonitor": "_watch",
    "HookscopeError": "_core._errors",
    "HookscopeWarning": "_core._errors",
    "Incident": "_record",
    "NonFiniteError": "_core._errors",
    "Pool": "_lab",
    "Run": "_record",
    "RunError": "_core._errors",
    "RunExistsError": "_core._errors",
    "RunUnreadableError": "_core._errors",
    "Selection": "_core._select",
    "SelectionError": "_core._errors",
    "Series": "_record",
    "Site": "_core._site",
    "Store": "_lab",
    "UsageError": "_core._errors",
    "Verdict": "_origin",
    "capture": "_lab",
    "diagnose": "_rules",
    "diagnose_dead_neurons": "_lab",
    "extract": "_lab",
    "find_nonfinite": "_lab",
    "replay": "_lab",
    "select": "_core._select",
    "sites": "_taps",
    "watch": "_watch",
}
__all__ = [
    "AttachError",
    "Diagnosis",
    "Extracted",
    "Features",
    "FeaturesError",
    "Finding",
    "FindingError",
    "FindingWarning",
    "GradientMonitor",
    "HookscopeError",
    "HookscopeWarning",
    "Incident",
    "NonFiniteError",
    "Pool",
    "Run",
    "RunError",
    "RunExistsError",
    "RunUnreadableError",
    "Selection",
    "SelectionError",
    "Series",
    "Site",
    "Store",
    "UsageError",
    "Verdict",
    "capture",
    "diagnose",
    "diagnose_dead_neurons",
    "extract",
    "find_nonfinite",
    "replay",
    "select",
    "sites",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hookscope' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
