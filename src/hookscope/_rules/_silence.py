"""Why a module was silent: what the run's own rows say of one that no hook heard in the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from .._core._site import ROOT
from .._record import Run
from ._places import Place

Reason = str  # one of those below
FUNCTIONAL, BYPASSED, EVALUATED, UNUSED, FROZEN, UNKNOWN = "functional", "bypassed", "evaluated", "unused", "frozen", "unknown"


def named_in(run: Run, event: str) -> list[str]:
    """The modules of the last such event: of a resumed run each part tells its own, and only the last one has seen all."""
    found = [e["modules"] for e in run.events if e.get("event") == event and isinstance(e.get("modules"), list)]
    return [str(name) for name in found[-1]] if found else []


def topmost(names: Sequence[str]) -> list[str]:
    """Without those that lie inside another one of them."""
    among = set(names)
    return [name for name in names if not among.intersection(list(_outwards(name))[1:])]


class Evidence:
    """What the rows of a run say about each module and all that is inside it."""

    def __init__(self, run: Run) -> None:
        sites = run.sites
        graded = {s.full_path for s in sites if s.kind == "param_grad"}
        parameters = [s for s in sites if s.kind == "param"]
        self.fired = {s.full_module for s in sites if s.kind == "output" and not s.label}
        self.evaluated = {s.full_module for s in sites if s.kind == "output" and s.label == "eval"}
        self.fired_inside = _tally(self.fired)
        self.parameters = _tally(s.full_module for s in parameters)
        self.trainable = _tally(s.full_module for s in parameters if s.trainable is not False)
        self.graded = _tally(s.full_module for s in parameters if s.full_path in graded)
        self.elements: Counter[str] = Counter()
        for site in parameters:
            self.elements[site.full_module] += site.numel or 0
        self._classes = _classes(run)

    def reason(self, module: str) -> Reason | None:
        """Why it may have been silent; None where nothing was missed by it: it fired after all, or only passes its children on."""
        if module in self.fired or (self.fired_inside[module] and Place("", module, self._classes.get(module, ())).plain):
            return None
        reasons = (
            (module in self.evaluated, EVALUATED),
            (self.fired_inside[module], BYPASSED),
            (self.graded[module], FUNCTIONAL),
            (not self.graded[ROOT], UNKNOWN),  # no gradient was recorded anywhere, so that there is none here says nothing
            (self.trainable[module], UNUSED),
            (self.parameters[module], FROZEN),
        )
        return next((reason for holds, reason in reasons if holds), UNKNOWN)


def _classes(run: Run) -> dict[str, tuple[str, ...]]:
    events = [e for e in run.events if e.get("event") == "never_fired" and isinstance(e.get("classes"), list)]
    return {str(name): (str(kind),) for e in events for name, kind in zip(e["modules"], e["classes"], strict=False)}


def _tally(modules: Iterable[str]) -> Counter[str]:
    """How many of these lie in each module, at any depth."""
    return Counter(outer for module in modules for outer in _outwards(module))


def _outwards(module: str) -> Iterator[str]:
    """`a.b`, `a`, `(root)`."""
    path = "" if module == ROOT else module
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ROOT
