"""`watch`: the training inside the block is recorded."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn

from .._core._errors import AttachError, HookscopeWarning, UsageError
from .._core._finding import Finding
from .._core._select import describe, select
from .._record import MemoryWriter, Meta, Run, RunWriter, refuse_url
from .._taps._inventory import candidates
from ._activations import Activations
from ._armed import Armed
from ._chosen import choose
from ._nonfinite import OnNonfinite
from ._notice import warn
from ._open_sessions import end_recording_to
from ._placing import Placing
from ._session import Session
from ._settings import Kept, OnFinding, Reduce, Settings, Updates
from ._store import Store
from ._table import SiteTable
from ._together import sites_of, speak
from ._wire import check_ranks

MAX_WRAPPERS = 8  # of an optimizer, one in another: an object that invents attributes has no innermost one


class watch:  # noqa: N801  # used like the function it reads as: `with hs.watch(model):`
    """Watch a training without touching it: statistics of every layer, recorded, and judged while it runs.

    Use it as a context manager, or call `close()`; without either it ends with the model or with the program. Everything hookscope puts on
    the model is gone after that.

    `model`: a module, or several, as a list or, with names, a dict. `optimizer`: one or several, if you like to name them; without,
    those that step a parameter of the model are recognised. `to`: directory of the run; None keeps it in memory (at most 256 MiB).
    `select`: what is recorded, in the selection language (default everything: outputs, gradients arriving at outputs, parameters, their
    gradients as the optimizer gets them, what each step changed, the loss). `budget`: the share of the training's time that may be spent
    (default 0.02). As long as hookscope has not spent five seconds in all, every step is recorded; later as many as the budget pays for,
    while loss, model output and all gradients are looked at in each, and what looks wrong is recorded at once. Of several ranks each
    measures other times: there the first 64 steps are recorded, then each 16th, from step 1024 on each 64th (other budgets in proportion),
    the same on all. `every`: record each n-th step instead, whatever it costs. `on_finding`: "warn" (default)
    gives a warning at the moment of a finding, "raise" raises `FindingError` for one of severity error, before the optimizer
    uses bad gradients, "ignore" stays silent, a function is called with the `Finding`. `on_nonfinite`: what happens to a step whose loss or
    gradients hold NaN or Inf: "report" (default) lets it go on, "raise" raises `NonFiniteError` before the optimizer uses them, "skip"
    leaves this step out, without any effect on parameters and optimizer state, a function is given the findings and returns one of
    these words. `grad_norm_threshold`: a global gradient norm that
    is too much for you; by default only norms unusual for this very run are found. `updates`: "sample" (default) follows about 4,096
    elements of each parameter, "full" all of them, at the price of a copy of the weights.
    `flight`: so many of the last frames are kept in memory (default 32, 0 for none) and written to `incidents/<step>` of the run when
    a finding of severity error, an exception or SIGTERM comes; at most 8 times in a run. `incidents`: what is written with them: "facts"
    (default: findings, origins, random states, a fingerprint of what the model was given), "batch" (also the tensors themselves, with
    which `hs.replay` runs the step again), "full" (also the weights and the optimizer's state), "off" (nothing at all; SIGTERM is then left
    alone). `reduce="step"` lets ranks tell each other, in a process group of their own, what they see: rules judge the frames of all ranks
    together, one recorded step later and alike on all, and `on_nonfinite` acts on every rank at the step that is bad on any. Each rank
    has to open such a watch. Where ranks come apart it is given up with a warning: see the page "Many ranks".
    `exact`: on a device such as a GPU, where nothing waits for a step that is not recorded, what is wrong in it is seen a step later;
    `exact=True` waits once a step and sees it at once, as `on_finding="raise"` does. On a processor that is always so.
    An existing run is refused unless `overwrite` or `resume` (which continues its step numbers).

    What runs under `torch.no_grad()` is recorded apart, as `output/eval`. Not seen: what runs inside `torch.func` transforms, and
    operations outside any module, unless one of them is the origin of a NaN or Inf. Watch a model before its first compiled call; one that
    was called is compiled again, with a warning.
    Raises `AttachError`, `SelectionError`, `UsageError` for wrong use and `RunError` for a directory that cannot be written, all before
    the first hook is placed; later nothing but what `on_finding` and `on_nonfinite` ask for is ever raised.

    >>> import torch
    >>> import hookscope as hs
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with hs.watch(model, optimizer) as w:
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         model(torch.ones(2, 4)).pow(2).mean().backward()
    ...         optimizer.step()
    >>> w.run.steps.tolist()
    [0, 1, 2]
    >>> len(w.run["0:output", "rms"].values)
    3
    """

    def __init__(  # noqa: PLR0913  # the one call that has everything
        self,
        model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        *,
        to: str | os.PathLike[str] | None = None,
        select: Any = "**",
        every: int | None = None,
        budget: float = 0.02,
        on_finding: OnFinding = "warn",
        on_nonfinite: OnNonfinite = "report",
        grad_norm_threshold: float | None = None,
        updates: Updates = "sample",
        flight: int = 32,
        incidents: Kept = "facts",
        reduce: Reduce = None,
        exact: bool = False,
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        models = named_models(model)
        settings = Settings(
            _selection(select), every, on_finding, updates, grad_norm_threshold, on_nonfinite, budget, flight, incidents, reduce, exact
        )
        if reduce is not None:
            check_ranks()
        optimizers = [_as_optimizer(one) for one in (optimizer if isinstance(optimizer, Sequence) else [optimizer]) if one is not None]
        _rehearse(models, settings)
        for one in optimizers:
            _check_concerned(one, models)
        self._session = open_session(settings, to, overwrite=overwrite, resume=resume)
        self._to = to
        self._session.steps.clock.expected = frozenset(map(id, optimizers))
        try:
            self._session.add_models({name: weakref.ref(one) for name, one in models.items()}, strict=True)
            if reduce is not None:
                speak(self._session, sites_of(models.values()))
        except BaseException:
            self._session.close("failed")
            raise

    def __enter__(self) -> watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        status = "finished" if kind is None else "failed" if issubclass(kind, Exception) else "interrupted"
        self._end(status, error)

    def __repr__(self) -> str:
        place = "memory" if self._to is None else os.fspath(self._to)
        return f"<hookscope.watch to {place}, step {self.step}{', closed' if self._session.closed else ''}>"

    @property
    def step(self) -> int:
        """Number of the optimizer step that is under way, counted from 0."""
        return self._session.steps.clock.under_way

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What has been found so far, in the order of finding it; `hs.diagnose(w.run)` has the order of causes."""
        return tuple(self._session.online.findings)

    @property
    def run(self) -> Run:
        """The run as recorded up to this moment."""
        self._session.flush()
        sink = self._session.sink
        return sink.run if isinstance(sink, MemoryWriter) else Run(sink.path)  # type: ignore[attr-defined]  # a RunWriter then

    def log(self, name: str, value: float) -> None:
        """Record a number of your own with the current step, as a site of kind `scalar`.

        >>> import torch
        >>> import hookscope as hs
        >>> with hs.watch(torch.nn.Linear(1, 1)) as w:
        ...     w.log("temperature", 0.7)
        """
        self._session.steps.beside.log(name, float(value))

    def close(self, status: Literal["finished", "failed", "interrupted"] = "finished") -> None:
        """Stop watching, take every hook away, finish the run. Calling it again does nothing.

        >>> import torch
        >>> import hookscope as hs
        >>> w = hs.watch(torch.nn.Linear(1, 1))
        >>> w.close()
        """
        self._end(status)

    def _end(self, status: str, error: BaseException | None = None) -> None:
        self._session.close(status, error)
        self._session.deliver(quietly=status != "finished")


