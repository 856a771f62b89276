"""`extract`: the tensors inside a model for a batch, or for all batches of a loader."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal, overload

import torch
from torch import nn

from ..._core._errors import UsageError
from ..._core._select import Selectable
from ..._features import Features
from .._batch import Forward, is_loader, some
from ._extracted import Extracted
from ._extractor import Extractor
from ._key import Key
from ._options import Options
from ._pool import Pooling
from ._store import Store


@overload
def extract(  # each keyword is one decision about the tensors
    model: nn.Module,
    inputs: Any,
    select: Selectable,
    *,
    to: None = ...,
    call: int | Literal["all"] = ...,
    to_device: torch.device | str | None = ...,
    dtype: torch.dtype | str | None = ...,
    clone: bool | Literal["auto"] = ...,
    pool: Pooling | None = ...,
    stop: bool | Literal["auto"] = ...,
    grad: bool = ...,
    forward: Forward | None = ...,
) -> Extracted: ...
@overload
def extract(  # each keyword is one decision about the tensors
    model: nn.Module,
    inputs: Any,
    select: Selectable,
    *,
    to: str | os.PathLike[str] | Store,
    call: int | Literal["all"] = ...,
    to_device: torch.device | str | None = ...,
    dtype: torch.dtype | str | None = ...,
    clone: bool | Literal["auto"] = ...,
    pool: Pooling | None = ...,
    stop: bool | Literal["auto"] = ...,
    grad: bool = ...,
    forward: Forward | None = ...,
) -> Features: ...
def extract(  # noqa: PLR0913 # each keyword is one decision about the tensors
    model: nn.Module,
    inputs: Any,
    select: Selectable,
    *,
    to: str | os.PathLike[str] | Store | None = None,
    call: int | Literal["all"] = "all",
    to_device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    clone: bool | Literal["auto"] = "auto",
    pool: Pooling | None = None,
    stop: bool | Literal["auto"] = "auto",
    grad: bool = False,
    forward: Forward | None = None,
) -> Extracted | Features:
    """The tensors that flow inside `model` at the selected sites, as they were at the moment each was produced.

    `inputs` is one batch: a tensor is the one argument of the model, a tuple or list its positional arguments, a dict its keyword
    arguments; anything else, such as a `PackedSequence` or another namedtuple, is the one argument; a function without arguments is
    called. Or it is many batches, a `DataLoader` or a generator of such: then the tensors are joined along their first dimension, and what
    a batch has beside the inputs is left out: of a tuple or list the model is given as many elements as its forward has positional
    arguments without a default, at least one; of a dict the entries that it has arguments for.
    `forward`, a function of the model and a batch, says otherwise: `lambda model, batch: model(batch[0])`.

    `select` names the sites, as everywhere (see `select`): a path alone means the output of a module; `:input` its arguments,
    `:output/softmax` what the function of that name returns while the module runs, `:param` a parameter, `:output_grad` and `:param_grad`
    gradients, for which `inputs` or `forward` has to be a function that goes backward.

    - `call`: which call of a module that is called often, counted from 0; `"all"` for all.
    - `to_device`, `dtype`: where the tensors go, and as what floating-point dtype.
    - `pool`: one vector per sample instead of all positions: `"mean"`, `"max"`, `"cls"`, `"last"`, `"flatten"`, also with a layout,
      `"mean:NHWC"`; a `Pool`, which takes a mask; a function of a tensor; or a dict of these by selection.
    - `stop`: whether the forward ends once nothing wanted can come any more. `"auto"` does so in eval mode where every site asked for has
      come in the calls asked for, or came once in an earlier batch of the same shapes. True takes the first call of each site for its
      only one, in the first batch, too.
    - `clone`: False holds tensors without a copy; one that is overwritten is then an error. True and `"auto"` copy what is not new anyway.
    - `grad`: True keeps the graph of the tensors, False runs without.
    - `to`: a directory, or a `Store`, for the features of a whole dataset: the batches of a loader go through it one by one, each sample
      a row on disk. What was stopped goes on where it was when the same call is made again; see `Store` for ids, padding, formats.

    The model runs in the mode it is in. What is compiled runs eagerly meanwhile. Nothing stays on the model, whatever happens. Not seen:
    the inside of scripted modules, and a module that is called by `module.forward(...)`.

    Returns an `Extracted`, a mapping; with `to` the `Features` that are on disk. Raises `SelectionError` where a part of the selection
    matches no site or gave no tensor, `UsageError` for other wrong arguments, `AttachError` for what is no module, `FeaturesError` where
    the directory cannot be written to, or holds another extraction.

    >>> import torch
    >>> from torch import nn
    >>> import hookscope as hs
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    >>> _ = nn.init.eye_(model[0].weight), nn.init.zeros_(model[0].bias)
    >>> hs.extract(model, torch.tensor([[1.0, -1.0]]), "0")["0"]
    tensor([[ 1., -1.]])
    """
    options = Options(call=call, to_device=to_device, dtype=dtype, clone=clone, pool=pool, stop=stop, grad=grad, forward=forward)
    if to is not None:
        from ._stream import extract_to

        return extract_to(model, inputs, select, to=to, options=options)
    with Extractor(model, select, options) as extractor:
        if not is_loader(inputs):
            return Extracted(extractor.run(inputs))
        return Extracted(_joined(extractor, some(inputs)))


def _joined(extractor: Extractor, given: Iterator[Any]) -> dict[Key, torch.Tensor]:
    found: dict[Key, list[torch.Tensor]] = {}
    for count, batch in enumerate(given):
        for key, tensor in extractor.run(batch, alone=False).items():
            found.setdefault(key, []).append(tensor)
        if odd := next((key for key, parts in found.items() if len(parts) != count + 1), None):
            raise UsageError(
                f"{odd} was not there in every batch, so that samples would not line up: extract it batch by batch, or with call=0"
            )
    return {key: _concatenated(key, parts) for key, parts in found.items()}


def _concatenated(key: Key, parts: list[torch.Tensor]) -> torch.Tensor:
    if key.site.kind in ("param", "param_grad") and len(parts) > 1:
        raise UsageError(f"{key} has no samples that could be joined over batches: extract it by itself, from one batch")
    if not parts[0].dim() or any(part.shape[1:] != parts[0].shape[1:] for part in parts):
        shapes = ", ".join(str(tuple(shape)) for shape in dict.fromkeys(part.shape for part in parts[:8]))
        raise UsageError(
            f"{key} has the shapes {shapes} over the batches, which cannot be joined: pool it (pool='mean'), or stream it (to=...)"
        )
    return torch.cat(parts)
