"""What an incident has brought about is a part of it, and no incident of its own."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import hookscope as hs

AT = 3


def trained(to: Path, factor: float, written: int = -1) -> hs.Run:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model, sgd, to=to, on_finding="ignore"):
        for step in range(12):
            if step == written:
                with torch.no_grad():
                    model.weight[0, 0] = torch.nan
            y = model(torch.randn(3, 4)).square().mean()
            sgd.zero_grad()
            (y + torch.log(y * factor - 1) if step == AT else y).backward()
            sgd.step()
    return hs.Run(to)


def told(run: hs.Run) -> list[tuple[int, list[tuple[str, int]]]]:
    return [(incident.step, [(finding.rule, finding.first_step) for finding in incident.findings]) for incident in run.incidents]


def test_bad_weights_after_a_bad_loss_are_told_in_the_same_folder(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", torch.nan)
    assert told(run) == [(AT, [("nonfinite-loss", AT), ("nonfinite-weight", AT + 1)])]
    assert run.incidents[0].origins[0]["op"] == "mul"


def test_what_goes_wrong_later_by_itself_is_another_incident(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", 0.0, written=9)  # the logarithm of -1, whose gradient is finite, and 0
    assert told(run) == [(AT, [("nonfinite-loss", AT)]), (9, [("nonfinite-weight", 8)])]
