"""A listener that writes down what it is told."""

from __future__ import annotations

from typing import Any

import torch

from hookscope._taps._listener import Backward


class Heard:
    """`said` lists the events in order, in words."""

    hears_closures = False
    shortcut = None

    def __init__(self) -> None:
        self.said: list[str] = []
        self.backwards: list[Backward] = []
        self.scales: list[float | None] = []
        self.optimizers: list[torch.optim.Optimizer] = []

    def backward_begins(self, backward: Backward) -> None:
        self.backwards.append(backward)
        self.scales.append(None if backward.scale is None else float(backward.scale))  # the scaler changes it in place later
        self.said.append("backward")

    def backward_ends(self, failed: bool) -> None:
        self.said.append("backward failed" if failed else "backward over")

    def attempt_begins(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        self.optimizers.append(optimizer)
        self.said.append("step with closure" if has_closure else "step")

    def evaluated(self, optimizer: torch.optim.Optimizer) -> None:
        self.said.append("closure over")

    def attempt_ends(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        self.said.append("step over")

    def backward_nears(self) -> None:
        """What follows is told anyway."""

    def attempt_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizers.append(optimizer)
        self.said.append("skipped")


BACKWARD = ["backward", "backward over"]
STEP = ["step", "step over"]


def leaf(value: Any = 1.0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([float(value)]))
