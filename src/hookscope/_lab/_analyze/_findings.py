"""What is wrong with what an analysis saw, in words, with advice; thresholds are from the papers named beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..._core._finding import SEVERITIES, Finding, Severity
from ._layer import Layer
from ._outliers import outlier_features

ENOUGH = 64  # positions below which a unit that was silent says little
DEAD_SHARE, DEAD_ALMOST_ALL = 0.5, 0.95  # SageMaker's DeadRelu speaks at half of a layer
DORMANT_SHARE = 0.3  # of units with a score of at most 0.025, Sokar et al., 2023
SATURATED_SHARE = 0.5  # of a layer's values
UNDERFLOW_SHARE = 0.25
LOW_RANK = 0.1  # of the units; ours: no paper gives a bound, since what is low depends on the task
RANKED_UNITS, RANKED_ROWS = 16, 10  # rows a unit, below which a rank is biased low


def findings(layers: Sequence[Layer], last: str | None) -> tuple[Finding, ...]:
    """Worst first; `last` names the layer that ran last, which may saturate on purpose."""
    found: list[Finding] = []
    told: set[str] = set()
    for layer in layers:
        if layer.same_as is not None or layer.positions == 0:
            continue
        found += [f for f in (_nonfinite(layer), _constant(layer)) if f]
        found += [f for f in (_dead(layer, told), _dormant(layer), _saturated(layer, last)) if f]
        found += [f for f in (_overflow(layer), _underflow(layer), _massive(layer), _low_rank(layer)) if f]
    found += _outliers(layers)
    return tuple(sorted(found, key=lambda f: (SEVERITIES.index(f.severity), -float(f.evidence.get("share", 0)))))


def _finding(rule: str, severity: Severity, layer: Layer | None, message: str, **more: Any) -> Finding:
    site = None if layer is None else f"{layer.path or '(root)'}:output"
    module = None if layer is None else layer.path or "(root)"
    return Finding(rule, severity, message, 0, 0, site=site, module=module, **more)


def _nonfinite(layer: Layer) -> Finding | None:
    bad, total = float(layer.stats.nonfinite.sum()), float((layer.stats.n + layer.stats.nonfinite).sum())
    if not bad:
        return None
    message = f"{layer.name} gave {bad:,.0f} values that are NaN or Inf, {_percent(bad / total)} of all; no other number here counts them"
    advice = ("hs.find_nonfinite names the operation that made them",)
    return _finding("nonfinite", "error", layer, message, advice=advice, evidence={"share": bad / total})


def _constant(layer: Layer) -> Finding | None:
    if layer.positions < ENOUGH or layer.dead.all() or not (layer.stats.min == layer.stats.max).all():
        return None
    message = f"{layer.name} gives the same {layer.units} numbers whatever the input"
    causes = ("everything before it is dead or multiplied by 0", "its weights are 0")
    return _finding("constant", "warning", layer, message, causes=causes, evidence={"share": 1.0})


def _dead(layer: Layer, told: set[str]) -> Finding | None:
    share = float(layer.dead.mean())
    where = layer.name if layer.after is None else layer.after.name
    if not share or layer.positions < ENOUGH or where in told or layer.units < 2:
        return None
    told.add(where)
    at = "" if layer.after is None else f" (read behind {layer.after.name})"
    message = f"{int(layer.dead.sum()):,} of {layer.units:,} units of {layer.name}{at} never fire in {layer.positions:,} positions"
    causes = ("a learning rate that was too high", "a large negative bias", "inputs that are not scaled")
    advice = ("lower the learning rate or warm it up, start the layer anew", "a leaky rectifier or GELU keeps a gradient below 0")
    severity: Severity = "error" if share > DEAD_ALMOST_ALL else "warning" if share > DEAD_SHARE else "info"
    return _finding("dead-units", severity, layer, message, causes=causes, advice=advice, evidence={"share": share})


def _dormant(layer: Layer) -> Finding | None:
    share = float((layer.dormant() & ~layer.dead).mean())
    if share <= DORMANT_SHARE or not layer.rectified or layer.positions < ENOUGH or layer.units < 2:
        return None
    message = f"{_percent(share)} of the units of {layer.name} fire, but with under 2.5 % of the layer's mean magnitude"
    advice = ("what is learnt next has fewer units to do it with: restart them (ReDo), or decay weights",)
    return _finding("dormant-units", "info", layer, message, advice=advice, evidence={"share": share})


def _saturated(layer: Layer, last: str | None) -> Finding | None:
    if layer.saturated is None or layer.after is not None or layer.name == last:
        return None
    share = float(np.nanmean(layer.saturated))
    if not share > SATURATED_SHARE:
        return None
    message = f"{_percent(share)} of the values of {layer.name} are within 5 % of the half range of a bound, where the gradient is almost 0"
    causes = ("weights that are too large", "inputs that are not scaled", "a learning rate that was too high")
    advice = ("put a norm before it, or start with smaller weights",)
    return _finding("saturated", "warning", layer, message, causes=causes, advice=advice, evidence={"share": share})


def _overflow(layer: Layer) -> Finding | None:
    share = layer.headroom("float16")[1]
    if not share > 0:
        return None
    top = max(abs(float(layer.stats.min.min())), float(layer.stats.max.max()))
    message = f"{layer.name} reaches {top:.3g}; float16 ends at 65504 and makes Inf of {_percent(share)} of its values"
    advice = ("run this part in bfloat16 or float32",)
    return _finding("float16-overflow", "warning", layer, message, advice=advice, evidence={"share": share})


def _underflow(layer: Layer) -> Finding | None:
    share = layer.headroom("float16")[0]
    if not share > UNDERFLOW_SHARE:
        return None
    message = f"{_percent(share)} of the values of {layer.name} are not 0 yet below 6.1e-5, where float16 loses digits"
    advice = ("bfloat16 has the range of float32",)
    return _finding("float16-underflow", "info", layer, message, advice=advice, evidence={"share": share})


def _massive(layer: Layer) -> Finding | None:
    units = np.flatnonzero(layer.massive.count)
    if not len(units):
        return None
    times = f"{layer.massive.ratio:,.0f} times the median" if np.isfinite(layer.massive.ratio) else "where the median is 0"
    message = f"{layer.name} has massive activations up to {layer.massive.top:.4g}, {times}, in {_units(units)}"
    advice = ("leave these units out when quantizing; pruning or clipping them breaks the model",)
    return _finding("massive-activations", "info", layer, message, advice=advice, evidence={"units": units.tolist()})


def _low_rank(layer: Layer) -> Finding | None:
    """Only where there were rows enough to fill all directions, and units enough for a low rank to mean something."""
    if layer.units < RANKED_UNITS or layer.positions < RANKED_ROWS * layer.units or not layer.effective_rank < LOW_RANK * layer.units:
        return None
    share = layer.effective_rank / layer.units
    message = f"{layer.name} uses {layer.effective_rank:.3g} of {layer.units:,} directions ({_percent(share)}, effective rank)"
    advice = ("fewer units may do; compare with an earlier checkpoint, since a rank that falls in training is a collapse",)
    return _finding("low-rank", "info", layer, message, advice=advice, evidence={"share": 1 - share})


def _outliers(layers: Sequence[Layer]) -> Iterator[Finding]:
    for group in outlier_features(layers):
        # Where most dimensions are that large, the layer's scale is, and no dimension stands out.
        if group.features and len(group.features) <= max(1, group.units // 10):
            message = (
                f"{_units(np.array(group.features))} of {group.units} reach magnitude 6 in 6 % of the positions of a quarter "
                f"of the {group.layers} layers of that width"
            )
            advice = ("int8 with one scale for a whole row loses the other dimensions: treat these apart (LLM.int8)",)
            yield _finding("outlier-features", "info", None, message, advice=advice, evidence={"features": list(group.features)})


def _units(units: np.ndarray[Any, Any]) -> str:
    shown = ", ".join(map(str, units[:6]))
    return f"unit {shown}" if len(units) == 1 else f"units {shown}{f' and {len(units) - 6} more' if len(units) > 6 else ''}"


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"
