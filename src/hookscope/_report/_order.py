"""The modules of a run: which there are, how they nest, and in which order they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .._core._site import MODULE_KINDS, PARAM_KINDS, ROOT, Site

if TYPE_CHECKING:
    from .._record import Run


@dataclass(slots=True)
class Branch:
    """A module while the tree is being put together: the columns of its own sites are looked up by the site's name."""

    path: str
    sites: list[Site] = field(default_factory=list)
    children: dict[str, Branch] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.rsplit(".", 1)[-1]

    @property
    def cls(self) -> str:
        return next((site.module_class for site in self.sites if site.module_class), "")

    def walk(self) -> Iterable[Branch]:
        """This module and all below it."""
        yield self
        for child in self.children.values():
            yield from child.walk()


def branches(sites: Sequence[Site]) -> Branch:
    """The tree of modules that these sites belong to; the containers between them are there too, with no sites."""
    root = Branch(ROOT)
    for site in sites:
        if site.kind in MODULE_KINDS or site.kind in PARAM_KINDS:
            _reach(root, site.full_module).sites.append(site)
    return root


def _reach(root: Branch, path: str) -> Branch:
    branch, trail = root, ""
    for part in () if path == ROOT else path.split("."):
        trail = f"{trail}.{part}" if trail else part
        branch = branch.children.setdefault(part, Branch(trail))
    return branch


def execution_order(run: Run) -> dict[int, int]:
    """Place in the order of execution at the first recorded step, by id of an output site."""
    if not len(run.steps):
        return {}
    first = int(run.steps[0])
    rows = run.table.overview(first, first)
    order: dict[int, int] = {}
    for site, seq in zip(rows.site.tolist(), rows.seq.tolist(), strict=True):
        if seq >= 0:
            order[site] = min(seq, order.get(site, seq))
    outputs = {site.id for site in run.sites if site.kind == "output"}
    return {site: seq for site, seq in order.items() if site in outputs}


def sort_by_execution(branch: Branch, order: dict[int, int]) -> float:
    """Put children in the order in which they run; one that never ran stays behind the sibling it was registered after."""
    previous, keys = -1.0, {}
    for name, child in branch.children.items():
        first = sort_by_execution(child, order)
        keys[name] = previous = previous if np.isinf(first) else first
    branch.children = dict(sorted(branch.children.items(), key=lambda item: keys[item[0]]))
    own = [order[site.id] for site in branch.sites if site.id in order]
    return min([*own, *(key for key in keys.values() if key >= 0)], default=np.inf)
