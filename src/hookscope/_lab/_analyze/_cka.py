"""`cka`: how alike the representations of layers are, of one model or two, in one shared pass.

Linear CKA (Kornblith et al., 2019) with the unbiased estimate HSIC_1 (Song et al., 2012) of each batch, averaged over batches before the
ratio is taken (Nguyen et al., 2021): it does not depend on the size of the batches, and needs no more memory than one batch by one batch
for each layer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..._core._errors import AttachError, SelectionError, UsageError
from ..._core._names import near
from ..._core._select import Matcher, Selectable, select_sites
from ..._core._select import select as selected
from ..._core._site import Site
from ..._taps._hook import Hook
from ..._taps._inventory import bases, candidates, modules
from ..._taps._leaves import leaves
from ..._taps._modes import unseen
from .._batch import Feed, Forward, batches, is_alone, some
from .._inner import running_eagerly
from .._turn import Turn
from .._unchanged import evaluating, unchanged
from ._mask import mask_of
from ._readable import readable

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
LEAST = 4  # samples that HSIC_1 needs


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    """`values[i, j]` is the similarity of layer `rows[i]` of the first model and `columns[j]` of the second (or the same one).

    1 where one is an orthogonal transform of the other, scaled and shifted; about 0 where they are unrelated, and slightly below at times,
    since the estimate is unbiased; NaN where a layer gave the same for every sample. `batches` were used; `skipped` had fewer than 4
    samples.

    >>> import torch
    >>> import hookscope as hs
    >>> found = hs.cka(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh()), torch.randn(64, 3), "*")
    >>> found.rows, round(found["0", "0"], 6)
    (('0', '1'), 1.0)
    """

    values: Floats
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    batches: int
    skipped: int = 0

    def __getitem__(self, pair: tuple[str, str]) -> float:
        """The similarity of two layers by name."""
        for name, known in zip(pair, (self.rows, self.columns), strict=True):
            if name not in known:
                raise SelectionError(
                    f"no layer {name!r} was compared: did you mean {' or '.join(near(name, known)) or ', '.join(known[:4])}?"
                )
        return float(self.values[self.rows.index(pair[0]), self.columns.index(pair[1])])

    def to_pandas(self) -> pd.DataFrame:
        """The matrix with names; needs pandas."""
        try:
            import pandas as pd
        except ImportError:
            raise UsageError("to_pandas needs pandas, which is not installed: pip install pandas") from None
        table: pd.DataFrame = pd.DataFrame(self.values, index=list(self.rows), columns=list(self.columns))
        return table

    def __str__(self) -> str:
        width = max(map(len, self.rows))
        numbers = [
            f"{name:<{width}} " + " ".join(f"{value:5.2f}" for value in row) for name, row in zip(self.rows, self.values, strict=True)
        ]
        columns = [f"{' ' * width} columns: {', '.join(self.columns)}"] if self.columns != self.rows else []
        return "\n".join([*numbers, *columns])


def cka(
    model: nn.Module,
    loader: Any,
    select: Selectable = "**",
    *,
    other: nn.Module | None = None,
    forward: Forward | None = None,
) -> Similarity:
    """Linear CKA between the selected layers of a model, or of it and an `other` one, over the samples of `loader`.

    Each batch goes through both models, so a loader that shuffles does no harm; the first dimension of an output has the samples, and all
    else is features (positions that a dict's `attention_mask` leaves out count as 0). `forward`, what a model is given of a batch, modes,
    buffers and random states as in `analyze`; `select` holds for both models. Batches of fewer than 4 samples are skipped; take large ones,
    64 and more, since small ones scatter. Of a module that runs several times in a forward, the first call counts. Layers whose first
    dimension is not the batch are left out.

    Raises `SelectionError` where nothing matches and `UsageError` where no batch has 4 samples or no layer could be read.

    >>> import torch
    >>> import hookscope as hs
    >>> model, other = torch.nn.Linear(4, 8), torch.nn.Linear(4, 8)
    >>> data = [torch.randn(32, 4) for _ in range(4)]
    >>> bool(0 < hs.cka(model, data, other=other)["(root)", "(root)"] < 1)
    True
    """
    models = [model] if other is None or other is model else [model, other]
    for one in models:
        if not isinstance(one, nn.Module):
            raise AttachError(f"model is a {type(one).__name__}, not a torch.nn.Module")
    sides, alone = [Side(one, select, forward) for one in models], is_alone(loader)
    totals: dict[tuple[int, str, int, str], list[float]] = {}
    used = skipped = 0
    with ExitStack() as undo:
        for side in sides:
            side.attach(undo)
        undo.enter_context(torch.no_grad())
        for batch in some(batches(loader)):
            grams = [side.grams(batch, alone=alone) for side in sides]
            n = max((len(g) for side in grams for g in side.values()), default=0)
            if n < LEAST:
                skipped += 1
                continue
            used += 1
            _add(totals, grams)
    if not used:
        raise UsageError(f"no batch had {LEAST} samples at any selected layer ({skipped} had fewer): CKA compares samples within a batch")
    return _ratio(totals, len(models), (used, skipped))


class Side:
    """One model, and the Gram matrices of its layers in the batch under way."""

    def __init__(self, model: nn.Module, selection: Selectable, forward: Forward | None) -> None:
        self.model, self._feed, self._turn = model, Feed(model, forward), Turn()
        sites = list(candidates(model))
        select_sites(sites, selection, kinds=("output",), leaves=False)
        self._matcher: Matcher = selected(selection).among(sites, kinds=("output",))
        self._grams: dict[str, torch.Tensor] = {}
        self._mask: torch.Tensor | None = None

    def attach(self, undo: ExitStack) -> None:
        """Place hooks, taken off when `undo` ends."""
        undo.enter_context(unchanged(self.model))
        undo.enter_context(evaluating(self.model))
        undo.enter_context(running_eagerly())
        for named in modules(self.model):
            undo.callback(named.module.register_forward_hook(Hook(self._listener(named.path, bases(named.module)))).remove)

    def grams(self, batch: Any, *, alone: bool) -> dict[str, torch.Tensor]:
        """Centred or not makes no difference to HSIC_1; the diagonals are 0 as it wants them."""
        self._grams, self._mask = {}, mask_of(batch, None)
        with self._turn:
            self._feed.run(batch, alone=alone)
        sizes = [len(gram) for gram in self._grams.values()]
        n = max(set(sizes), key=sizes.count) if sizes else 0  # the size of the batch is the one that most outputs have
        return {name: gram for name, gram in self._grams.items() if len(gram) == n}

    def _listener(self, path: str, classes: tuple[str, ...]) -> Callable[..., None]:
        def listen(_module: nn.Module, _args: Any, output: Any) -> None:
            if not self._turn.is_on():
                return
            with unseen(), torch._C.DisableTorchFunction():
                for leaf, tensor in leaves(output):
                    name = (path or "(root)") + leaf
                    site = Site(-1, path, "output", output_path=leaf, module=path, bases=classes)
                    if name not in self._grams and tensor.dim() and tensor.numel() and self._matcher.matches(site):
                        self._take(name, tensor)

        return listen

    def _take(self, name: str, tensor: torch.Tensor) -> None:
        values = readable(tensor)
        if isinstance(values, str):
            return
        if self._mask is not None and values.shape[:2] == self._mask.shape:
            values = values * self._mask.to(values.device).reshape(*self._mask.shape, *[1] * (values.dim() - 2))
        x = values.reshape(len(values), -1).double()
        self._grams[name] = (x - x.mean(0)) @ (x - x.mean(0)).T


def hsic1(k: torch.Tensor, l: torch.Tensor) -> float:  # noqa: E741  # K and L, as in the paper
    """The unbiased estimate of HSIC from two Gram matrices of n >= 4 samples: Song et al., 2012, equation 5."""
    n = len(k)
    k, l = (m - torch.diag(m.diagonal()) for m in (k, l))  # noqa: E741  # K and L, as in the paper
    ones = (k.sum() * l.sum()) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (k.sum(0) @ l.sum(0))
    return float(((k * l).sum() + ones) / (n * (n - 3)))


def _add(totals: dict[tuple[int, str, int, str], list[float]], grams: list[dict[str, torch.Tensor]]) -> None:
    named = [(side, name, gram) for side, found in enumerate(grams) for name, gram in found.items()]
    for i, (side, name, gram) in enumerate(named):
        for other_side, other_name, other in named[i:]:
            if len(gram) == len(other):
                totals.setdefault((side, name, other_side, other_name), []).append(hsic1(gram, other.to(gram.device)))


def _ratio(totals: dict[tuple[int, str, int, str], list[float]], sides: int, counted: tuple[int, int]) -> Similarity:
    mean = {key: sum(found) / len(found) for key, found in totals.items()}
    rows = [name for side, name, other, same in mean if side == other == 0 and name == same]
    columns = [name for side, name, other, same in mean if side == other == sides - 1 and name == same]
    values = np.full((len(rows), len(columns)), np.nan)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            key = (0, row, sides - 1, column)
            cross = mean.get(key, mean.get((sides - 1, column, 0, row), np.nan))
            scale = mean[0, row, 0, row] * mean[sides - 1, column, sides - 1, column]
            values[i, j] = cross / np.sqrt(scale) if scale > 0 else np.nan
    return Similarity(values, tuple(rows), tuple(columns), *counted)
