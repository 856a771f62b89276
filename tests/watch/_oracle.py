"""An unwatched twin of a training, whose tensors are caught by hand, and what plain torch makes of them in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import hookscope as hs
from hookscope._core._stats import Stats
from hookscope._record import Run

WHOLE = -1  # micro of a row that belongs to the step as a whole
Key = tuple[int, int, str, int]  # step, micro, site, call
Forward = Callable[[Any, "Twin", Any], torch.Tensor]


def stats_of(tensor: torch.Tensor) -> Stats:
    """The eight stats by definition, in float64."""
    stored = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    x = (stored.to(torch.complex128).abs() if stored.is_complex() else stored.to(torch.float64)).flatten()
    finite, number = x[torch.isfinite(x)], x[~torch.isnan(x)]
    low, high = (number.min().item(), number.max().item()) if len(number) else (math.inf, -math.inf)
    counts = [float(len(x)), *(float(m.sum()) for m in (torch.isnan(x), torch.isinf(x), x == 0))]
    return Stats(*counts, finite.sum().item(), (finite * finite).sum().item(), low, high)


def recorded(run: Run, *, kinds: Sequence[str]) -> dict[Key, Stats]:
    """The rows of these kinds. None may be there twice."""
    found: dict[Key, Stats] = {}
    rows, sites = run.rows(), {site.id: site for site in run.sites}
    for step, micro, site, call, stats in zip(rows.step, rows.micro, rows.site, rows.call, rows.stats.tolist(), strict=True):
        if sites[site].kind in kinds and not sites[site].label:
            key = int(step), int(micro), sites[site].name, int(call)
            assert key not in found, f"{key} is recorded twice"
            found[key] = Stats(*stats)
    return found


def check(got: dict[Key, Stats], want: dict[Key, Stats]) -> None:
    """The same rows, no more and no less, with the same numbers."""
    assert sorted(got) == sorted(want)
    for key, expected in want.items():
        actual = got[key]
        assert actual[:4] == expected[:4], key
        size = math.sqrt(expected.sumsq * max(expected.count, 1.0))  # what cancels in a sum is at most this
        np.testing.assert_allclose(actual.sum, expected.sum, rtol=1e-6, atol=1e-6 * size, err_msg=str(key))
        np.testing.assert_allclose(actual[5:], expected[5:], rtol=1e-6, atol=1e-30, err_msg=str(key))


class Twin:
    """`see` notes an output of a module and gives back a stand-in to go on with, whose gradient is that of the output.

    The stand-in is a clone: what is done to it in place later does not reach the noted values.
    """

    def __init__(self) -> None:
        self.values: dict[tuple[str, int], torch.Tensor] = {}
        self.stand_ins: dict[tuple[str, int], torch.Tensor] = {}
        self._calls: dict[str, int] = {}

    def see(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Note the next call of the site `name`, such as `0:output` or `rnn:output[1][0]`."""
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        self.values[name, call] = value.detach().clone()
        if not value.requires_grad or value.grad_fn is None:
            return value
        stand_in = value.clone()
        stand_in.retain_grad()
        self.stand_ins[name.replace(":output", ":output_grad"), call] = stand_in
        return stand_in

    def rows(self, step: int, micro: int = 0) -> dict[Key, Stats]:
        """What should have been recorded of the outputs and of the gradients that arrived at them."""
        gradients = {key: tensor.grad for key, tensor in self.stand_ins.items() if tensor.grad is not None}
        return {(step, micro, name, call): stats_of(value) for (name, call), value in (self.values | gradients).items()}


def parameter_rows(model: nn.Module, step: int, before: dict[str, torch.Tensor]) -> dict[Key, Stats]:
    """Parameters as they were, gradients as they are after the step, and what the step has changed."""
    rows = {}
    for name, parameter in model.named_parameters():
        rows[step, WHOLE, f"{name}:param", 0] = stats_of(before[name])
        if parameter.grad is not None:
            rows[step, WHOLE, f"{name}:param_grad", 0] = stats_of(parameter.grad)
        if parameter.requires_grad:
            wide = torch.complex128 if parameter.is_complex() else torch.float64
            rows[step, WHOLE, f"{name}:update", 0] = stats_of(parameter.detach().to(wide) - before[name].to(wide))
    return rows


def copies(model: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters as they are now."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def squares(output: Any) -> torch.Tensor:
    """A loss in which every element of the output has a gradient of its own."""
    if isinstance(output, torch.Tensor):
        return (output.abs().float() if output.dtype.itemsize < 4 else output.abs()).square().mean()
    parts = output.values() if isinstance(output, dict) else output
    return sum((squares(part) for part in parts if part is not None), torch.zeros(()))


KINDS = ("input", "output", "output_grad", "loss", "param", "param_grad", "update")


def compare(model: nn.Module, by_hand: Forward, x: Any, *, steps: int = 2, loss: Callable[[Any], torch.Tensor] = squares) -> Run:
    """Train `model` under watch and its twin without, and compare every row. `by_hand(twin_model, twin, x)` is the forward."""
    twin_model = copy.deepcopy(model)
    optimizers = [torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1) for m in (model, twin_model)]
    with hs.watch(model, optimizers[0], updates="full") as watched:
        for _ in range(steps):
            optimizers[0].zero_grad()
            loss(model(x)).backward()
            optimizers[0].step()
    want: dict[Key, Stats] = {}
    for step in range(steps):
        twin, before = Twin(), copies(twin_model)
        optimizers[1].zero_grad()
        value = loss(by_hand(twin_model, twin, x))
        value.backward()
        optimizers[1].step()
        want |= twin.rows(step) | parameter_rows(twin_model, step, before)
        want[step, 0, "loss", 0] = stats_of(value)
        want[step, 0, "(root):input", 0] = stats_of(x)
    check(recorded(watched.run, kinds=KINDS), want)
    assert watched.findings == ()
    assert [event["event"] for event in watched.run.events if event["event"] not in ("never_fired", "closed")] == []
    return watched.run
