"""Under `hookscope run` a model has a name of its own, which a run of one model leaves out: what the watch notes must be found again."""

from __future__ import annotations

import torch
from torch import nn

import hookscope as hs


class Program:
    def __init__(self, models: dict[str, nn.Module]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.models = {name: self.model if name == "net" else model for name, model in models.items()}

    def run(self, spoil: float) -> hs.Run:
        sgd = torch.optim.SGD(self.model.parameters(), 0.01)
        with hs.watch(self.models, sgd, on_finding="ignore") as w:
            for step in range(6):
                if step == 3:
                    with torch.no_grad():
                        self.model[2].weight.mul_(spoil)
                sgd.zero_grad()
                self.model(torch.randn(5, 4)).square().mean().backward()
                sgd.step()
        return w.run


def test_a_weight_written_between_steps_is_known_by_name_in_any_number_of_models() -> None:
    for models in ({"net": nn.Identity()}, {"net": nn.Identity(), "other": nn.Linear(1, 1)}):
        found = hs.diagnose(Program(models).run(float("nan"))).findings[0]
        assert "by the program and no optimizer, in place" in found.message


def test_a_leap_is_known_by_name_too() -> None:
    for models in ({"net": nn.Identity()}, {"net": nn.Identity(), "other": nn.Linear(1, 1)}):
        found = next(f for f in hs.diagnose(Program(models).run(1e6)) if f.rule == "leap")
        assert "2.weight has become " in found.message
