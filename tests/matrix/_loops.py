"""The training loop that a cell describes, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ._cells import Cell

STEPS = 4
OVERFLOWS = 2  # the step whose gradients are not finite, where there is a scaler to skip it
RATE, DECAY = 0.01, 0.1
MAX_NORM, MAX_VALUE = 0.02, 0.004  # small enough that something is always clipped

AROUND: dict[str, Callable[..., torch.Tensor]] = {
    "none": lambda block, x: block(x),
    "re-entrant": partial(checkpoint, use_reentrant=True),
    "non-reentrant": partial(checkpoint, use_reentrant=False),
}
DECAYING = frozenset({"SGD", "AdamW", "RAdam", "Adafactor", "Muon"})  # those below whose decay is a part of the update of its own
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, weight_decay=DECAY),
    "momentum": partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=DECAY),
    "AdamW": partial(torch.optim.AdamW, weight_decay=DECAY),
    "Adam": partial(torch.optim.Adam, weight_decay=DECAY),
    "RAdam": partial(torch.optim.RAdam, weight_decay=DECAY, decoupled_weight_decay=True),
    "Adafactor": partial(torch.optim.Adafactor, weight_decay=DECAY),
    "Muon": partial(torch.optim.Muon, weight_decay=DECAY),
    "LBFGS": partial(torch.optim.LBFGS, max_iter=2),
}


class Net(nn.Module):
    """Its middle part is what gets checkpointed."""

    def __init__(self, around: Callable[..., torch.Tensor], *, bias: bool) -> None:
        super().__init__()
        self.around = around
        self.first, self.last = nn.Linear(4, 6, bias=bias), nn.Linear(6, 2, bias=bias)
        self.middle = nn.Sequential(nn.Linear(6, 6, bias=bias), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.around(self.middle, self.first(x).relu()))


class Onlooker:
    """Is told what the loop does, at the places where one would put a print; does nothing."""

    def begins(self, loop: Loop) -> None:
        """A step."""

    def backward_done(self, loss: torch.Tensor, scale: float) -> None:
        """`scale` is the factor on the loss."""

    def accumulated(self, scale: float) -> None:
        """The gradients, still multiplied by `scale`, are complete and not clipped."""

    def ready(self, scale: float) -> None:
        """The optimizer is about to get them."""

    def ends(self) -> None:
        """The step is over."""


class Loop:
    """A model in training, from a fixed seed. `forward` may be written by hand; the model's own one is the default."""

    def __init__(self, cell: Cell, onlooker: Onlooker | None = None, *, around: str | None = None) -> None:
        torch.manual_seed(11)
        self.cell, self.onlooker = cell, onlooker or Onlooker()
        self.model = Net(AROUND[cell.checkpoint if around is None else around], bias=cell.optimizer != "Muon")
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.model
        self.optimizer = _optimizer(cell, list(self.model.parameters()))
        scaled = cell.scaler != "none"
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2) if scaled else None
        self.number = 0

    def train(self) -> Loop:
        for number in range(STEPS):
            self.number = number
            for group in self.optimizer.param_groups:
                group["lr"] = RATE * 0.9**number
            self.onlooker.begins(self)
            if self.cell.optimizer == "LBFGS":
                self.optimizer.step(self._gradients)  # type: ignore[arg-type]  # torch wants a float, LBFGS takes both
            else:
                self._gradients()
                self._step()
            self.onlooker.ends()
            if self.cell.zero_grad == "last":
                self._clear()
        return self

    def _clear(self) -> None:
        self.optimizer.zero_grad(set_to_none=self.cell.to_none)

    def _gradients(self) -> torch.Tensor:
        if self.cell.zero_grad == "first":
            self._clear()
        scale, loss = self.scaler.get_scale() if self.scaler is not None else 1.0, torch.zeros(())
        for micro in range(self.cell.accumulate):
            with self._autocast():
                output = self.forward(torch.randn(5, 4))
            loss = (output.float() - 1).square().mean() / self.cell.accumulate
            if self.scaler is not None and self.number == OVERFLOWS:
                loss = self._overflowing(loss)
            if self.cell.zero_grad == "before backward" and micro == 0:
                self._clear()
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            self.onlooker.backward_done(loss, scale)
        self.onlooker.accumulated(scale)
        self.onlooker.ready(self._clip(scale))
        return loss.detach()

    def _step(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def _autocast(self) -> AbstractContextManager[Any]:
        kinds = {"fp16": torch.float16, "bf16": torch.bfloat16}
        return torch.autocast("cpu", kinds[self.cell.scaler]) if self.scaler is not None else nullcontext()

    def _overflowing(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss stays finite. Half precision overflows on the way back; bfloat16 does not, so that a root at zero must do."""
        weight = self.model.last.weight
        return loss * 1e30 if self.cell.scaler == "fp16" else loss + (weight - weight.detach()).sum().sqrt()

    def _clip(self, scale: float) -> float:
        """Returns the factor that is left in the gradients."""
        if self.cell.clip == "none":
            return scale
        if self.cell.clip == "norm while scaled":
            nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM * scale)
            return scale
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.cell.clip == "norm":
            nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        else:
            nn.utils.clip_grad_value_(self.model.parameters(), MAX_VALUE)
        return 1.0

    def left_behind(self) -> list[tuple[str, bytes | str]]:
        """Parameters, gradients, the states of optimizer and scaler and of the random generator, bit for bit."""
        found = [(name, p.detach()) for name, p in self.model.named_parameters()]
        found += [(f"{name}.grad", p.grad) for name, p in self.model.named_parameters() if p.grad is not None]
        states = {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict() if self.scaler is not None else None}
        return list(_flat("", [found, states, torch.get_rng_state()]))


def _optimizer(cell: Cell, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    make = OPTIMIZERS.get(cell.optimizer) or getattr(torch.optim, cell.optimizer)
    if cell.optimizer in ("LBFGS", "Muon"):
        return make(parameters)
    how = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    return make(parameters, **how[cell.implementation])


def _flat(name: str, value: Any) -> Iterator[tuple[str, bytes | str]]:
    if isinstance(value, torch.Tensor):
        yield name, bytes(value.contiguous().reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, (dict, list, tuple)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(f"{name}.{key}", part)
    else:
        yield name, repr(value)
