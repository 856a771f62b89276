"""An output that is a view loses the hook on its gradient when it is written to: that is told, wherever the write stands."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookscope as hs


@pytest.mark.parametrize(("written", "lost"), [(True, [["1"]]), (False, [])])
def test_a_gradient_lost_by_a_write_outside_every_module_is_told(written: bool, lost: list[list[str]]) -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.Flatten())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer) as w:
        for _ in range(2):
            optimizer.zero_grad()
            out = model(torch.ones(4, 2, 5))
            loss = out.mul_(2).sum() if written else out.mul(2).sum()
            del out  # it is gone before the backward
            loss.backward()
            optimizer.step()
    assert [event["modules"] for event in w.run.events if event["event"] == "lost_gradients"] == lost
    assert ("1:output_grad" in [site.name for site in w.run.sites if len(w.run.series(site.name)[site.name].steps)]) != written
