"""What a report of an analysis shows, as plain numbers and text; terminal, table and page only lay it out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._core._finding import Finding
from ._analysis import Analysis
from ._attention import Attention
from ._layer import Layer

COLUMNS = {
    "layer": "",
    "units": "units",
    "dead": "dead",
    "dormant": "dormant",
    "zero": "zeros",
    "saturated": "saturated",
    "rms": "rms",
    "kurtosis": "kurtosis",
    "effective_rank": "rank",
    "large": "≥ 6",
}
SHARES = ("dead", "dormant", "zero", "saturated", "large")


@dataclass(frozen=True, slots=True)
class Row:
    """A layer in the table: its cells as text, and whether a finding names it."""

    cells: tuple[str, ...]
    marked: bool


@dataclass(frozen=True, slots=True)
class View:
    """The whole report."""

    title: str
    summary: str
    findings: tuple[Finding, ...]
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    attention: tuple[tuple[str, ...], ...]
    blind: tuple[str, ...]


def view(analysis: Analysis) -> View:
    """The report of an analysis, layers with the worst findings first."""
    found = analysis.findings
    rank = {name: i for i, name in reversed(list(enumerate(f.module for f in found if f.module)))}
    shown = [layer for layer in analysis.layers if layer.same_as is None]
    ordered = sorted(shown, key=lambda layer: rank.get(layer.path or "(root)", len(found)))
    rows = tuple(Row(cells(layer), (layer.path or "(root)") in rank) for layer in ordered)
    same = len(analysis.layers) - len(shown)
    words = [f"{len(analysis.layers)} layers", f"{analysis.batches} batches"]
    words += [f"{same} return the tensor of another and are left out here"] if same else []
    blind = tuple(f"{name or '(root)'}: {why}" for name, why in analysis.blind.items())
    title = f"{analysis.model}: {len(found)} finding{'' if len(found) == 1 else 's'}" if found else f"{analysis.model}: nothing stands out"
    return View(title, ", ".join(words), found, tuple(COLUMNS.values()), rows, _attention(analysis), blind)


def cells(layer: Layer) -> tuple[str, ...]:
    """The cells of a layer."""
    known = numbers(layer)
    return tuple(share(known[name]) if name in SHARES else text(known[name]) for name in COLUMNS)


def numbers(layer: Layer) -> dict[str, Any]:
    """Every number of a layer that is one number; NaN where it means nothing there."""
    fp16, bf16, e4m3 = (layer.headroom(name) for name in ("float16", "bfloat16", "float8_e4m3"))
    return {
        "layer": layer.name or "(root)",
        "class": layer.cls,
        "kind": layer.kind,
        "read_at": layer.name if layer.after is None else layer.after.name,
        "units": layer.units,
        "positions": layer.positions,
        "nonfinite": float(layer.stats.nonfinite.sum()),
        "dead": float(layer.dead.mean()) if layer.rectified else math.nan,
        "near_dead": float(layer.near_dead().mean()),
        "dormant": float(layer.dormant().mean()),
        "zero": mean(layer.sparsity),
        "saturated": math.nan if layer.saturated is None else mean(layer.saturated),
        "phi": math.nan if layer.phi is None else mean(layer.phi),
        "treves_rolls": mean(layer.treves_rolls),
        "rms": float(np.sqrt(mean(layer.rms**2))),
        "min": float(layer.stats.min.min()),
        "max": float(layer.stats.max.max()),
        "kurtosis": layer.kurtosis_all,
        "kurtosis_of_units": layer.kurtosis_of_units,
        "participation_ratio": layer.participation_ratio,
        "effective_rank": layer.effective_rank,
        "rankme": layer.rankme,
        "stable_rank": layer.stable_rank,
        "top_share": layer.top_share(),
        "delve_saturation": layer.delve_saturation(),
        "large": mean(layer.large_share),
        "massive": float(layer.massive.count.sum()),
        "float16_below": fp16[0],
        "float16_above": fp16[1],
        "bfloat16_below": bf16[0],
        "float8_e4m3_below": e4m3[0],
        "float8_e4m3_above": e4m3[1],
    }


def mean(values: np.ndarray[Any, Any]) -> float:
    """Over the units that have a number."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def text(value: Any) -> str:
    """A number in three digits, a dot for what means nothing here."""
    if isinstance(value, str):
        return value
    return "·" if math.isnan(value) else f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def share(value: float) -> str:
    """In percent."""
    return "·" if math.isnan(value) else "0" if value == 0 else f"{value * 100:.3g} %"


def _attention(analysis: Analysis) -> tuple[tuple[str, ...], ...]:
    return tuple(_attention_cells(name, found) for name, found in analysis.attention.items())


def _attention_cells(name: str, found: Attention) -> tuple[str, ...]:
    """Module, heads, mean entropy, mean and least relative entropy, extremes of the logits."""
    entropies = mean(found.entropy), mean(found.relative_entropy), _least(found.relative_entropy)
    return (name or "(root)", text(found.heads), *map(text, (*entropies, _least(found.logit_min), -_least(-found.logit_max))))


def _least(values: np.ndarray[Any, Any]) -> float:
    known = values[~np.isnan(values)]
    return float(known.min()) if len(known) else math.nan