def open_session(
    settings: Settings, to: str | os.PathLike[str] | None, *, overwrite: bool = False, resume: bool = False, name: str = ""
) -> Session:
    """A session that records to the directory `to`, or in memory."""
    if Armed.from_environment() is not None:
        settings, to = replace(settings, every=1), None
    every, selections = settings.every or 1, _as_list(describe(settings.selection))
    thresholds = {
        "budget": settings.budget if settings.every is None else None,
        "grad_norm_threshold": settings.grad_norm_threshold,
        "updates": settings.updates,
    }
    meta = Meta(torch=torch.__version__, selections=tuple(selections), every=every, settings=thresholds)
    rank, world_size = _place(meta)
    meta = replace(meta, rank=rank, world_size=world_size)
    if to is None:
        return Session(settings, MemoryWriter(meta))
    if not isinstance(to, (str, os.PathLike)) or not os.fspath(to):
        raise UsageError(f"to={to!r} is no directory: give the path of a new one, such as 'runs/base', or None to record in memory")
    refuse_url(to)
    path = os.path.abspath(to)  # from the root on, since the program may change directories
    if overwrite != resume:
        end_recording_to(path)
    writer = RunWriter(path, meta, overwrite=overwrite, resume=resume, beside=True)
    return Session(settings, writer, first_step=writer.next_step, known=writer.known_sites)


