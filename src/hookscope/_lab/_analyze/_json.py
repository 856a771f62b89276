"""An analysis as JSON and back: format 1, strict, every digit kept (NaN and Inf are written as the strings "nan", "inf" and "-inf")."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ..._core._errors import UsageError
from ..._stats._unit_stats import UnitStats
from ._analysis import Analysis
from ._attention import Attention
from ._layer import After, Bounded, Layer, Massive
from ._moment import Moment
from ._spectrum import Spectrum

FORMAT = 1
_PARTS: dict[str, type] = {
    "stats": UnitStats,
    "massive": Massive,
    "bounded": Bounded,
    "moment": Moment,
    "saved": Spectrum,
    "after": After,
}


def dump(analysis: Analysis, *, moments: bool) -> str:
    """The analysis as text; second moments, which are large, only if they are asked for."""
    document = {
        "format": FORMAT,
        "kind": "hookscope analysis",
        "model": analysis.model,
        "batches": analysis.batches,
        "layers": [_layer(layer, moments=moments) for layer in analysis.layers],
        "attention": [_plain(found) for found in analysis.attention.values()],
        "blind": dict(analysis.blind),
    }
    return json.dumps(document, allow_nan=False, ensure_ascii=False)


def parse(text: str, source: str) -> Analysis:
    """The analysis that `dump` wrote; `source` names it in errors."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{source} is no analysis: not JSON ({error})") from None
    if not isinstance(document, dict) or document.get("kind") != "hookscope analysis":
        raise UsageError(f"{source} is no analysis: write one with analysis.to_json(path)")
    if document["format"] > FORMAT:
        raise UsageError(f"{source} has format {document['format']}, and this version reads up to {FORMAT}: update hookscope")
    layers = tuple(_built(Layer, layer) for layer in document["layers"])
    attention = {found["name"]: _built(Attention, found) for found in document["attention"]}
    return Analysis(layers, attention, document["blind"], document["batches"], document["model"])


def _layer(layer: Layer, *, moments: bool) -> dict[str, Any]:
    found: dict[str, Any] = {f.name: getattr(layer, f.name) for f in fields(layer)}
    found["saved"] = layer.spectrum
    if not moments:
        found["moment"] = None
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "values": [_plain(v) for v in value.ravel().tolist()]}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _built(cls: type, found: dict[str, Any]) -> Any:
    return cls(**{f.name: _value(f.name, str(f.type), found[f.name]) for f in fields(cls)})


def _value(name: str, annotation: str, value: Any) -> Any:
    if isinstance(value, dict) and "shape" in value:
        return np.array([float(v) for v in value["values"]], dtype=np.float64).reshape(value["shape"])
    if isinstance(value, dict):
        return _built(_PARTS[name], value)
    return float(value) if annotation == "float" else value
