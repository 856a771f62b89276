"""The view: everything a report shows, as plain data; every output (terminal, JSON, HTML) only lays it out.

A number is a `float`, with NaN and Inf meaning what they say; None means that nothing was recorded there.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._core._finding import Severity, Verdict

Number = float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """A series thinned for drawing: `heights` are the values on their own logarithmic scale, 0 at its foot and 1 at its top.

    A height of NaN marks a value that is not finite.
    """

    steps: tuple[int, ...]
    values: tuple[Number, ...]
    heights: tuple[Number, ...]


@dataclass(frozen=True, slots=True)
class FindingView:
    """One finding, numbered from 1 in causal order, its fields made into text."""

    number: int
    rule: str
    severity: Severity
    message: str
    where: str
    phase: str
    steps: str
    module: str | None = None
    source: str | None = None
    evidence: tuple[tuple[str, str], ...] = ()
    causes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    explains: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModuleView:
    """A module and what was last seen there.

    `output_rms` is the root mean square of its output; `grad_norm` the l2 norm of the gradient over all parameters in it and below it,
    as the optimizer was given it, and `gradient` that norm over the steps; `update_ratio` the l2 norm of the last update over that of
    the same parameters. `marks` are the numbers of the findings that name this module; `fired` is False where the run says that it
    never ran. `size` counts the modules this row stands for: more than one where like siblings were folded (then numbers are medians).
    """

    name: str
    path: str
    cls: str = ""
    shape: tuple[int, ...] | None = None
    output_rms: Number = None
    grad_norm: Number = None
    update_ratio: Number = None
    gradient: Curve | None = None
    fired: bool = True
    marks: tuple[int, ...] = ()
    worst: Severity | None = None
    size: int = 1
    children: tuple[ModuleView, ...] = ()


@dataclass(frozen=True, slots=True)
class DepthView:
    """The rms of the gradient at the output of each leaf module, in order of execution: how it travels back through depth.

    `first` and `last` are the medians over the first and the last few recorded steps, drawn on one scale.
    """

    modules: tuple[str, ...]
    first: Curve
    last: Curve
    first_steps: str
    last_steps: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What the run is made of. `seconds`, `spent_seconds` (of them in hookscope itself) and `size_bytes` are None where unknown."""

    steps: int
    first_step: int | None
    last_step: int | None
    modules: int
    sites: int
    status: str
    seconds: float | None = None
    spent_seconds: float | None = None
    size_bytes: int | None = None
    first_loss: Number = None
    last_loss: Number = None
    trained: int = 0  # steps there were, recorded or not


@dataclass(frozen=True, slots=True)
class View:
    """A run and its diagnosis, ready to be laid out.

    `incidents` says where the flight recorder's folders lie, `shown_step` is the step whose numbers the tree shows; None: the last seen.
    """

    run: str
    verdict: Verdict
    title: str
    summary: str
    cost: str
    facts: Facts
    findings: tuple[FindingView, ...] = ()
    tree: ModuleView | None = None
    loss: Curve | None = None
    depth: DepthView | None = None
    blindness: tuple[str, ...] = ()
    incidents: str = ""
    shown_step: int | None = None
