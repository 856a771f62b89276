"""A program that compiles a part of its training, with a backend that counts; writes what it saw as JSON. Run in a process of its own."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import nn

import hookscope as hs


def main(what: str, *, early: bool) -> dict[str, Any]:
    compiled = 0

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    def loss(y: torch.Tensor) -> torch.Tensor:
        return (y.square() * 0.5).sum()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    run_model, run_loss = model, loss
    depths = []
    with hs.watch(model, sgd, on_finding="ignore") as w:
        for step in range(8):
            if step == (0 if early else 2) and what == "loss":
                run_loss = torch.compile(loss, backend=backend)
            if step == (0 if early else 2) and what == "model":
                run_model = torch.compile(model, backend=backend)
            sgd.zero_grad()
            y = run_model(torch.ones(5, 4))
            depths.append(torch._C._len_torch_function_stack())
            factor = float("nan") if step == 6 else 1.0
            (run_loss(y) * factor).backward()
            sgd.step()
    found = [(finding.rule, finding.op, finding.first_step) for finding in hs.diagnose(w.run)]
    off = [event["part"] for event in w.run.events if event["event"] == "switched_off"]
    return {"compiled": compiled, "depths": depths, "found": found, "off": off}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], early=sys.argv[2] == "early")))
