"""Interventions: ops, and the edit that does them in hooks."""

from ._ablate import ablate
from ._ablation import Ablation
from ._edit import Edit, edit
from ._noise import noise
from ._op import Op
from ._patch_trace import PatchTrace
from ._plain_ops import add, clamp, clip_norm, scale, zero, zero_nonfinite
from ._project import project
from ._source_ops import mean, patch, replace, swap
from ._trace_patch import trace_patch

__all__ = [
    "Ablation",
    "Edit",
    "Op",
    "PatchTrace",
    "ablate",
    "add",
    "clamp",
    "clip_norm",
    "edit",
    "mean",
    "noise",
    "patch",
    "project",
    "replace",
    "scale",
    "swap",
    "trace_patch",
    "zero",
    "zero_nonfinite",
]
