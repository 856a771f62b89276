"""`capture`: the tensors inside a model while a loop of the user's own runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from ..._core._errors import HookscopeWarning
from ..._core._select import Selectable
from ._extracted import Extracted
from ._extractor import Extractor, check_intact
from ._options import Options
from ._pool import Pooling
from ._undelivered import complaints


@contextmanager
def capture(  # noqa: PLR0913 # each keyword is one decision about the tensors
    model: nn.Module,
    select: Selectable,
    *,
    call: int | Literal["all"] = "all",
    to_device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    clone: bool | Literal["auto"] = "auto",
    pool: Pooling | None = None,
    grad: bool = False,
) -> Iterator[Extracted]:
    """The tensors that flow inside `model` while the block runs: a loop of your own, a training, `model.generate(...)`.

    `select` and the keywords are those of `extract`; the model runs as you run it, and what it returns is yours. Calls are counted from the
    start of the block, so three steps give the calls 0 to 2 of a module. `:output_grad` is the gradient at what a module returned,
    `:param_grad` what has been accumulated in a parameter's `grad` after each backward, scaled as the loss was; `:param` the parameter at
    the start of the block. With `grad=True` the tensors keep their graph; to differentiate with respect to a tensor itself, ask for its
    `:output_grad` instead, since what is kept is a copy. A forward that activation checkpointing runs again is not counted again. What is
    compiled runs eagerly meanwhile.

    Every call is kept until the result is dropped: for a long loop pool them, or choose a call.

    Gives an `Extracted`, which fills while the block runs. What gave nothing is warned of at the end, and stands in its `missing`.

    >>> import torch
    >>> from torch import nn
    >>> import hookscope as hs
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> with hs.capture(model, ["0", "0:output_grad"]) as feats:
    ...     for _ in range(2):
    ...         model(torch.ones(4, 2)).sum().backward()
    >>> [str(key) for key in feats]
    ['0:output', '0:output_grad', '0:output#1', '0:output_grad#1']
    """
    options = Options(call=call, to_device=to_device, dtype=dtype, clone=clone, pool=pool, stop=False, grad=grad)
    with Extractor(model, select, options) as extractor:
        feats = Extracted()
        extractor.collector.found = feats._tensors
        extractor.hooks.begin()
        with extractor.hooks.functions():
            yield feats
        check_intact(extractor.collector.found, extractor.collector.versions)
        feats.missing = tuple(complaints(extractor.wanted, extractor.hooks, feats))
        for told in feats.missing:
            warnings.warn(told, HookscopeWarning, stacklevel=3)
