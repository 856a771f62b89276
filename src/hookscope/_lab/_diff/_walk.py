"""Runs side b and compares every call, as it happens, with side a's book."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from ..._taps._leaves import call_leaves, leaves
from ._again import Leaves, Recipe
from ._book import Book, Called, Key
from ._layout import layouts
from ._layout import pairs as matched
from ._listen import Heard
from ._measure import Distance, distance
from ._outputs import Compared, Known, compare, is_number, joined
from ._pairing import Pair, Pairs
from ._patterns import patterns
from ._prints import digest, plain
from ._row import SiteDifference, Status
from ._store import Store
from ._tolerance import EXACT, Limit, Tol, limit, unit, widened

PATTERNS = 6  # rows for which causes are sought: what comes after the first is mostly its echo


@dataclass(slots=True)
class Entered:
    """What is known when b's module is about to run. `recipe` is kept until it has run, `again` is what it gives on a's inputs."""

    calls: list[Called]
    inputs: Distance | None = None
    recipe: Recipe | None = None
    fed: dict[int, torch.Tensor] = field(default_factory=dict)
    again: Leaves | None = None
    note: str = ""
    shift: str = ""


@dataclass(slots=True)
class _Group:
    entered: list[Entered] = field(default_factory=list)
    outputs: list[Leaves] = field(default_factory=list)
    dtypes: set[str] = field(default_factory=set)
    terms: int = 1
    inside: int = 0
    digests: tuple[str, ...] = ()


@dataclass(slots=True)
class Walker:
    """The ear on side b. `rows` are in order of completion; `missing` are calls that a has not made; `digests` those of b's outputs."""

    book: Book
    store: Store
    tol: Tol
    pair_of: dict[str, Pair]
    rows: list[SiteDifference] = field(default_factory=list)
    missing: list[Key] = field(default_factory=list)
    digests: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    open: dict[tuple[tuple[str, ...], int], _Group] = field(default_factory=dict)
    sought: int = 0
    turned: bool = False
    deaf: bool = False

    @classmethod
    def of(cls, book: Book, store: Store, tol: Tol, pairs: Pairs) -> Walker:
        """A walker for these pairs."""
        return cls(book, store, tol, {path: pair for pair in pairs.found.values() for path in pair.b})

    def entering(self, heard: Heard) -> None:
        pair = self.pair_of.get(heard.path)
        if pair is None:
            return
        calls = [self.book.calls.get((path, heard.call)) for path in pair.a]
        known = [call for call in calls if call is not None]
        if len(known) < len(calls):
            self.missing.append((heard.path, heard.call))
            return
        heard.note = self._entered(heard, known)

    def leaving(self, heard: Heard, output: Any) -> None:
        if not isinstance(heard.note, Entered):
            return
        pair = self.pair_of[heard.path]
        group = self.open.setdefault((pair.a, heard.call), _Group())
        group.entered.append(heard.note)
        group.outputs.append([(path, plain(tensor).clone()) for path, tensor in leaves(output)])
        group.inside += heard.inside + 1
        parameters = list(heard.module.parameters())
        tensors = [*parameters, *(t for _, t in group.outputs[-1]), *(t for _, t in call_leaves(heard.args, heard.kwargs))]
        group.dtypes |= {str(t.dtype).removeprefix("torch.") for t in tensors}
        group.terms = max(group.terms, _terms(heard.module))
        if len(group.outputs) == len(pair.b):
            del self.open[pair.a, heard.call]
            self._judge(pair, heard.call, group)

    def _entered(self, heard: Heard, calls: list[Called]) -> Entered:
        found = Entered(calls)
        try:
            found.recipe = Recipe.of(heard.module, heard.args, heard.kwargs)
        except Exception as problem:  # noqa: BLE001  # an argument that cannot be copied, whatever it raises, leaves `added` unknown
            found.note = f"an argument cannot be copied: {type(problem).__name__}"
        theirs, inputs = call_leaves(heard.args, heard.kwargs), calls[0].inputs
        if not theirs or not inputs:
            return found
        found.inputs, lost = self._inputs(found, theirs)
        if found.inputs is not None and not found.inputs.exact and found.recipe is not None:
            found.note = "side a's inputs were not kept" if lost else ""
            if not lost:
                self._again(found)
        return found

    def _inputs(self, found: Entered, theirs: Leaves) -> tuple[Distance | None, bool]:
        """How far the inputs are apart, each compared with its partner; and whether a tensor of side a is missing."""
        inputs = found.calls[0].inputs
        left = [(p.path, p.shape, is_number(p.dtype)) for p in inputs]
        right = [(path, tuple(t.shape), t.is_floating_point() or t.is_complex()) for path, t in theirs]
        worst, lost = None, False
        for i, j in matched(left, right):
            far = compare([Known(inputs[i])], [theirs[j]], self.store, turned=self.turned)
            tensor = self.store.get(inputs[i])
            lost = lost or tensor is None
            if tensor is not None:
                found.fed[j] = _laid(tensor, theirs[j][1], turned=self.turned)
                found.shift = found.shift or _shift(found.fed[j], theirs[j][1])
            if far.distance is not None and (worst is None or _worse(far.distance, worst)):
                worst = far.distance
        return worst, lost

    def _again(self, found: Entered, *, double: bool = False) -> Leaves | None:
        """b's module on a's inputs."""
        recipe, state = found.recipe, found.calls[0].state
        if recipe is None:
            return None
        self.deaf = True
        try:
            made = recipe.cook(found.fed, None if state is None else self.store.get(state), double=double)
        except Exception as problem:  # noqa: BLE001  # a's inputs may not fit: then what b adds stays unknown, and says so
            found.note = f"b's module cannot run on a's inputs: {type(problem).__name__}: {problem}".split("\n")[0][:120]
            return None
        finally:
            self.deaf = False
        if not double:
            found.again = made
        return made

    def _judge(self, pair: Pair, call: int, group: _Group) -> None:
        first = group.entered[0]
        ours = joined([c.outputs for c in first.calls], self.store)
        total = compare(ours, _joined(group.outputs), self.store, turned=self.turned)
        if total.distance is None and not total.mismatch:
            return
        same_inputs = first.inputs is None or first.inputs.exact
        given = total
        if not same_inputs:
            outputs = [e.again for e in group.entered]
            given = compare(ours, _joined([o for o in outputs if o]), self.store, turned=self.turned) if all(outputs) else Compared()
        key = pair.b[0], call
        self.digests[key] = tuple(digest(t) for _, t in _joined(group.outputs))
        bound = self._limit(group, given)
        status = _status(total, given, bound)
        likely: tuple[str, ...] = ()
        if status == "added":
            likely = self._likely(group, given, bound)
        calls = first.calls
        module = self.book.modules[pair.a[0]]
        note = first.note if given.distance is None else ""
        self.rows.append(
            SiteDifference(
                " + ".join(path or "(root)" for path in pair.a), " + ".join(path or "(root)" for path in pair.b), call, module.name, status,
                first.inputs, total.distance, given.distance, bound.value, bound.source, calls[0].entered, calls[-1].left,
                total.layout, total.mismatch or note, first.shift, likely,
            )
        )  # fmt: skip

    def _limit(self, group: _Group, given: Compared) -> Limit:
        """From the dtypes; where that does not suffice, from the rounding error of this module on these inputs."""
        calls = group.entered[0].calls
        dtypes = group.dtypes | {p.dtype for call in calls for p in (*call.inputs, *call.outputs)} | self._parameter_dtypes(calls)
        devices = self.book.facts.get("devices", ())
        inside = max(group.inside, sum(call.inside + 1 for call in calls))
        bound = limit(self.tol, unit(dtypes, devices), calls=inside, terms=group.terms)
        if bound.source == "given" or given.distance is None or not beyond(given.distance, bound.value):
            return bound
        error = self._rounding(group)
        own = unit(group.dtypes)
        return bound if error is None else widened(bound, error, own)

    def _parameter_dtypes(self, calls: list[Called]) -> set[str]:
        prefixes = tuple(call.path + "." if call.path else "" for call in calls)
        return {p.dtype for name, p in self.book.parameters.items() if name.startswith(prefixes)}

    def _rounding(self, group: _Group) -> float | None:
        """The relative error of b's module on a's inputs against itself in float64."""
        worst = 0.0
        for entered in group.entered:
            recipe = entered.recipe
            if recipe is None or not recipe.small or len(entered.fed) < min(len(recipe.inputs), 1):
                return None
            note = entered.note
            plain_, exact = entered.again or self._again(entered), self._again(entered, double=True)
            entered.note = note
            if not plain_ or not exact:
                return None
            for (_, rounded), (_, true) in zip(plain_, exact, strict=False):
                if rounded.is_floating_point() and rounded.shape == true.shape:
                    error = distance(plain(true), plain(rounded)).relative
                    worst = max(worst, error if math.isfinite(error) else 0.0)
        return worst

    def _likely(self, group: _Group, given: Compared, bound: Limit) -> tuple[str, ...]:
        far = given.distance
        found: list[str] = []
        if far is not None and far.only_a + far.only_b:
            sides = [f"{n:,} in {s}" for n, s in ((far.only_a, "a"), (far.only_b, "b")) if n]
            found.append(f"NaN or Inf on one side only: {' and '.join(sides)}")
        if given.a is not None and given.b is not None and self.sought < PATTERNS and given.a.is_floating_point():
            self.sought += 1
            inputs = self.store.get(group.entered[0].calls[0].inputs[0]) if group.entered[0].calls[0].inputs else None
            leaf = self.book.modules[group.entered[0].calls[0].path].leaf
            floating = inputs if inputs is not None and inputs.is_floating_point() and leaf else None
            found += patterns(given.a, given.b, floating, max(bound.unit, EXACT))
        return tuple(found)


