"""Interventions: ops, and the edit that does them in hooks."""

from ._edit import Edit, edit
from ._noise import noise
from ._op import Op
from ._plain_ops import add, clamp, clip_norm, scale, zero, zero_nonfinite
from ._project import project
from ._source_ops import mean, patch, replace, swap

__all__ = [
    "Edit",
    "Op",
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
    "zero",
    "zero_nonfinite",
]
