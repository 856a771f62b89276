"""The same loop without a watch and without checkpointing: every number caught by hand, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from hookscope._core._stats import Stats

from ._cells import Cell
from ._loops import Loop, Onlooker

Tensors = dict[str, torch.Tensor]
WHOLE = -1  # micro of a row of the step as a whole
Rows = dict[tuple[int, int, str], Stats]  # step, micro, site


@dataclass
class Step:
    """What happened in one step: by micro-batch, and by parameter."""

    rate: float
    values: Tensors
    losses: list[torch.Tensor] = field(default_factory=list)
    outputs: list[Tensors] = field(default_factory=list)
    output_grads: list[Tensors] = field(default_factory=list)
    accumulated: Tensors = field(default_factory=dict)
    used: Tensors = field(default_factory=dict)
    updates: Tensors = field(default_factory=dict)
    scale: float = 1.0

    @property
    def finite(self) -> bool:
        return all(bool(torch.isfinite(grad).all()) for grad in self.accumulated.values())


class Reference(Onlooker):
    """`steps` is what the loop did."""

    def __init__(self, cell: Cell) -> None:
        self.steps: list[Step] = []
        self._seen: Tensors = {}
        self.loop = Loop(cell, self, around="none")
        self.loop.forward = self.forward
        self.loop.train()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The model's forward, its submodules called one by one."""
        model, self._seen = self.loop.model, {"(root)": x}
        x = self._see("first", model.first(x)).relu()
        x = self._see("middle.1", model.middle[1](self._see("middle.0", model.middle[0](x))))
        self._seen["middle"] = x
        self._seen["(root)"] = x = self._see("last", model.last(x))
        return x

    def _see(self, name: str, output: torch.Tensor) -> torch.Tensor:
        output.retain_grad()
        self._seen[name] = output
        return output

    def begins(self, loop: Loop) -> None:
        self.steps.append(Step(loop.optimizer.param_groups[0]["lr"], self._now()))

    def backward_done(self, loss: torch.Tensor, scale: float) -> None:
        step = self.steps[-1]
        step.scale = scale
        step.losses.append(loss.detach().double())
        step.outputs.append({name: output.detach().double() for name, output in self._seen.items()})
        step.output_grads.append({name: output.grad.double() / scale for name, output in self._seen.items() if output.grad is not None})

    def accumulated(self, scale: float) -> None:
        self.steps[-1].accumulated = self._gradients(scale)

    def ready(self, scale: float) -> None:
        self.steps[-1].used = self._gradients(scale)

    def ends(self) -> None:
        self.steps[-1].updates = {name: value - self.steps[-1].values[name] for name, value in self._now().items()}

    def _now(self) -> Tensors:
        return {name: p.detach().double().clone() for name, p in self.loop.model.named_parameters()}

    def _gradients(self, scale: float) -> Tensors:
        return {name: p.grad.double() / scale for name, p in self.loop.model.named_parameters() if p.grad is not None}

    def rows(self, kind: str) -> Rows:
        """What should be recorded of one kind, in every step in which something should."""
        return {(number, micro, name): stats for number, step in enumerate(self.steps) for micro, name, stats in self._rows(step, kind)}

    def _rows(self, step: Step, kind: str) -> Iterator[tuple[int, str, Stats]]:
        micros = {"loss": [{"loss": loss} for loss in step.losses], "output": step.outputs, "output_grad": step.output_grads}
        for micro, tensors in enumerate(micros.get(kind, [])):
            yield from ((micro, name if kind == "loss" else f"{name}:{kind}", stats_of(tensor)) for name, tensor in tensors.items())
        wholes = {"param": step.values, "param_grad": step.used, "update": step.updates, "param_grad/preclip": self._preclip(step)}
        yield from ((WHOLE, f"{name}:{kind}", stats_of(tensor)) for name, tensor in wholes.get(kind, {}).items())

    def _preclip(self, step: Step) -> Tensors:
        """Told apart only where clipping has changed something: of gradients that are not finite, which elements those are."""
        hidden = not step.finite and self.loop.cell.optimizer != "LBFGS" and _nonfinite(step.accumulated) != _nonfinite(step.used)
        return step.accumulated if self.clipped(step) or hidden else {}

    def clipped(self, step: Step) -> bool:
        """A closure clips where no one can look before the optimizer does."""
        return self.loop.cell.clip != "none" and self.loop.cell.optimizer != "LBFGS" and step.finite


def _nonfinite(tensors: Tensors) -> list[tuple[int, int]]:
    return [(int(tensor.isnan().sum()), int(tensor.isinf().sum())) for tensor in tensors.values()]


def norm(tensors: Tensors) -> float:
    return math.sqrt(sum(float(tensor.square().sum()) for tensor in tensors.values()))


def stats_of(tensor: torch.Tensor) -> Stats:
    """The eight stats by definition."""
    x = tensor.flatten()
    finite, number = x[torch.isfinite(x)], x[~torch.isnan(x)]
    low, high = (number.min().item(), number.max().item()) if len(number) else (math.inf, -math.inf)
    counts = [float(len(x)), *(float(m.sum()) for m in (torch.isnan(x), torch.isinf(x), x == 0))]
    return Stats(*counts, finite.sum().item(), finite.square().sum().item(), low, high)
