"""Models edited by hand: what an edit has to equal, outputs and gradients, in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Chain(nn.Module):
    """Two layers and a norm between; `hand` is done to the first layer's output, `before` to the second one's input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)
        self.second = nn.Linear(6, 3)
        self.hand: Callable[[torch.Tensor], torch.Tensor] = lambda h: h
        self.before: Callable[[torch.Tensor], torch.Tensor] = lambda h: h
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(torch.tanh(self.hand(self.first(x))))
        return self.second(self.before(h))


def batch(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*(shape or (5, 4)), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The output and every gradient of one forward and backward, that of the input as well."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    (y * batch(*y.shape, seed=7)).sum().backward()
    wanted = {"input": x, **dict(model.named_parameters())}
    return {"output": y.detach(), **{name: torch.zeros_like(t) if t.grad is None else t.grad.clone() for name, t in wanted.items()}}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], *, exact: bool = False) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        if exact:
            assert torch.equal(tensor, other[name]), name
        else:
            torch.testing.assert_close(tensor, other[name], rtol=1e-12, atol=1e-12, equal_nan=True, msg=lambda text, n=name: f"{n}: {text}")
