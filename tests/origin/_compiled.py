"""A program that compiles a part of its training, with a backend that counts; writes what it saw as JSON. Run in a process of its own."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import nn

import hookscope as hs


class Odd(nn.Module):
    """The logarithm of what can be made negative."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("below", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) + torch.log(1 - self.below)


def main(what: str, *, early: bool) -> dict[str, Any]:
    compiled = 0

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    def loss(y: torch.Tensor) -> torch.Tensor:
        return (y.square() * 0.5).sum()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Odd(), nn.Linear(8, 3))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    run_model, run_loss = model, loss
    depths = []
    with hs.watch(model, sgd, on_finding="ignore") as w:
        for step in range(8):
            if step == (0 if early else 2) and what == "loss":
                run_loss = torch.compile(loss, backend=backend)
            if step == (0 if early else 2) and what in ("model", "inside"):
                run_model = torch.compile(model, backend=backend)
            if step == (0 if early else 2) and what == "block":
                model[0].compile(backend=backend)
            if step == (0 if early else 2) and what.startswith("in place"):
                model.compile(backend=backend, fullgraph=True)
            model[1].below.fill_(2.0 if step == 6 and what in ("inside", "block", "in place") else 0.0)
            sgd.zero_grad()
            y = run_model(torch.ones(5, 4))
            depths.append(torch._C._len_torch_function_stack())
            factor = float("nan") if step == 6 and what in ("model", "loss", "in place, loss") else 1.0
            (run_loss(y) * factor).backward()
            sgd.step()
    found = [(finding.rule, finding.op, finding.module, finding.first_step) for finding in hs.diagnose(w.run)]
    notes = hs.diagnose(w.run).findings[0].evidence.get("notes", [])
    off = [event["part"] for event in w.run.events if event["event"] == "switched_off"]
    return {"compiled": compiled, "depths": depths, "found": found, "off": off, "notes": notes}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], early=sys.argv[2] == "early")))
