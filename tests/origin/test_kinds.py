"""Faults as people make them: the first finding names step, place, operation and line; the sound twin is silent."""

from __future__ import annotations

import pytest
import torch

import hookscope as hs

from ._kinds import KINDS, Kind

pytestmark = pytest.mark.slow

AT = 3


def trained(kind: Kind, *, bad: bool) -> hs.Run:
    torch.manual_seed(0)
    model = kind.model()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    with hs.watch(model, adam, on_finding="ignore") as w:
        for step in range(7):
            adam.zero_grad()
            kind.loss(model, bad and step == AT).backward()
            adam.step()
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    return w.run


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_is_named_by_its_line(name: str) -> None:
    kind = KINDS[name]
    first = hs.diagnose(trained(kind, bad=True)).findings[0]
    told = first.first_step, first.module, first.op, first.phase
    assert told == (AT, kind.module, kind.op, kind.phase)
    assert (first.where == "module") == (kind.module is not None)
    assert first.source is not None
    assert first.source["code"].endswith("# fault")


@pytest.mark.parametrize("name", KINDS)
def test_its_sound_twin_is_silent(name: str) -> None:
    found = hs.diagnose(trained(KINDS[name], bad=False)).findings
    assert [f.headline for f in found if f.severity in ("warning", "error")] == []
