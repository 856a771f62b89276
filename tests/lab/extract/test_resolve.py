"""What is asked of a model before it runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._lab._extract import _wanted
from hookscope._taps._inventory import bases


def test_a_class_is_looked_at_once_however_many_modules_are_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def noted(module: nn.Module) -> tuple[str, ...]:
        asked.append(type(module).__name__)
        return bases(module)

    monkeypatch.setattr(_wanted, "bases", noted)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)), nn.ReLU())
    found = hs.extract(model, torch.ones(1, 2), nn.Linear)
    assert len(found) == 20
    assert sorted(asked) == ["Linear", "ReLU", "Sequential"]
