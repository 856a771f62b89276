"""NaN on one side only is told in words, not as a number."""

from __future__ import annotations

import numpy as np

import hookscope as hs
from hookscope._core._frame import Frame
from hookscope._core._site import Site
from hookscope._record import MemoryWriter


def run(bad_from: int) -> hs.Run:
    writer = MemoryWriter()
    writer.sites([Site(0, "fc", "output")])
    for step in range(6):
        fine, nan = [4.0, 0, 0, 0, 2, 1.5, 0.1, 0.9], [4.0, 4, 0, 0, 0, 0, np.inf, -np.inf]
        one = np.zeros(1, np.int32)
        writer.frame(Frame(step, one, one, one, one, np.array([nan if step >= bad_from else fine])))
    return writer.run


def test_a_run_that_goes_bad_beside_one_that_does_not() -> None:
    found = hs.compare(run(99), run(4))
    assert "NaN or Inf in 2 steps of b on one side only" in found.verdict
    assert "NaN or Inf in 2 steps of b on one side only" in str(found)
    assert "nan" not in str(found)
    assert "\n" not in repr(found)
