"""Runs recorded forwards, and their backward, a second time under the tracer, and puts everything back as it was."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from .._taps._leaves import leaves
from ._alone import alone
from ._constants import Constants
from ._facts import badness
from ._forward import Buffers, Forward, Randomness, fingerprint
from ._gradients import gradients_of
from ._tracer import Tracer
from ._verdict import Verdict
from ._walk import Leap, origin, origin_of_leap, origin_within


@dataclass(slots=True)
class Replay:
    """What the second run showed: the origins of what is bad, at most one in the forward and one behind it; why they may be inexact."""

    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()


def replay(forwards: Sequence[Forward], buffers: Buffers, names: dict[int, str], scratch: Any, leap: Leap | None = None) -> Replay:
    """Run `forwards` again, in order, each with the backward that the gradients which arrived at its outputs ask for.

    `names` are the paths of the modules by id; `scratch` gives a row for fingerprints on a tensor's device. `leap`: nothing is bad, but
    values have become far larger; what made them so is asked.
    """
    found = Replay()
    notes: list[str] = []
    with _all_put_back(forwards, buffers):
        for forward in forwards:
            notes += _changed(forward, buffers)
            tracer = Tracer(names, _batch(forward), jumps=None if leap is None else Constants(forward.module.buffers()))
            try:
                verdicts = _once(forward, tracer, scratch, notes)
                if leap is not None:
                    verdicts = tuple(v for v in [origin_of_leap(tracer.trace, leap)] if v is not None)
            except Exception as error:  # noqa: BLE001  # the program's own code, which may refuse to run twice
                notes.append(f"the second run ended in {type(error).__name__}: {error}")
                verdicts = tuple(v for v in [origin_within(tracer.trace)] if v is not None)
            found.verdicts = found.verdicts or verdicts
    found.notes = tuple(dict.fromkeys(notes))
    remarks = ("replayed eagerly",) if any(forward.compiled for forward in forwards) else ()
    if found.notes or remarks:
        exact = not found.notes
        found.verdicts = tuple(replace(verdict, exact=exact, notes=found.notes + remarks) for verdict in found.verdicts)
    return found


def _once(forward: Forward, tracer: Tracer, scratch: Any, notes: list[str]) -> tuple[Verdict, ...]:
    forward.random.restore()
    args, kwargs = tree_map(_detached, (forward.args, forward.kwargs))
    with ExitStack() as stack:
        for device, enabled, dtype in forward.autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=forward.cache))
        if forward.compiled:
            stack.enter_context(eagerly())
        stack.enter_context(torch.enable_grad())
        stack.enter_context(alone())
        stack.enter_context(tracer)
        out = forward.module(*args, **kwargs)
    outputs = [tensor for _, tensor in leaves(out)]
    if not forward.fingerprint:
        notes.append("the model's output is not recorded, so that nothing shows whether the second forward equals the first")
    elif [fingerprint(t, scratch(t)) for t in outputs] != forward.fingerprint:
        notes.append("the second forward gave other outputs: the model draws from a generator, or keeps a state, that is not put back")
    bad = [t for t in outputs if badness(t)]
    made = (origin(tracer.trace, bad) if bad else None) or origin_within(tracer.trace)
    reached = [i for i in forward.gradients if i < len(outputs) and outputs[i].grad_fn is not None]
    gradients: list[torch.Tensor] = []
    if reached:
        wanted = [p for p in forward.module.parameters() if p.requires_grad]
        with eagerly() if forward.compiled else nullcontext(), alone(), tracer:  # a checkpoint runs the forward once more
            found = gradients_of([outputs[i] for i in reached], [forward.gradients[i] for i in reached], wanted, notes)
        gradients = [g for g in found if badness(g)]
    behind = origin(tracer.trace, gradients) if gradients else None
    return tuple(verdict for verdict in (made, None if behind == made else behind) if verdict is not None)


@contextmanager
def eagerly() -> Iterator[None]:
    """Whatever is compiled runs as if it were not; what it is compiled to stays."""
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", "Using `torch.compile", UserWarning)  # that hooks on all modules fire twice, as they do here
        yield


@contextmanager
def _all_put_back(forwards: Sequence[Forward], buffers: Buffers) -> Iterator[None]:
    randomness = Randomness.now()
    parameters = {id(p): p for forward in forwards for p in forward.module.parameters()}
    gradients = {key: p.grad for key, p in parameters.items()}
    modes = [(m, m.training) for forward in forwards for m in forward.module.modules()]
    undo = buffers.put()
    try:
        yield
    finally:
        undo()
        for key, parameter in parameters.items():
            parameter.grad = gradients[key]
        for module, mode in modes:
            module.training = mode
        randomness.restore()


def _changed(forward: Forward, buffers: Buffers) -> Iterator[str]:
    written = sum(t._version != version for t, version in forward.versions)
    if written:
        yield f"{written} input(s) of the model were written to after its forward"
    if forward.parameters is not None and buffers.versions != forward.parameters:
        yield "parameters have changed since the forward"


def _detached(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.requires_grad) if value.requires_grad else value.detach()


def _batch(forward: Forward) -> int | None:
    """The length of the first dimension of the first input, where it has one."""
    shapes = [t.shape for t, _ in forward.versions if t.dim() and not isinstance(t, nn.Parameter)]
    return int(shapes[0][0]) if shapes else None
