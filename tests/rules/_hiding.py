"""Small trainings that hide something from hooks, and what the rule `blind` says of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import hookscope as hs
from hookscope._core._finding import Finding
from hookscope._record import Run

BATCH = torch.linspace(-1.0, 1.0, 16).reshape(4, 4)
Forward = Callable[[torch.Tensor], torch.Tensor]


class Net(nn.Module):
    """A layer, and whatever else a test puts beside it; `how` is the forward."""

    def __init__(self, how: Callable[[Net, torch.Tensor], torch.Tensor], **parts: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.first = nn.Linear(4, 4)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.how(self, self.first(x))


def watched(model: nn.Module, forward: Forward | None = None, *, steps: int = 2, also: list[nn.Parameter] | None = None) -> Run:
    """The run of a training of `model` by its call, or by `forward`."""
    optimizer = torch.optim.SGD([*model.parameters(), *(also or [])], lr=0.01)
    with hs.watch(model) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            (forward or model)(BATCH).square().mean().backward()
            optimizer.step()
    return w.run


def blind(run: Run) -> dict[str, Finding]:
    found = hs.diagnose(run).findings
    assert {(f.rule, f.severity) for f in found} <= {("blind", "info")}
    assert hs.diagnose(run).verdict == "healthy"
    return {f.evidence["kind"]: f for f in found}


def missed(run: Run) -> dict[str, list[str]]:
    """The modules or parameters that each kind names."""
    return {kind: f.evidence.get("modules", f.evidence.get("parameters")) for kind, f in blind(run).items()}
