"""A frame is as long as its rows."""

import numpy as np

from hookscope._core._frame import STEP_LEVEL, Frame
from hookscope._core._stats import EMPTY


def test_a_frame_counts_its_rows_and_marks_the_step_by_a_number_no_micro_batch_has() -> None:
    column = np.arange(3, dtype=np.int32)
    assert len(Frame(7, column, column, column, column, np.array([EMPTY] * 3))) == 3
    assert STEP_LEVEL < 0
