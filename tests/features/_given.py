"""Batches made by hand, for what stores them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hookscope._core._site import Site
from hookscope._features._batch import Batch, Piece
from hookscope._features._manifest import Plan
from hookscope._features._writer import FeatureWriter

PLAN = Plan({"model": "abc", "selection": ["fc"]})
FC = Site(0, "fc", "output")


def piece(values: Any, *, dtype: str = "float32", site: Site = FC, call: int = 0, lengths: Sequence[int] | None = None) -> Piece:
    array = np.asarray(values, {"bfloat16": np.uint16, "float8_e5m2": np.uint8}.get(dtype, dtype))
    return Piece(site, call, dtype, array, None if lengths is None else np.asarray(lengths, np.int64))


def batch(start: int, *pieces: Piece, ids: Any = None) -> Batch:
    names = np.arange(start, start + pieces[0].samples) if ids is None else ids
    return Batch(pieces, names, f"mark {start}")


def written(folder: Path, batches: Sequence[Batch], plan: Plan = PLAN, *, finish: bool = True, **how: Any) -> FeatureWriter:
    with FeatureWriter(folder, plan, **how) as writer:
        for one in batches[writer.batches :]:
            writer.write(one)
        if finish:
            writer.finish()
    return writer


def files(folder: Path) -> dict[str, bytes]:
    """Every file below, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
