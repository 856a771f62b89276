"""The positions of an output that count, where some of a batch are padding."""

from __future__ import annotations

import torch


def kept(values: torch.Tensor, axis: int, mask: torch.Tensor | None) -> tuple[torch.Tensor, int]:
    """The values without padded positions, and the axis of the units in them; untouched where the mask does not fit the shape.

    A mask (batch, time) fits where it is the shape of everything but the units, or its beginning; also with time first, and where batch
    and time were flattened into one.
    """
    if mask is None or values.dim() < 2:
        return values, axis
    rows = values.movedim(axis, -1)
    places = tuple(rows.shape[:-1])
    fitting = _fitting(mask, places)
    if fitting is None:
        return values, axis
    return rows[fitting.to(rows.device)], -1


def _fitting(mask: torch.Tensor, places: tuple[int, ...]) -> torch.Tensor | None:
    shape = tuple(mask.shape)
    if places[: len(shape)] == shape:
        return mask
    if len(shape) == 2 and places[:2] == shape[::-1]:
        return mask.T
    return mask.reshape(-1) if places[:1] == (mask.numel(),) else None
