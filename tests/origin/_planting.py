"""Plants a fault in a random net, watches it come to life, and compares what was found with what was planted."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import nn

import hookscope as hs
from hookscope._core._finding import Finding

from ._nets import AT, BACKWARD, BATCH, FORWARD, INF, LOSSES, NAN, WIDTH, Chain, Fault, Faulty, Own, Switch, net, some

KINDS = ("forward", "backward", "weight", "loss")


@dataclass(frozen=True)
class Planted:
    """A net with its fault, and where that is: a module's path, or None for the loss."""

    kind: str
    model: Chain
    switch: Switch
    fault: Fault | None
    module: str | None


def plant(seed: int, kind: str, faults: list[Fault] | None = None) -> Planted:
    rng, switch = random.Random(seed), Switch()
    torch.manual_seed(seed)
    among = faults or {"forward": FORWARD, "backward": BACKWARD, "loss": LOSSES, "weight": []}[kind]
    fault = rng.choice(among) if among else None
    if fault is None or kind == "loss":
        model = net(rng, None)
        paths = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
        return Planted(kind, model, switch, fault, rng.choice(paths) if kind == "weight" else None)
    draw, linear = rng.random(), nn.Linear(WIDTH, WIDTH)
    if draw < 0.15:  # in the own code of the model itself
        model = Own([linear, *some(rng, 2, None), nn.Linear(WIDTH, WIDTH)], rng, fault, switch)
        return Planted(kind, model, switch, fault, "(root)")
    faulty = Own([linear], rng, fault, switch) if draw < 0.5 else Faulty(fault, switch)
    model = net(rng, faulty)
    (path,) = [path for path, module in model.named_modules() if module is faulty]
    return Planted(kind, model, switch, fault, path)


def train(planted: Planted, steps: int = AT + 1, **settings: float) -> hs.Run:
    model, switch, fault = planted.model, planted.switch, planted.fault
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hs.watch(model, optimizer, on_finding="ignore", **settings) as w:
        for step in range(steps):
            switch.on = step == AT
            if planted.kind == "weight" and planted.module is not None and switch.on:
                with torch.no_grad():
                    layer = model.get_submodule(planted.module)
                    assert isinstance(layer, nn.Linear)
                    layer.weight[1, 2] = random.choice([NAN, INF])
            optimizer.zero_grad()
            loss = model(torch.randn(BATCH, WIDTH)).square()
            if planted.kind == "loss" and fault is not None and switch.on:
                loss = fault.change(loss)
            loss.mean().backward()
            optimizer.step()
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    return w.run


def misnamed(planted: Planted, run: hs.Run) -> str | None:
    """What is wrong about the first finding; None where it is right."""
    found = hs.diagnose(run).findings
    if not found:
        return "nothing was found"
    first, fault = found[0], planted.fault
    told = {"module": (first.module, planted.module), "step": (first.first_step in _steps(planted), True)}
    if fault is None:
        told["rule"] = first.rule, "nonfinite-weight"
    else:
        told |= {"op": (first.op, fault.op), "direction": (_direction(first), fault.direction)}
        told |= {"exact": (first.evidence.get("exact"), True), "line": (fault.code in (first.source or {"code": ""})["code"], True)}
        told["outside"] = first.where == "loss", planted.kind == "loss"
    wrong = {name: pair for name, pair in told.items() if pair[0] != pair[1]}
    return f"{planted.kind} {wrong}: {first.headline}" if wrong else None


def _steps(planted: Planted) -> tuple[int, ...]:
    """A weight that is written to between two steps belongs to either."""
    return (AT - 1, AT) if planted.kind == "weight" else (AT,)


def _direction(finding: Finding) -> str:
    return "backward" if finding.phase == "backward" else "forward"
