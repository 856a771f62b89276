"""hookscope watches, extracts, diagnoses and edits what flows inside a PyTorch model, through hooks alone.

Importing it imports neither torch nor anything else that is slow: each name below is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._compare import RunComparison, compare
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
    from ._lab import (
        Analysis,
        Comparison,
        Extracted,
        Pool,
        Similarity,
        Store,
        analyze,
        capture,
        cka,
        diagnose_dead_neurons,
        diff,
        extract,
        find_nonfinite,
        record_reference,
        replay,
    )
    from ._lab._edit import (
        Ablation,
        Edit,
        Op,
        PatchTrace,
        ablate,
        add,
        clamp,
        clip_norm,
        edit,
        mean,
        noise,
        patch,
        project,
        replace,
        scale,
        swap,
        trace_patch,
        zero,
        zero_nonfinite,
    )
    from ._origin import Verdict
    from ._record import Incident, Run, Series
    from ._rules import diagnose
    from ._taps import sites
    from ._watch import GradientMonitor, watch

__version__ = "0.1.0"

_HOME = {
    "Ablation": "_lab._edit",
    "Analysis": "_lab",
    "AttachError": "_core._errors",
    "Comparison": "_lab",
    "Diagnosis": "_core._finding",
    "Edit": "_lab._edit",
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
    "Op": "_lab._edit",
    "PatchTrace": "_lab._edit",
    "Pool": "_lab",
    "Run": "_record",
    "RunComparison": "_compare",
    "RunError": "_core._errors",
    "RunExistsError": "_core._errors",
    "RunUnreadableError": "_core._errors",
    "Selection": "_core._select",
    "SelectionError": "_core._errors",
    "Series": "_record",
    "Similarity": "_lab",
    "Site": "_core._site",
    "Store": "_lab",
    "UsageError": "_core._errors",
    "Verdict": "_origin",
    "ablate": "_lab._edit",
    "add": "_lab._edit",
    "analyze": "_lab",
    "capture": "_lab",
    "cka": "_lab",
    "clamp": "_lab._edit",
    "clip_norm": "_lab._edit",
    "compare": "_compare",
    "diagnose": "_rules",
    "diagnose_dead_neurons": "_lab",
    "diff": "_lab",
    "edit": "_lab._edit",
    "extract": "_lab",
    "find_nonfinite": "_lab",
    "mean": "_lab._edit",
    "noise": "_lab._edit",
    "patch": "_lab._edit",
    "project": "_lab._edit",
    "record_reference": "_lab",
    "replace": "_lab._edit",
    "replay": "_lab",
    "scale": "_lab._edit",
    "select": "_core._select",
    "sites": "_taps",
    "swap": "_lab._edit",
    "trace_patch": "_lab._edit",
    "watch": "_watch",
    "zero": "_lab._edit",
    "zero_nonfinite": "_lab._edit",
}
__all__ = [
    "Ablation",
    "Analysis",
    "AttachError",
    "Comparison",
    "Diagnosis",
    "Edit",
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
    "Op",
    "PatchTrace",
    "Pool",
    "Run",
    "RunComparison",
    "RunError",
    "RunExistsError",
    "RunUnreadableError",
    "Selection",
    "SelectionError",
    "Series",
    "Similarity",
    "Site",
    "Store",
    "UsageError",
    "Verdict",
    "ablate",
    "add",
    "analyze",
    "capture",
    "cka",
    "clamp",
    "clip_norm",
    "compare",
    "diagnose",
    "diagnose_dead_neurons",
    "diff",
    "edit",
    "extract",
    "find_nonfinite",
    "mean",
    "noise",
    "patch",
    "project",
    "record_reference",
    "replace",
    "replay",
    "scale",
    "select",
    "sites",
    "swap",
    "trace_patch",
    "watch",
    "zero",
    "zero_nonfinite",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hookscope' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
