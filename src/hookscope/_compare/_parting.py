"""What comparing two runs gives: when and where they part, each site, and the settings that differ."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

FORMAT = 1
SHOWN = 20
WIDTH = 110
SIGNIFICANT = 3.0  # three standard deviations of a single step


@dataclass(frozen=True, slots=True)
class SiteChange:
    """One site in both runs.

    `first_step` is the first step at which any stat of it differs in any bit, None where none does; `a` and `b` are the medians of
    `quantity` over the common steps, `score` the median difference in units of the step-to-step variation within the runs.
    """

    site: str
    quantity: str
    first_step: int | None
    a: float
    b: float
    score: float
    note: str = ""

    @property
    def relative(self) -> float:
        """The difference of the medians over that of a."""
        return abs(self.b - self.a) / abs(self.a) if self.a else math.inf if self.b else 0.0


@dataclass(frozen=True, slots=True, repr=False)
class RunComparison:
    """Two runs, compared. It is true where both recorded the same steps and sites and nothing differs in any bit (times aside).

    `first_step` and `first_site` say where they part, in order of execution; `sites` are worst first. `settings` are the entries of
    run.json that differ, as name, a's, b's. `only_a` and `only_b` are sites that one run has alone, `steps` the steps both have,
    `steps_only_a` and `steps_only_b` how many one has alone, as where the other ended early.

    >>> RunComparison("a", "b", "equal", steps=5).same
    True
    """

    a: str
    b: str
    verdict: str
    steps: int
    first_step: int | None = None
    first_site: str | None = None
    sites: tuple[SiteChange, ...] = ()
    settings: tuple[tuple[str, Any, Any], ...] = ()
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    steps_only_a: int = 0
    steps_only_b: int = 0

    @property
    def same(self) -> bool:
        """Whether they are equal to the last bit in everything that both recorded, and recorded the same sites and steps."""
        alone = self.only_a or self.only_b or self.steps_only_a or self.steps_only_b
        return self.first_step is None and not alone

    @property
    def significant(self) -> tuple[SiteChange, ...]:
        """The sites that differ by more than three times their step-to-step variation."""
        return tuple(change for change in self.sites if change.score > SIGNIFICANT)

    def __bool__(self) -> bool:
        return self.same

    def __iter__(self) -> Iterator[SiteChange]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __repr__(self) -> str:
        return f"<hookscope comparison of {self.a} and {self.b}: {textwrap.shorten(self.verdict, 160, placeholder=' ...')}>"

    def __str__(self) -> str:
        lines = textwrap.wrap(self.verdict, WIDTH, break_on_hyphens=False)
        lines += [f"  {name}: {left!r} in a, {right!r} in b" for name, left, right in self.settings]
        for names, side in ((self.only_a, "a"), (self.only_b, "b")):
            if names:
                more = f" and {len(names) - 6} more" if len(names) > 6 else ""
                lines.append(f"  only in {side}: {', '.join(names[:6])}{more}")
        changed = [change for change in self.sites if change.first_step is not None]
        if changed:
            lines += ["", *_table(changed[:SHOWN])]
            lines += [f"  and {len(changed) - SHOWN} more sites that differ less"] if len(changed) > SHOWN else []
        return "\n".join(lines)

    def to_json(self, *, indent: int | None = 2) -> str:
        """Everything as strict JSON: format 1; NaN and Inf are written as text."""
        return json.dumps(_strict({"format": FORMAT, "same": self.same, **asdict(self)}), indent=indent, allow_nan=False, default=str)


def _table(changes: list[SiteChange]) -> list[str]:
    width = min(46, max(len(change.site) for change in changes))
    head = f"  {'site':<{width}}  {'quantity':<8} {'from step':>9} {'a':>9} {'b':>9} {'apart':>8} {'x noise':>8}"
    return [head, *(_line(change, width) for change in changes)]


def _line(change: SiteChange, width: int) -> str:
    name = change.site if len(change.site) <= width else "…" + change.site[1 - width :]
    score = f"{change.score:.1f}" if change.score < 1e5 else f"{change.score:.0e}"
    apart = "unknown" if math.isnan(change.relative) else f"{change.relative:.1e}"
    numbers = f"{change.first_step:>9,} {_number(change.a):>9} {_number(change.b):>9} {apart:>8} {score:>8}"
    return f"  {name:<{width}}  {change.quantity:<8} {numbers}  {change.note}".rstrip()


def _number(value: float) -> str:
    """A median over the finite values; there may have been none."""
    return "none" if math.isnan(value) else f"{value:.3g}"


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
