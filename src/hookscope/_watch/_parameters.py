"""Parameters, their gradients as the optimizer gets them, and what one step changed."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from .._core._site import Kind, Site
from .._core._stats import Rows
from .._stats import Marks, Row, marks_of, read_gradients
from .._taps._inventory import candidates, is_lazy, parameters, tensor_facts
from .._taps._parts import local
from ._clipping import Clip, clipping
from ._early import UNSEEN, Early
from ._gathered import Gathered
from ._prepared import Prepared
from ._sample import Sample
from ._store import Store, unscaled, unscaled_by
from ._table import SiteTable


@dataclass(slots=True)
class Watched:
    """One parameter: the numbers of its sites, and what its change is seen by."""

    ref: weakref.ref[nn.Parameter]
    site: Site  # as kind "param"; the others differ in kind and label alone
    full_path: str
    sample: Sample
    order: int  # among all parameters that are watched
    scale: float = 1.0  # the factor on the loss whose backward gave its gradient
    numbers: dict[str, int] = field(default_factory=dict)  # by kind, or by "early" for its label
    rows: dict[str, Row] = field(default_factory=dict)


class Parameters:
    """`full` follows every element's change instead of a sample; it costs a copy of the weights. `foreign` are the models that are not to
    be touched now, since another thread is training them.
    """

    def __init__(self, table: SiteTable, store: Store, *, full: bool, foreign: Collection[str] = ()) -> None:
        self.table = table
        self.store = store
        self.full = full
        self.foreign = foreign
        self._by_id: dict[int, Watched] = {}
        self.known = 0  # how many there ever were: a new one may have the id of one that is gone
        self._blocks: list[tuple[list[int], Rows]] = []  # sites and rows since the last fold
        self.early = Early()
        self._scaled = False
        self._prepared = Prepared()
        self._latest: dict[Kind, Rows] = {}  # count and sum of squares, by the order of the parameters

    def attach(self, model: nn.Module, name: str) -> None:
        """Know the parameters of `model`; again after its tree has changed."""
        sites = {site.path: site for site in candidates(model, name) if site.kind == "param"}
        for named in parameters(model):
            if self.get(named.parameter) is None:
                site = sites[named.path]
                self._by_id[id(named.parameter)] = Watched(
                    weakref.ref(named.parameter), site, site.full_path, Sample(full=self.full), self.known
                )
                self.known += 1
                self._prepared.forget()

    def get(self, parameter: nn.Parameter) -> Watched | None:
        """What is known of `parameter`, if it is watched."""
        found = self._by_id.get(id(parameter))
        return found if found is not None and found.ref() is parameter else None

    def __len__(self) -> int:
        return len(self._by_id)

    def names(self, wanted: Iterable[nn.Parameter]) -> frozenset[str]:
        """Their full paths, which a parameter shares with the one whose place it has taken."""
        return frozenset(self._by_id[id(parameter)].full_path for parameter in wanted)

    def references(self) -> list[weakref.ref[nn.Parameter]]:
        """To all watched parameters that still exist."""
        return [watched.ref for watched in self._by_id.values() if watched.ref() is not None]

    def among(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Those of them that are watched."""
        known = self._by_id
        return [p for p in parameters if (found := known.get(id(p))) is not None and found.ref() is p]

    def alive(self) -> list[nn.Parameter]:
        """All watched parameters that still exist, and may be touched."""
        touchable = [w for w in self._by_id.values() if w.site.model not in self.foreign] if self.foreign else self._by_id.values()
        return [p for watched in touchable if (p := watched.ref()) is not None]

    def read_values(self, wanted: Sequence[nn.Parameter]) -> None:
        """Stats of the parameters as they are now, which `read_updates` will compare with."""
        if self._read_as_ever("param", wanted):
            return
        gathered = Gathered(self.store)
        read = []
        for parameter in wanted:
            if not _is_lazy(parameter):
                watched = self._by_id[id(parameter)]
                number, before = self._number(watched, parameter, "param"), watched.sample.before
                taken = watched.sample.keep(parameter, gathered.batch)
                if watched.sample.before is not before:
                    self._prepared.forget()
                if taken:
                    gathered.numbers.append(number)
                    read.append(watched.order)
                elif number >= 0 and gathered.add(number, parameter, watched.rows, "param"):
                    read.append(watched.order)
        self._put("param", read, gathered)
        self._learn("param", wanted, read, gathered.numbers)

    def read_updates(self, wanted: Sequence[nn.Parameter]) -> None:
        """Stats of what has changed since `read_values`."""
        if self._read_as_ever("update", wanted):
            return
        gathered = Gathered(self.store)
        read = []
        for parameter in wanted:
            watched = self._by_id[id(parameter)]
            if watched.sample.before is None or _is_lazy(parameter):
                continue
            if (number := self._number(watched, parameter, "update")) >= 0:
                if watched.sample.read_change(parameter, gathered.batch):
                    gathered.numbers.append(number)
                    read.append(watched.order)
                elif (change := watched.sample.change(parameter)) is not None and gathered.add(number, change, watched.rows, "update"):
                    read.append(watched.order)
        self._put("update", read, gathered)
        self._learn("update", wanted, read, gathered.numbers)

    def changed(self) -> bool:
        """Whether any remembered element is another one now. Waits for the device."""
        changes = (self._by_id[id(p)].sample.change(p) for p in self.alive() if not _is_lazy(p))
        return any(bool((change != 0).any()) for change in changes if change is not None)

    @property
    def scaled(self) -> bool:
        """Whether a loss has had a factor."""
        return self._scaled

    def gave(self, given: Iterable[nn.Parameter], scale: float) -> None:
        """A backward from a loss with the factor `scale` has given these their gradients."""
        if scale != 1.0 or self._scaled:
            self._scaled = True
            for parameter in given:
                self._by_id[id(parameter)].scale = scale

    def read_early(self, parameters: list[nn.Parameter], marks: Marks) -> None:
        """Look at these parameters' gradients when backward has ended, before the loop unscales and clips them."""
        found = read_gradients(parameters)
        rows, bad, squares = found.rows, found.bad, found.squares
        if found.refused:
            gathered = Gathered(self.store)
            for i in found.refused:
                if (grad := parameters[i].grad) is not None:
                    gathered.add(i, grad, self._by_id[id(parameters[i])].rows, "early")
            rows[gathered.numbers] = more = gathered.read()
            bad, squares = bad + gathered.total[0], squares + float(more[:, 5].sum())
        place = {id(p): i for i, p in enumerate(parameters)}
        self.early = Early(place, rows, marks, self._scales_of(parameters), bad, squares)

    def _scales_of(self, parameters: list[nn.Parameter]) -> NDArray[np.float64] | None:
        """The factors on the losses whose backward gave them their gradients; None if there are none."""
        return np.array([self._by_id[id(p)].scale for p in parameters]) if self._scaled else None

    def bad_early(self) -> bool:
        """Whether a gradient was not finite when it was looked at."""
        return self.early.bad > 0

    def forget_early(self) -> None:
        """The gradients looked at are no longer those before the next step."""
        self.early = UNSEEN

    def read_gradients(self, wanted: Iterable[nn.Parameter], scale: float = 1.0) -> Clip | None:
        """Stats of the gradients as they are now, `scale` taken out; one that is None leaves no row.

        Returns what the loop has done to them since backward ended, None where that is not known. If it has changed them, the stats of
        before are given too, as `param_grad/preclip`.
        """
        read = [p for p in wanted if p.grad is not None and not _is_lazy(p)]
        numbers = self._prepared.once(self._gradient_numbers, read)
        early = self.early.of(read)
        if early is not None and (early.scales == scale).all() and (early.marks[:, :2] == marks_of(read)[:, :2]).all():
            self._blocks.append((numbers, unscaled(early.rows, scale)))
            return Clip()
        gathered, watched = Gathered(self.store), [self._by_id[id(p)] for p in read]
        told = [gathered.add(i, p.grad, watched[i].rows, "param_grad") for i, p in enumerate(read) if p.grad is not None]
        order, rows = gathered.numbers, unscaled(gathered.read(), scale)
        self._blocks.append(([numbers[i] for i in order], rows))
        if early is None or not all(told):
            return None
        before = unscaled_by(early.rows[order], early.scales[order])
        clip = clipping(before, rows)
        bad_only_once = clip is None and (before[:, 1:3] != rows[:, 1:3]).any()
        if bad_only_once or (clip is not None and clip != Clip()):
            self._blocks.append(([self._number(watched[i], read[i], "param_grad", "preclip") for i in order], before))
        return clip

    def read_given(self, wanted: Iterable[nn.Parameter]) -> None:
        """Stats of gradients that no optimizer has come for: if untouched, they still have the factor with which they were given."""
        gathered, scales = Gathered(self.store), []
        for parameter in wanted:
            grad, watched = parameter.grad, self._by_id[id(parameter)]
            if grad is not None and not _is_lazy(parameter):
                number = self._number(watched, parameter, "param_grad")
                if number >= 0 and gathered.add(number, grad, watched.rows, "param_grad"):
                    scales.append(self.early.scale_of(parameter))
        self._blocks.append((gathered.numbers, unscaled_by(gathered.read(), scales)))

    def square_norms(self, parameters: Sequence[nn.Parameter], kind: Kind) -> NDArray[np.float64]:
        """Sums of squares of a kind as last read, extrapolated where only a sample was; NaN for a parameter of which it is not read."""
        norms = np.full(len(parameters), np.nan)
        i, order, numel = self._prepared.once(self._places, parameters)
        if kind in self._latest and len(i):
            count, squares = self._latest[kind][order].T
            norms[i] = squares * numel / np.maximum(count, 1)
        return norms

    def fold(self) -> list[tuple[list[int], Rows]]:
        """Sites and rows written since the last fold, in blocks; a site of -1 is not wanted."""
        blocks, self._blocks = self._blocks, []
        return blocks

    def _gradient_numbers(self, of: Sequence[nn.Parameter]) -> list[int]:
        return [self._number(self._by_id[id(p)], p, "param_grad") for p in of]

    def _places(self, of: Sequence[nn.Parameter]) -> NDArray[np.intp]:
        """[3, n] of those of them that are watched: which they are, their order among all, their elements."""
        known = [(i, self._by_id[id(p)].order, p.numel()) for i, p in enumerate(of) if self.get(p) is not None]
        places: NDArray[np.intp] = np.array(known, np.intp).reshape(-1, 3).T
        return places

    def _read_as_ever(self, kind: Kind, wanted: Sequence[nn.Parameter]) -> bool:
        found = self._prepared.read(kind, wanted)
        if found is not None:
            self._set(kind, found[0].order, found[0].numbers, found[1])
        return found is not None

    def _learn(self, kind: Kind, wanted: Sequence[nn.Parameter], read: list[int], numbers: list[int]) -> None:
        samples = [self._by_id[id(p)].sample.kept for p in wanted if type(p) is nn.Parameter]
        known = [sample for sample in samples if sample is not None]
        if wanted and len(known) == len(read) == len(wanted):
            self._prepared.learn(kind, wanted, (numbers, read), known)

    def _put(self, kind: Kind, read: list[int], gathered: Gathered) -> None:
        self._set(kind, read, gathered.numbers, gathered.read())

    def _set(self, kind: Kind, read: list[int] | NDArray[np.intp], numbers: list[int], rows: Rows) -> None:
        self._blocks.append((numbers, rows))
        latest = self._latest.get(kind)
        if latest is None or len(latest) < self.known:
            self._latest[kind] = latest = np.full((self.known, 2), np.nan)
        latest[read] = rows[:, 0:6:5]  # count, squares

    def _number(self, watched: Watched, parameter: nn.Parameter, kind: Kind, label: str = "") -> int:
        found = watched.numbers.get(label or kind)
        if found is None:
            before = watched.sample.before
            sampled = before.numel() if kind == "update" and before is not None and before.numel() < local(parameter).numel() else None
            facts = tensor_facts(parameter)
            if (
                watched.site.held is not None and "held" not in facts
            ):  # cut out of a flattened tensor: it does not know of what it is a part
                facts |= {"shape": watched.site.shape, "numel": watched.site.numel}
            site = replace(watched.site, kind=kind, label=label, sampled=sampled, **facts)
            watched.numbers[label or kind] = found = self.table.add(site)
        return found


def _is_lazy(parameter: nn.Parameter) -> bool:
    return type(parameter) is not nn.Parameter and is_lazy(parameter)
