"""`diff`: two models on one batch, and the module at which they first part."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..._core._errors import UsageError
from ..._origin._forward import Randomness
from ..._taps._leaves import leaves
from .._batch import first
from ._book import Book
from ._comparison import Comparison
from ._gradients import GradientEar
from ._listen import Heard, listening
from ._outputs import Known, compare
from ._pairing import Map, given
from ._parameters import compare_parameters
from ._proposal import propose
from ._recorder import gradients, on_gradients, record
from ._reference import read_reference
from ._row import SiteDifference, Status
from ._running import Loss, Side, untouched
from ._shapes import Shapes
from ._store import Store
from ._tolerance import Tol, checked
from ._verdict import Found, judge
from ._walk import Walker, beyond


def diff(  # noqa: PLR0913  # two sides, what they run on, and what is to be taken for the same
    model_a: nn.Module | str | os.PathLike[str],
    model_b: nn.Module,
    batch: Any,
    *,
    map: Map | None = None,  # noqa: A002  # what it is called in every sentence about it
    tol: Tol = "auto",
    loss_fn: Loss | None = None,
    batch_b: Any = None,
) -> Comparison:
    """Run two models on one batch and name the module at which they first part, and why.

    `batch` is given to each model as `extract` gives it, labels left out; of a loader the first batch is taken. `batch_b` is for a second
    model that takes the same in another form. Both sides begin with the same random state and run in the mode they are in. `model_a` may be
    a folder that `record_reference` wrote, in another process, on another device, by another version.

    A module's error is *inherited* where b's module, given a's inputs, gives a's outputs, and *added* where it does not: to find out, b's
    modules are run again on a's inputs (foreign hooks on them fire then, too). A difference is rounding up to `tol`, a relative L2 error;
    "auto" takes it from the dtypes of both sides and the number of operations, and where that is exceeded, from the rounding error that
    the module shows against itself in float64. NaN at the same places is equal, NaN on one side a divergence.

    `map` says which module of a is which of b, where names differ: a path stands for all below it, `*` for a part of a path, a tuple for
    modules that together do the work of one (their outputs are joined along the last axis), None leaves out. What it does not name is
    proposed: by weights, names, content, order. `loss_fn(model, batch)` returns a loss: then the gradients are compared, too.

    Side a's tensors lie in a temporary folder meanwhile: in memory is one site at a time, and as many more as modules are nested. Compiled
    models are compared through their original modules, and what the compiler made of them by the outputs of the whole. Nothing of either
    model is changed. Raises `UsageError` for a batch that a model cannot take, a name that is in neither, or no common sites.

    >>> import torch, hookscope as hs
    >>> a = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU())
    >>> b = torch.nn.Sequential(a[0], a[1], torch.nn.GELU(approximate="tanh"))
    >>> found = hs.diff(a, b, torch.randn(8, 4))
    >>> bool(found), found.first.name, found.first.likely[0]
    (False, '2', "approximate is 'none' in a and 'tanh' in b")
    """
    tol = checked(tol)
    turned = batch_b is not None
    batch, alone = first(batch)
    batch_b, alone_b = first(batch_b) if turned else (batch, alone)
    right = Side("model_b", model_b, batch_b, loss_fn, alone_b)
    with tempfile.TemporaryDirectory(prefix="hookscope-diff-") as folder:
        if isinstance(model_a, (str, os.PathLike)):
            left = None
            book, store, randomness = read_reference(Path(model_a))
        else:
            left = Side("model_a", model_a, batch, loss_fn, alone)
            store, randomness = Store(Path(folder)), Randomness.now()
            book = record(left, store, randomness)
        return _compare(book, store, right, _Asked(randomness, tol, map or {}, left, turned=turned))


@dataclass(frozen=True, slots=True)
class _Asked:
    """The rest of the question. `turned`: the sides take their batches in forms of their own."""

    randomness: Randomness
    tol: Tol
    map: Map
    left: Side | None
    turned: bool


def _compare(book: Book, store: Store, right: Side, asked: _Asked) -> Comparison:
    randomness, tol, wanted, left = asked.randomness, asked.tol, asked.map, asked.left
    other = record(right, Shapes(), randomness)
    pairs = propose(book, other, given(wanted, tuple(book.modules), tuple(other.modules)))
    if not pairs.found:
        raise UsageError(f"no common sites: a's modules are {list(book.fired)[:6]}, b's {list(other.fired)[:6]}; name pairs with map=")
    parameters = compare_parameters(book, other, right.inner, pairs)
    walker = Walker.of(book, store, tol, pairs)
    walker.turned = asked.turned
    grads = GradientEar(book, store, tol, pairs)
    with untouched(right.inner, randomness), listening(right.inner, _Both(walker, grads)):
        result = right.run()
        if right.loss_fn is not None and (book.grads or left is not None):  # a reference without any was made without a loss
            grads.parameters(gradients(right, result), parameters)
    rows = sorted(walker.rows, key=lambda row: row.left)
    rows += _compiled(rows, book, store, [side for side in (left, right) if side is not None], randomness)
    found = Found(book, other, pairs, tuple(rows), tuple(parameters), tuple(grads.rows), walker.digests)
    verdict, first, agrees = judge(found)
    if first is not None:
        rows = [first if row.a == first.a and row.call == first.call and row.b == first.b else row for row in rows]
    notes = tuple(_notes(found, walker))
    return Comparison(verdict, first, tuple(rows), tuple(parameters), tuple(grads.rows), pairs.as_map(), notes, agrees)


class _Both:
    """Compares outputs at once, and gradients when they come."""

    def __init__(self, walker: Walker, grads: GradientEar) -> None:
        self.walker, self.grads = walker, grads

    @property
    def deaf(self) -> bool:
        """Whether the walker runs modules of its own."""
        return self.walker.deaf

    @deaf.setter
    def deaf(self, value: bool) -> None:
        self.walker.deaf = value

    def entering(self, heard: Heard) -> None:
        self.walker.entering(heard)

    def leaving(self, heard: Heard, output: Any) -> None:
        self.walker.leaving(heard, output)
        on_gradients((heard.path, heard.call), output, self.grads.output)


def _compiled(rows: list[SiteDifference], book: Book, store: Store, sides: list[Side], randomness: Randomness) -> list[SiteDifference]:
    """The outputs of compiled models, as compiled, against those of side a's original modules."""
    root = next((row for row in rows if row.a == "(root)" and row.call == 0), None)
    found = []
    for side in sides:
        shown = root is not None and (side.name == "model_a" or root.status in ("equal", "rounding"))
        if root is None or not shown or not side.compiled or side.loss_fn is not None:
            continue
        with untouched(side.inner, randomness):
            output = side.run(eager=False)
        far = compare([Known(p) for p in book.calls["", 0].outputs], leaves(output), store).distance
        if far is not None:
            status: Status = "equal" if far.exact else "added" if beyond(far, root.limit) else "rounding"
            likely = ("the compiler: the same modules, run eagerly, agree",) if status == "added" else ()
            name = f"{side.name}, compiled"
            found.append(replace(root, b=name, total=far, added=far, status=status, likely=likely, left=root.left + 1))
    return found


