"""The way of a step's numbers to the host: in order, never mixed, whenever the device gets round to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookscope._core._errors import UsageError
from hookscope._stats import Cells, Ring, reduce_into
from hookscope._stats._cells import CHUNK

PATIENCE = 20


class Copy:
    """One that a thread makes when it is told to. It starts from what the source held when it was queued, as a stream would."""

    def __init__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.let, self.over, self.waited_for, self.target = threading.Event(), threading.Event(), False, target
        self._thread = threading.Thread(target=self._run, args=(source.clone(),), daemon=True)
        self._thread.start()

    def _run(self, queued: torch.Tensor) -> None:
        self.let.wait(PATIENCE)
        self.target.copy_(queued)
        self.over.set()

    def finish(self) -> None:
        self.let.set()
        assert self.over.wait(PATIENCE)

    def query(self) -> bool:
        return self.over.is_set()

    def synchronize(self) -> None:
        self.waited_for = self.waited_for or not self.query()
        assert self.over.wait(PATIENCE), "nobody finished the copy"


class Late:
    """Host memory begins as NaN, so that a number that was never copied shows; no two copies may be under way to the same place."""

    def __init__(self) -> None:
        self.copies: list[Copy] = []
        self.capturing = False

    def memory(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty(rows, 8, dtype=torch.float64), torch.full((rows, 8), torch.nan, dtype=torch.float64)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Copy:
        under_way = [c.target.data_ptr() for c in self.copies if not c.query()]
        assert target.data_ptr() not in under_way, "two copies into one place"
        self.copies.append(Copy(source, target))
        return self.copies[-1]

    def usable(self) -> bool:
        return not self.capturing


@pytest.fixture
def late() -> Iterator[Late]:
    late = Late()
    yield late
    for copy in late.copies:
        copy.finish()


def steps(arrived: list[tuple[int, np.ndarray]]) -> list[tuple[int, float]]:
    return [(step, rows[0, 0].item()) for step, rows in arrived]


def test_what_is_sent_arrives_a_step_later_though_the_row_was_written_again(late):
    cells = Cells("cpu")
    row = cells.row()
    ring = Ring[int](cells, copier=late)
    row.view.fill_(1.0)
    assert ring.send(0, [row])
    row.view.fill_(2.0)
    assert ring.take() == []
    late.copies[0].finish()
    assert steps(ring.take()) == [(0, 1.0)]
    assert ring.take() == []
    assert ring.waits == 0


def test_one_that_overtakes_an_older_one_stays_until_that_has_arrived(late):
    cells = Cells("cpu")
    row = cells.row()
    ring = Ring[int](cells, copier=late)
    for step in range(3):
        row.view.fill_(step)
        ring.send(step, [row])
    late.copies[1].finish()
    assert ring.take() == []
    late.copies[0].finish()
    assert steps(ring.take()) == [(0, 0.0), (1, 1.0)]
    assert not late.copies[0].waited_for


def test_one_too_many_waits_for_the_oldest_alone_and_loses_nothing(late):
    cells = Cells("cpu")
    row = cells.row()
    ring = Ring[int](cells, copier=late)
    for step in range(3):
        row.view.fill_(step)
        ring.send(step, [row])
    assert ring.waits == 0
    timer = threading.Timer(0.05, late.copies[0].finish)
    timer.start()
    row.view.fill_(3)
    ring.send(3, [row])
    timer.join()
    assert ring.waits == 1
    assert [copy.query() for copy in late.copies] == [True, False, False, False]
    for copy in late.copies:
        copy.finish()
    assert steps(ring.close()) == [(i, float(i)) for i in range(4)]


def test_a_full_ring_whose_oldest_has_arrived_does_not_wait(late):
    cells = Cells("cpu")
    ring = Ring[int](cells, copier=late)
    rows = [cells.row()]
    for step in range(3):
        ring.send(step, rows)
    late.copies[0].finish()
    ring.send(3, rows)
    assert (ring.waits, late.copies[0].waited_for) == (0, False)


def test_closing_and_exactness_wait_for_everything(late):
    cells = Cells("cpu")
    row = cells.row()
    ring = Ring[int](cells, copier=late)
    for take in (lambda: ring.take(exact=True), ring.close):
        for step in range(2):
            row.view.fill_(step)
            ring.send(step, [row])
        timers = [threading.Timer(0.02, copy.finish) for copy in late.copies[-2:]]
        for timer in timers:
            timer.start()
        assert steps(take()) == [(0, 0.0), (1, 1.0)]
        for timer in timers:
            timer.join()


def test_rows_that_came_later_have_room_and_keep_their_order(late):
    cells = Cells("cpu")
    ring = Ring[str](cells, copier=late)
    first = cells.row()
    first.view.fill_(-1.0)
    ring.send("few", [first])
    more = [cells.row() for _ in range(2 * CHUNK)]
    for i, row in enumerate(more):
        row.view.fill_(i)
    for copy in late.copies:
        copy.finish()
    ring.take()
    ring.send("many", [more[-1], first, more[CHUNK]])
    late.copies[-1].finish()
    [(tag, rows)] = ring.take()
    assert (tag, rows[:, 7].tolist()) == ("many", [2 * CHUNK - 1, -1.0, CHUNK])
    assert rows.shape == (3, 8)


def test_while_a_graph_is_captured_nothing_is_sent_or_asked(late):
    cells = Cells("cpu")
    ring = Ring[int](cells, copier=late)
    ring.send(0, [cells.row()])
    late.copies[0].finish()
    late.capturing = True
    assert not ring.send(1, [])
    assert ring.take(exact=True) == []
    late.capturing = False
    assert [step for step, _ in ring.take()] == [0]


def test_a_device_that_fails_yields_no_numbers():
    class Failing(Late):
        def copy(self, source, target):
            copy = super().copy(source, target)
            copy.query = lambda: True
            copy.synchronize = lambda: (_ for _ in ()).throw(RuntimeError("CUDA error: device-side assert triggered"))
            return copy

    failing, cells = Failing(), Cells("cpu")
    ring = Ring[int](cells, copier=failing)
    ring.send(0, [cells.row()])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="device-side assert"):
            ring.take()
    failing.copies[0].let.set()


@settings(max_examples=30)
@given(plan=st.lists(st.sampled_from(["send", "take", "finish first", "finish last"]), max_size=25), depth=st.integers(1, 4))
def test_in_any_order_of_events_every_step_arrives_once_in_order_with_its_own_number(plan, depth):
    late, cells = Late(), Cells("cpu")
    row = cells.row()
    ring, sent, arrived = Ring[int](cells, depth=depth, copier=late), 0, []
    for action in plan:
        open_copies = [copy for copy in late.copies if not copy.query()]
        if action == "send":
            if open_copies and len(late.copies) - late.copies.index(open_copies[0]) >= depth:
                open_copies[0].finish()  # nobody else would while this thread waits
            row.view.fill_(sent + 0.5)
            ring.send(sent, [row])
            sent += 1
        elif action == "take":
            arrived += ring.take()
        elif open_copies:
            open_copies[0 if action == "finish first" else -1].finish()
    for copy in late.copies:
        copy.finish()
    assert steps(arrived + ring.close()) == [(i, i + 0.5) for i in range(sent)]


def test_on_a_cpu_all_has_arrived_at_once():
    cells = Cells("cpu")
    row = cells.row()
    ring = Ring[int](cells)
    for step in range(5):
        reduce_into(row, torch.full((3,), float(step)))
        ring.send(step, [row])
        [(tag, rows)] = ring.take()
        assert (tag, rows[0].tolist()) == (step, [3.0, 0.0, 0.0, 3.0 * (step == 0), 3.0 * step, 3.0 * step**2, step, step])
    assert (ring.waits, ring.close()) == (0, [])


def test_on_a_cpu_many_may_be_sent_before_one_is_taken():
    cells = Cells("cpu")
    row = cells.row()
    ring = Ring[int](cells)
    for step in range(10):
        row.view.fill_(step)
        ring.send(step, [row])
    assert steps(ring.take()) == [(i, float(i)) for i in range(10)]
    assert ring.waits == 0


def test_rows_of_no_chunk_at_all_are_an_empty_set():
    ring = Ring[int](Cells("cpu"))
    ring.send(0, [])
    [(step, rows)] = ring.take()
    assert (step, rows.shape) == (0, (0, 8))


def test_a_ring_without_a_place_is_refused():
    with pytest.raises(UsageError, match="depth=0: at least one set"):
        Ring(Cells("cpu"), depth=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_sending_and_taking_never_synchronise():
    cells = Cells("cuda")
    row = cells.row()
    ring = Ring[int](cells)
    got = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(50):
            reduce_into(row, torch.full((1000,), float(step), device="cuda"))
            ring.send(step, [row])
            got += ring.take()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    got += ring.close()
    assert [(step, rows[0, 4]) for step, rows in got] == [(i, 1000.0 * i) for i in range(50)]
