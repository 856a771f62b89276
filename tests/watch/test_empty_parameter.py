"""A parameter without an element, as the last rank holds where there are more ranks than rows."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import hookscope as hs


def test_a_parameter_without_elements_is_passed_over(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    model.register_parameter("nothing", nn.Parameter(torch.empty(0, 4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hs.watch(model, optimizer, to=tmp_path):
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.ones(2, 4)).square().mean() + model.nothing.sum()).backward()
            optimizer.step()
    run = hs.Run(tmp_path)
    assert [event for event in run.events if event["event"] == "switched_off"] == []
    assert run["weight:update", "count"].values.tolist() == [8.0, 8.0, 8.0]
