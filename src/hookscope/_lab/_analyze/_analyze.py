"""`analyze`: one pass over data, and what it says about every unit and layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..._core._errors import AttachError, UsageError
from ..._core._select import Selectable, select_sites
from ..._core._select import select as selected
from ..._taps._inventory import candidates
from .._batch import Forward
from ._activation import kind
from ._analysis import Analysis
from ._axes import stated
from ._layer import After, Layer
from ._pass import Options, Pass
from ._trail import Place


def analyze(  # noqa: PLR0913  # each says one thing about the pass, and all but two have a default that fits
    model: nn.Module,
    loader: Any,
    select: Selectable = "**",
    *,
    forward: Forward | None = None,
    mask: str | Callable[[Any], torch.Tensor | None] | bool | None = None,
    dim: int | Mapping[Any, int] | None = None,
    spectrum: bool = True,
    attention: bool = True,
    train: bool = False,
) -> Analysis:
    """Dead, dormant and saturated units, rank, outliers, headroom and attention of every layer, in one pass over data.

    `loader` gives batches; a tensor, tuple or dict by itself is one batch. The model is given what `extract` gives it of each, without
    labels; `forward`, a function of the model and a batch, says otherwise: `lambda model, batch: model(batch["image"])`. `select` chooses
    modules, in the language of `hs.select`; only outputs are read.

    A unit is a channel behind convolutions, batch norms and pooling, an entry of the last dimension behind linear layers, embeddings, other
    norms and recurrent layers; other modules go by the layer before them if they return as many dimensions. `dim=` states the dimension,
    for all or as `{selection: dimension}`. Every position, pixel or token is a sample. Padding is left out: `mask` is the key of a dict
    batch or a function of the batch that gives a tensor (batch, time), not 0 where a position counts; None takes a dict's
    `attention_mask` where there is one, False takes none. Values are read when they are made, so layers that write in place later do no
    harm.

    Calls of a module with parameters are taken together. One without, as a ReLU used in three places, gets a row for each (`act`, `act@1`).
    `spectrum=False` leaves out the second moments, which cost most; they are exact up to 2,048 units, beyond that of a random
    projection to 512. `attention=False` leaves attention alone, whose logits are otherwise computed once more.

    The model runs in evaluation mode, or with `train=True` in the mode it is in, without gradients. Modes, buffers and torch's random state
    are afterwards what they were, and hooks are taken off, whatever happens. Compiled models run uncompiled meanwhile.

    Not seen: what a module computes inside itself; activations that are functions (their effect is seen in the next module's output);
    attention in fused kernels other than `scaled_dot_product_attention`, for which a listener stands in while the pass runs.

    Raises `SelectionError` where nothing matches, `UsageError` for an empty loader or where no selected module gave anything to read.

    >>> import torch
    >>> from torch import nn
    >>> import hookscope as hs
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> analysis = hs.analyze(model, [torch.randn(32, 4), torch.randn(16, 4)])
    >>> [layer.name for layer in analysis], analysis["1"].positions, round(analysis["0"].effective_rank) <= 4
    (['0', '1', '2', '(root)'], 48, True)
    """
    if not isinstance(model, nn.Module):
        raise AttachError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    sites = list(candidates(model))
    chosen = select_sites(sites, select, kinds=("output",), leaves=False)
    if other := next((site for site in chosen if site.kind != "output"), None):
        raise UsageError(f"the selection means {other.name!r}, and only outputs are analyzed: leave out ':{other.kind}'")
    matcher = selected(select).among(sites, kinds=("output",))
    reading = Pass(model, Options(matcher, stated(dim, sites), mask, spectrum, attention))
    reading.run(loader, forward, as_is=train)
    for site in chosen:
        holds_only = type(reading.modules[site.path].module).forward is nn.Module.forward  # a list of modules: nobody can call it
        if site.path not in reading.called and not holds_only:
            reading.blind[site.path] = "it never ran"
    layers = tuple(_layers(reading))
    if not layers:
        whys = "; ".join(f"{name or '(root)'}: {why}" for name, why in list(reading.blind.items())[:3])
        raise UsageError(f"no selected module gave anything to read ({whys or 'nothing but scalars or empty tensors'})")
    return Analysis(layers, dict(reading.attending.found), dict(reading.blind), reading.batches, type(model).__name__)


def _layers(reading: Pass) -> list[Layer]:
    made: dict[Place, Layer] = {}
    for place in reading.wanted:
        source = reading.alias.get(place, place)
        if source in reading.meters and place.path + place.leaf not in reading.blind:
            made[place] = _layer(reading, place, source)
    return list(made.values())


def _layer(reading: Pass, place: Place, source: Place) -> Layer:
    meter, module = reading.meters[source], reading.modules[place.path].module
    activation = _activation(reading, source)
    after, behind = None, meter
    if activation is not None and reading.meters[activation].units.units == meter.units.units:
        behind = reading.meters[activation]
        after = After(written(activation), kind(reading.modules[activation.path].module), behind.units.stats())
    return Layer(
        name=written(place),
        path=place.path,
        cls=type(module).__name__,
        kind=kind(module),
        stats=meter.units.stats(),
        massive=meter.massive,
        bounded=behind.bounded,
        moment=None if meter.moment is None else meter.moment.moment(),
        after=after,
        same_as=written(source) if source != place else None,
    )


def _activation(reading: Pass, place: Place) -> Place | None:
    """The activation that this place's tensor goes into, directly or through layers that keep its units."""
    passed = {place}
    while (following := reading.next.get(place)) is not None and following not in passed:
        if kind(reading.modules[following.path].module) != "other" and following in reading.meters:
            return following
        passed.add(following)
        place = following
    return None


def written(place: Place) -> str:
    """The name of a place: `encoder.0`, `lstm[1][0]`, `act@1`; `(root)` for the model itself."""
    return f"{place.path or '(root)'}{place.leaf}{f'@{place.call}' if place.call else ''}"