def _place(meta: Meta) -> tuple[int, int]:
    """This process among the ranks; started without a launcher, it is the process group that knows."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return meta.rank, meta.world_size
    return distributed.get_rank(), distributed.get_world_size()


def _rehearse(models: Mapping[str, nn.Module], settings: Settings) -> None:
    """Raise what attaching will raise while there is no run on disk yet, and none overwritten."""
    chosen = choose(settings.selection, [site for name, one in models.items() for site in candidates(one, name)], strict=True)
    placing = Placing(Activations(SiteTable(), Store(), lambda error: None))
    with closing(placing):
        for name, one in models.items():
            placing.attach(one, name, chosen)


def named_models(model: Any) -> dict[str, nn.Module]:
    """The models by name; one alone has none. Several without names are called by their classes."""
    if isinstance(model, nn.Module):
        return {"": model}
    if isinstance(model, Mapping):
        named = {str(name): one for name, one in model.items()}
    elif isinstance(model, (list, tuple)):
        named = {}
        for one in model:
            named[free_name(type(one).__name__, named)] = one
    else:
        raise AttachError(f"model is a {type(model).__name__}: pass a torch.nn.Module, or a list or a dict of them")
    for name, one in named.items():
        if not isinstance(one, nn.Module):
            raise AttachError(f"model {name!r} is a {type(one).__name__}, not a torch.nn.Module")
    if not named:
        raise AttachError("there is no model to watch: the list is empty")
    return named


def free_name(wanted: str, taken: Mapping[str, object] | set[str]) -> str:
    """`wanted`, with a number behind it where it is taken."""
    name, n = wanted, 1
    while name in taken:
        n += 1
        name = f"{wanted}{n}"
    return name


def _selection(asked: Any) -> Any:
    return select(asked)


def _as_list(text: str | list[str]) -> list[str]:
    return [text] if isinstance(text, str) else text


def _check_concerned(optimizer: torch.optim.Optimizer, models: Mapping[str, nn.Module]) -> None:
    """It may still be given them; most often the model was made anew after it."""
    watched = {id(p) for model in models.values() for p in model.parameters()}
    if all(id(p) not in watched for group in optimizer.param_groups for p in group["params"]):
        warn(
            f"hookscope: the {type(optimizer).__name__} updates no parameter of the model; was the model made or replaced after it?",
            HookscopeWarning,
        )


def _as_optimizer(given: Any) -> torch.optim.Optimizer:
    """The torch optimizer inside a wrapper that holds one as `.optimizer`, as Accelerate's does."""
    inner = given
    for _ in range(MAX_WRAPPERS):
        if not isinstance(inner, torch.optim.Optimizer):
            inner = getattr(inner, "optimizer", None)
    if not isinstance(inner, torch.optim.Optimizer):
        raise AttachError(
            f"optimizer is a {type(given).__name__}, not a torch.optim.Optimizer; leave it out and it is recognised by itself"
        )
    return inner
