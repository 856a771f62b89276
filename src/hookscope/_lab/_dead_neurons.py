"""`diagnose_dead_neurons`: the function that hook tutorials teach, with its faults mended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from .._core._errors import AttachError, SelectionError, UsageError
from .._core._names import near
from .._taps._hook import Hook
from .._taps._inventory import modules
from .._taps._leaves import leaves
from ._batch import Feed
from ._unchanged import unchanged
from ._unit_axis import axis_of

_ACTIVATION = "torch.nn.modules.activation"


def diagnose_dead_neurons(
    model: nn.Module, sample_input: Any, layer_names: Sequence[str] | None = None, dead_threshold: float = 0.01
) -> dict[str, float]:
    """The share of dead units in each layer, in one forward over `sample_input`.

    A unit is dead where its mean magnitude over all samples and positions is at most `dead_threshold` times the layer's own mean
    magnitude, so a change of the layer's scale changes nothing; in a layer of zeros every unit is dead. A unit is a channel behind
    convolutions, batch norms and pooling, and an entry of the last dimension behind linear layers, layer norms, embeddings and
    recurrent layers; an activation goes by the layer before it.

    `sample_input` is a batch, as `extract` takes it; the more samples, the surer. `layer_names` are
    paths as in `named_modules()`; None means every layer without children that has parameters or is an activation. The forward runs in the
    mode the model is in, without gradients; buffers and the random state are put back, and hooks are taken off whatever happens.
    One batch shows what is dead on it: a unit that rests here may fire elsewhere.

    Returns `{layer: share}`, 0.0 to 1.0, in order of execution; a layer that did not run is left out. Raises `SelectionError` for an
    unknown layer and `UsageError` for a threshold outside 0 to 1. Source of the criterion: dormant neurons, Sokar et al., 2023.

    >>> import torch
    >>> from torch import nn
    >>> import hookscope as hs
    >>> layer = nn.Linear(3, 4)
    >>> layer.load_state_dict({"weight": torch.tensor([[1.0] * 3] * 2 + [[0.0] * 3] * 2), "bias": torch.zeros(4)})
    <All keys matched successfully>
    >>> hs.diagnose_dead_neurons(nn.Sequential(layer, nn.ReLU()), torch.ones(5, 3))
    {'0': 0.5, '1': 0.5}
    """
    if not isinstance(model, nn.Module):
        raise AttachError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    if not 0 <= dead_threshold < 1:
        raise UsageError(f"dead_threshold={dead_threshold!r} is no share of the layer's mean: give a number from 0 up to, not including, 1")
    units = _Units(wanted=_wanted(model, layer_names))
    with ExitStack() as undo:
        for named in modules(model):
            if next(named.module.children(), None) is None or named.path in units.wanted:
                undo.callback(named.module.register_forward_hook(Hook(units.listener(named.path))).remove)
        undo.enter_context(unchanged(model))
        undo.enter_context(torch.no_grad())
        Feed(model).run(sample_input)
    return {path: _dead(total / count, dead_threshold) for path, (total, count) in units.seen.items()}


class _Units:
    """Sums of magnitudes per unit, by layer; `axis` is where the units are in what the last layer returned."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self.wanted = wanted
        self.axis = -1
        self.seen: dict[str, tuple[torch.Tensor, int]] = {}

    def listener(self, path: str) -> Any:
        """The action of the hook on the layer at `path`."""

        def listen(module: nn.Module, _args: Any, output: Any) -> None:
            axis = axis_of(module, output)
            self.axis = self.axis if axis is None else axis
            if path in self.wanted:
                self._add(path, output)

        return listen

    def _add(self, path: str, output: Any) -> None:
        found = leaves(output)
        if not found or not found[0][1].is_floating_point() or found[0][1].dim() == 0:
            return
        magnitude = found[0][1].detach().abs().double()
        axis = -1 if magnitude.dim() < 2 else self.axis
        per_unit = magnitude.movedim(axis, 0).reshape(magnitude.shape[axis], -1)
        total, count = self.seen.pop(path, (torch.zeros(()), 0))  # popped, so that the order is that of the last call
        if per_unit.numel():
            self.seen[path] = total + per_unit.sum(1), count + per_unit.shape[1]


def _dead(mean: torch.Tensor, threshold: float) -> float:
    finite = mean[mean.isfinite()]  # one NaN or Inf must not decide about the other units
    return float((mean <= threshold * finite.mean()).double().mean())


def _wanted(model: nn.Module, layer_names: Sequence[str] | None) -> frozenset[str]:
    known = {named.path: named.module for named in modules(model)}
    if layer_names is None:
        leaf = {path: module for path, module in known.items() if next(module.children(), None) is None}
        return frozenset(
            path for path, module in leaf.items() if next(module.parameters(), None) is not None or type(module).__module__ == _ACTIVATION
        )
    for name in [layer_names] if isinstance(layer_names, str) else layer_names:
        if name not in known:
            hint = " or ".join(map(repr, near(name, known))) or "a path of named_modules()"
            raise SelectionError(f"no layer is called {name!r}: did you mean {hint}?")
    return frozenset([layer_names] if isinstance(layer_names, str) else layer_names)