def _terms(module: torch.nn.Module) -> int:
    """How many products the longest sum in it adds: all that a kernel of a convolution covers, else at most a matrix's longer side."""
    found = 1
    for part in module.modules():
        convolution = "conv" in type(part).__name__.lower() and type(part).__name__ != "Conv1D"  # transformers' Conv1D is a matrix
        for weight in part.parameters(recurse=False):
            if weight.dim() > 1:
                found = max(found, weight[0].numel() if convolution else max(weight.shape[-2:]))
    return found


def _worse(one: Distance, other: Distance) -> bool:
    return (one.only_a + one.only_b, one.relative) > (other.only_a + other.only_b, other.relative)


def _laid(tensor: torch.Tensor, like: torch.Tensor, *, turned: bool) -> torch.Tensor:
    """Side a's tensor in the layout of b's: where there are several, the one that is nearest to it."""
    tries = [value for _, value in layouts(tensor, tuple(like.shape), turned=turned)]
    values = plain(like).double()
    return min(tries, key=lambda t: float((t.double() - values).nan_to_num().norm())) if len(tries) > 1 else tries[0]


def _shift(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    """`b's are a's plus 1`: of positions or labels."""
    if ours.is_floating_point() or ours.dtype == torch.bool or ours.numel() < 2 or theirs.dtype == torch.bool:
        return ""
    apart = torch.unique(plain(theirs) - plain(ours))
    return f"b's are a's {'plus' if apart[0] > 0 else 'minus'} {abs(int(apart[0]))}" if len(apart) == 1 and apart[0] else ""


def _joined(outputs: list[Leaves]) -> Leaves:
    if len(outputs) == 1:
        return outputs[0]
    firsts = [leaves_[0][1] for leaves_ in outputs if leaves_]
    return [("", torch.cat([plain(t) for t in firsts], dim=-1))] if firsts else []


def beyond(far: Distance, bound: float) -> bool:
    """Whether a distance is more than that, or one of things that no limit allows."""
    return far.only_a + far.only_b > 0 or not far.relative <= bound


def _status(total: Compared, given: Compared, bound: Limit) -> Status:
    if given.mismatch or (given.distance is not None and beyond(given.distance, bound.value)):
        return "added"
    if total.distance is not None and total.distance.exact:
        return "equal"
    if total.distance is not None and not beyond(total.distance, bound.value):
        return "rounding"
    return "unknown" if given.distance is None else "inherited"
