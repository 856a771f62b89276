"""Outlier features: dimensions that are large throughout a model (LLM.int8, Dettmers et al., 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ._layer import Layer

LARGE, LAYERS, POSITIONS = 6.0, 0.25, 0.06


@dataclass(frozen=True, slots=True)
class OutlierFeatures:
    """Of the layers with `units` units each: the dimensions of magnitude 6 and more in at least 6 % of the positions of at least a
    quarter of these layers, and the share of layers for each.
    """

    units: int
    layers: int
    features: tuple[int, ...]
    shares: tuple[float, ...]


def outlier_features(layers: Sequence[Layer]) -> list[OutlierFeatures]:
    """One entry for each width that two layers or more have."""
    widths: dict[int, list[Layer]] = {}
    for layer in layers:
        if layer.same_as is None and layer.units > 1:
            widths.setdefault(layer.units, []).append(layer)
    return [_of(same) for same in widths.values() if len(same) > 1]


def _of(layers: list[Layer]) -> OutlierFeatures:
    share = np.mean([np.nan_to_num(layer.large_share) >= POSITIONS for layer in layers], axis=0)
    found = np.flatnonzero(share >= LAYERS)
    return OutlierFeatures(layers[0].units, len(layers), tuple(map(int, found)), tuple(float(share[i]) for i in found))
