"""Recording into memory."""

from __future__ import annotations

import pytest

from hookscope._core._errors import RunError, UsageError
from hookscope._record import MemoryWriter

from ._frames import SITES, plain_frame


def test_a_run_in_memory_is_read_while_it_grows() -> None:
    sink = MemoryWriter()
    sink.sites(SITES)
    sink.frame(plain_frame(0))
    run = sink.run
    assert run["fc:output", "sum"].values.tolist() == [4.0]
    sink.frame(plain_frame(1))
    assert run.steps.tolist() == [0]
    assert run.refresh()
    assert run["fc:output", "sum"].values.tolist() == [4.0, 6.0]
    assert not run.refresh()
    assert run.path is None


def test_the_oldest_frames_give_way_and_are_counted() -> None:
    sink = MemoryWriter(cap=88 * 6 * 100)  # a hundred frames of six rows
    sink.sites(SITES)
    for step in range(1000):
        sink.frame(plain_frame(step))
    run = sink.run
    kept = run.steps.tolist()
    assert 80 <= len(kept) <= 100
    assert kept == list(range(1000 - len(kept), 1000))
    assert run.events == [{"event": "frames_dropped", "by": "memory", "frames": 1000 - len(kept), "last_step": 999 - len(kept)}]
    assert run.summary().bytes <= 88 * 6 * 100


def test_one_frame_above_the_cap_is_still_kept() -> None:
    sink = MemoryWriter(cap=1)
    sink.frame(plain_frame(0))
    sink.frame(plain_frame(1))
    assert sink.run.steps.tolist() == [1]


def test_closing_ends_it() -> None:
    sink = MemoryWriter()
    with pytest.raises(UsageError, match="choose one of finished"):
        sink.close("over")
    sink.event({"event": "skipped", "step": 0})
    sink.close("failed")
    sink.close("finished")
    assert sink.run.meta.status == "failed"
    assert sink.run.meta.closed is not None
    assert sink.run.events == [{"event": "skipped", "step": 0}]
    with pytest.raises(RunError, match="closed"):
        sink.frame(plain_frame(0))
