"""Training loops of every make: watched, each ends with the same bits and has the numbers that plain torch finds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

import hookscope as hs
from hookscope._core._stats import Stats

from ._cells import Cell, every_cell, sample
from ._loops import DECAY, DECAYING, MAX_VALUE, OVERFLOWS, STEPS, Loop
from ._reference import Reference, Rows, norm

QUICK = 30
NEAR = 1e-5
SAMPLE = sample()
pytestmark = pytest.mark.filterwarnings("ignore::hookscope.FindingWarning")  # an overflow is one


def cells(wanted: Sequence[Cell]) -> list[object]:
    return [pytest.param(cell, id=str(cell), marks=[pytest.mark.slow] if i >= QUICK else []) for i, cell in enumerate(wanted)]


@cache
def watched(cell: Cell) -> tuple[Loop, hs.Run]:
    loop = Loop(cell)
    with hs.watch(loop.model, loop.optimizer if cell.named else None, updates="full") as w:
        loop.train()
    return loop, w.run


def recorded(run: hs.Run, kind: str) -> Rows:
    """The rows of a kind, with its label, as `param_grad/preclip`; none may be there twice."""
    found, rows = {}, run.rows()
    names = {site.id: site.name for site in run.sites if f"{site.kind}/{site.label}".rstrip("/") == kind}
    for step, micro, site, call, stats in zip(rows.step, rows.micro, rows.site, rows.call, rows.stats.tolist(), strict=True):
        if site in names:
            key = int(step), int(micro), names[site]
            assert call == 0
            assert key not in found
            found[key] = Stats(*stats)
    return found


def assert_same(got: Rows, want: Rows) -> None:
    assert sorted(got) == sorted(want)
    for key, expected in want.items():
        assert got[key][:4] == expected[:4], key
        size = math.sqrt(expected.sumsq * expected.count)  # what cancels in a sum is at most this
        np.testing.assert_allclose(got[key].sum, expected.sum, rtol=NEAR, atol=NEAR * size, err_msg=str(key))
        np.testing.assert_allclose(got[key][5:], expected[5:], rtol=NEAR, atol=1e-30, err_msg=str(key))


def scalars(run: hs.Run, name: str) -> dict[int, float]:
    if name not in {site.name for site in run.sites}:
        return {}
    steps, values = run[name]
    return dict(zip(steps.tolist(), values.tolist(), strict=True))


def test_every_pair_of_choices_occurs_in_the_sample() -> None:
    possible = {pair for cell in every_cell() for pair in cell.pairs}
    assert possible - {pair for cell in SAMPLE for pair in cell.pairs} == set()


@pytest.mark.parametrize("cell", cells(SAMPLE))
def test_a_loop_is_recorded_as_plain_torch_sees_it_and_ends_with_the_same_bits(cell: Cell) -> None:
    loop, run = watched(cell)
    assert loop.left_behind() == Loop(cell).train().left_behind()
    assert [event for event in run.events if event["event"] == "switched_off"] == []
    assert run.steps.tolist() == list(range(STEPS))
    reference = Reference(cell)
    for kind in ("loss", "output", "output_grad", "param", "param_grad", "param_grad/preclip"):
        assert_same(recorded(run, kind), reference.rows(kind))
    check_updates(cell, recorded(run, "update"), reference)
    check_scalars(cell, run, reference)


def check_updates(cell: Cell, got: Rows, reference: Reference) -> None:
    """Of a step that the scaler left out there is no update, or, where the optimizer itself left it out, one of zeros."""
    skipped = [number for number, step in enumerate(reference.steps) if not step.finite]
    want = {key: row for key, row in reference.rows("update").items() if key[0] not in skipped or cell.implementation == "fused"}
    assert all(row.zeros == row.count for key, row in want.items() if key[0] in skipped)
    assert_same(got, want)


def check_scalars(cell: Cell, run: hs.Run, reference: Reference) -> None:
    steps = reference.steps
    skipped = [OVERFLOWS] if cell.scaler != "none" else []
    assert [number for number, step in enumerate(steps) if not step.finite] == skipped
    assert scalars(run, "skipped") == dict.fromkeys(skipped, 1.0)
    assert scalars(run, "loss_scale") == ({n: step.scale for n, step in enumerate(steps)} if cell.scaler != "none" else {})
    tried = {n: step for n, step in enumerate(steps) if n not in skipped or cell.implementation == "fused"}
    assert scalars(run, "lr") == {n: step.rate for n, step in tried.items()}
    factors = {n: norm(s.used) / norm(s.accumulated) if reference.clipped(s) else 1.0 for n, s in enumerate(steps) if s.finite}
    if cell.implementation == "fused" and cell.clip == "none":  # nobody has touched the gradients, whatever they are
        factors |= dict.fromkeys(skipped, 1.0)
    assert scalars(run, "clip") == pytest.approx(factors if cell.optimizer != "LBFGS" else {}, rel=NEAR)
    limits = {n: MAX_VALUE for n, step in enumerate(steps) if cell.clip == "value" and reference.clipped(step)}
    assert scalars(run, "clip_value") == pytest.approx(limits, rel=NEAR)
    decayed = cell.optimizer in DECAYING
    shares = {n: s.rate * DECAY * norm(s.values) / norm(s.updates) for n, s in enumerate(steps) if decayed and s.finite}
    assert scalars(run, "decay_share") == pytest.approx(shares, rel=NEAR)