def _notes(found: Found, walker: Walker) -> list[str]:
    notes = []
    for book, used, names in ((found.a, found.pairs.used_a, "ab"), (found.b, found.pairs.used_b, "ba")):
        lone = [path for path in book.fired if path not in used]
        if lone:
            more = f" and {len(lone) - 6} more" if len(lone) > 6 else ""
            notes.append(f"not compared, without a partner in {names[1]}: {', '.join(lone[:6])}{more}")
        if book.facts.get("compiled"):
            notes.append(f"{names[0]} is compiled: its inner sites are those of its original modules, run eagerly")
    guessed = [pair for pair in found.pairs.found.values() if pair.how not in ("name", "map", "root") and pair.a != pair.b]
    if guessed:
        shown = ", ".join(f"{' + '.join(p.a)} = {' + '.join(p.b)} (by {p.how})" for p in guessed[:3])
        notes.append(f"{len(guessed)} pairs were proposed, such as {shown}; see .map")
    if walker.missing:
        notes.append(f"{len(walker.missing)} calls of b have no counterpart, first {walker.missing[0][0]}@{walker.missing[0][1]}")
    if dropped := found.a.facts.get("tensors_not_kept"):
        notes.append(f"{dropped} tensors of the reference were over its budget: there, only hashes, norms and samples were compared")
    return notes
