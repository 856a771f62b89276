"""Random small nets with one planted fault, and what must be found of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

WIDTH, BATCH = 6, 5
AT = 2  # the step at which the fault comes to life
Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Switch:
    """Turned by the program, between steps."""

    on: bool = False


@dataclass(frozen=True)
class Fault:
    """What it does to a tensor on its way, and the operation and direction to be named; `code` stands in the line to be named."""

    kind: str
    op: str
    direction: str
    change: Change
    code: str


class Spoil(torch.autograd.Function):
    """The identity, whose backward multiplies by a factor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0] * ctx.factor, None


class Halve(torch.autograd.Function):
    """A sound custom operation."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x / 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] / 2


NAN, INF = float("nan"), float("inf")
FORWARD = [
    Fault("nan", "log", "forward", lambda x: x + torch.log(x * 0 - 1), "log("),
    Fault("nan", "sqrt", "forward", lambda x: x + (x * 0 - 1).sqrt(), ".sqrt("),
    Fault("nan", "div", "forward", lambda x: x + (x * 0) / (x * 0), "/ (x"),
    Fault("nan", "pow", "forward", lambda x: x + (x * 0 - 2).pow(0.5), ".pow("),
    Fault("nan", "acos", "forward", lambda x: x + torch.acos(x * 0 + 2), "acos("),
    Fault("nan", "log", "forward", lambda x: x + torch.log(one_bad(x)), "log("),
    Fault("inf", "exp", "forward", lambda x: x + (x * 0 + 200).exp(), ".exp("),
    Fault("inf", "div", "forward", lambda x: x + (x * 0 + 1) / (x * 0), "/ (x"),
    Fault("inf", "reciprocal", "forward", lambda x: x + (x * 0).reciprocal(), ".reciprocal("),
    Fault("inf", "mul_", "forward", lambda x: (x.clone() * 0 + 1e30).mul_(1e30), ".mul_("),
    Fault("inf", "sum", "forward", lambda x: x + (x * 0 + 1e38).sum(-1, keepdim=True), ".sum("),
]
BACKWARD = [
    Fault("nan", "Spoil", "backward", lambda x: Spoil.apply(x, NAN), "grads[0] * ctx.factor"),
    Fault("inf", "Spoil", "backward", lambda x: Spoil.apply(x, INF), "grads[0] * ctx.factor"),
    Fault("nan", "sqrt", "backward", lambda x: x + (x * 0).sqrt(), ".sqrt("),
    Fault("nan", "pow", "backward", lambda x: x + (x * 0).pow(0.5), ".pow("),
    Fault("nan", "acos", "backward", lambda x: x + torch.acos(x * 0 + 1), "acos("),
    Fault("nan", "log", "backward", lambda x: torch.where(x > 1e9, (x * 0).log(), x), ".log("),
    Fault("inf", "sqrt", "backward", lambda x: x + (x - x.detach()).sqrt(), ".sqrt("),
]
JUMPS = [
    Fault("jump", "mul", "forward", lambda x: x * 1e4, "* 1e4"),
    Fault("jump", "Spoil", "backward", lambda x: Spoil.apply(x, 1e4), "grads[0] * ctx.factor"),
]
LOSSES = [
    Fault("nan", "log", "forward", lambda y: torch.log(y.square() * 0 - 1), "log("),
    Fault("nan", "div", "forward", lambda y: y.square() * 0 / (y * 0), "/ (y"),
    Fault("inf", "log", "forward", lambda y: -torch.log(y.softmax(-1) * 0), "log("),
    Fault("inf", "sqrt", "backward", lambda y: (y.square() * 0).sqrt(), ".sqrt("),
    Fault("inf", "div", "forward", lambda y: y.square() / (y * 0), "/ (y"),
]


def one_bad(x: torch.Tensor) -> torch.Tensor:
    """Positive, but for the third sample."""
    rows = torch.arange(x.shape[0]).view(-1, *[1] * (x.dim() - 1))
    return torch.where(rows == 2, x * 0 - 1, x * 0 + 1)


class Chain(nn.Module):
    """Runs its parts in order; they are registered in another one."""

    def __init__(self, parts: Sequence[nn.Module], rng: random.Random) -> None:
        super().__init__()
        self.order = rng.sample([f"{letter}{n}" for letter in "abcxyz" for n in range(4)], len(parts))
        for name, part in rng.sample(list(zip(self.order, parts, strict=True)), len(parts)):
            self.add_module(name, part)

    def parts(self) -> list[nn.Module]:
        return [self.get_submodule(name) for name in self.order]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts():
            x = part(x)
        return x


class Residual(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


class Branches(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outs = [part(x) for part in self.parts()]
        return torch.stack(outs).mean(0)


class Shared(Chain):
    """Each part is called twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.tanh(super().forward(x)))


class Own(Chain):
    """The fault is in its own code, behind its parts."""

    def __init__(self, parts: Sequence[nn.Module], rng: random.Random, fault: Fault, switch: Switch) -> None:
        super().__init__(parts, rng)
        self.fault, self.switch = fault, switch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        return self.fault.change(x) if self.switch.on else x


class Faulty(nn.Module):
    def __init__(self, fault: Fault, switch: Switch) -> None:
        super().__init__()
        self.fault, self.switch = fault, switch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fault.change(x) if self.switch.on else x


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1.5
        y.mul_(0.5).add_(0.1)
        return y.relu_()


class Halved(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Halve.apply(x)  # type: ignore[no-any-return]  # torch leaves it unannotated


LEAVES: list[Callable[[], nn.Module]] = [
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.BatchNorm1d(WIDTH),
    lambda: nn.Dropout(0.3),
    lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    nn.GELU,
    nn.Tanh,
    InPlace,
    Halved,
]


def some(rng: random.Random, depth: int, with_fault: nn.Module | None) -> list[nn.Module]:
    """A few parts, one of which holds the fault."""
    parts = [_part(rng, depth) for _ in range(rng.randint(2, 4))]
    if with_fault is not None:
        at = rng.randrange(len(parts) + 1)
        if depth and rng.random() < 0.6:
            kind = rng.choice([Chain, Residual, Branches])
            parts.insert(at, kind(some(rng, depth - 1, with_fault), rng))
        else:
            parts.insert(at, with_fault)
    return parts


def _part(rng: random.Random, depth: int) -> nn.Module:
    if depth and rng.random() < 0.4:
        return rng.choice([Chain, Residual, Branches, Shared])(some(rng, depth - 1, None), rng)
    return rng.choice(LEAVES)()


def net(rng: random.Random, faulty: nn.Module | None) -> Chain:
    """Linear layers at both ends, so that there is always something to train."""
    kind = rng.choice([Chain, Residual])
    return kind([nn.Linear(WIDTH, WIDTH), *some(rng, 2, faulty), nn.Linear(WIDTH, WIDTH)], rng)
