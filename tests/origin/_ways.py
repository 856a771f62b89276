"""The two ways in which a tape is written."""

from __future__ import annotations

import pytest

from hookscope._origin import _forward, _region, _tape
from hookscope._watch import _locating

WAYS = ["plain", pytest.param("native", marks=pytest.mark.skipif(_tape.TAPE_KERNEL is None, reason="it was not built"))]


def plainly(patch: pytest.MonkeyPatch) -> None:
    """As where no compiler was there when hookscope was installed."""
    patch.setattr(_region, "tape", _tape.PlainTape)
    patch.setattr(_region, "within", _tape._plainly_within)
    patch.setattr(_forward, "TAPE_KERNEL", None)
    patch.setattr(_forward, "keeper", _forward.traceable_keeper)
    patch.setattr(_locating, "keeper", _forward.traceable_keeper)
