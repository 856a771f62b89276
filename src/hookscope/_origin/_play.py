"""Plays the tape of calls outside the models again, under the tracer, and names the first that made something bad."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .._taps._modes import unseen
from ._alone import WouldSpeakError, alone
from ._constants import Constants, storage_of
from ._facts import bad_samples, badness
from ._region import Region
from ._tape import Call, Held, Made, seen_drawing, writes
from ._tracer import Place, Trace, Tracer
from ._verdict import Verdict
from ._walk import Leap, origin, origin_of_leap, writer_of

NOT_NOTED = "it was bad before, made by something that is not noted: an autograd.Function, torch.func, another mode"
FROM_OUTSIDE = "it came in from outside the model: a target, a weight or a mask that was bad before"


@dataclass(slots=True)
class _Playing:
    """The tensors of the second run: what its calls have made, and, by the memory of what is held, copies of what came from elsewhere."""

    made: dict[Made, torch.Tensor] = field(default_factory=dict)
    given: dict[object, torch.Tensor] = field(default_factory=dict)
    leaves: list[torch.Tensor] = field(default_factory=list)  # stand for what models have returned
    notes: list[str] = field(default_factory=list)
    samples: list[tuple[int, ...]] = field(default_factory=list)  # of what came bad from elsewhere: where
    origins: list[str] = field(default_factory=list)  # of it: from where, in words
    batch: int | None = None
    known_bad: bool = False  # a model has returned it, or calls that are gone have made it: it is not from outside


def play(
    region: Region, losses: Sequence[torch.Tensor], *, backward: bool, leap: Leap | None = None, batch: int | None = None
) -> Verdict | None:
    """Run the noted calls again and name the first bad one on the way to `losses`: among the forwards, or, if `backward`, behind them.

    `leap`: nothing is bad, but values have become far larger; the one that made them so is asked. `batch` is the number of samples.
    """
    try:
        with alone():
            return _played(region, losses, Tracer({}, batch, jumps=None if leap is None else Constants()), backward=backward, leap=leap)
    except WouldSpeakError:
        return None


def _played(region: Region, losses: Sequence[torch.Tensor], tracer: Tracer, *, backward: bool, leap: Leap | None) -> Verdict | None:
    playing = _Playing(batch=tracer.batch)
    wanted = _wanted(region, losses)
    last: list[torch.Tensor] = []
    with torch.enable_grad(), tracer:
        for call in _whole(_behind(wanted, region.calls)):
            tracer.place = Place(None, call.place[0], call.place[1], call.name)
            results = _again(call, playing)
            playing.made.update({Made(call.number, i): t for i, t in enumerate(results)})
            last += [t for i, t in enumerate(results) if Made(call.number, i) in wanted]
        bad = [t for t in last if badness(t)]
        tracer.place = None
        grounded = [t for t in last if t.grad_fn is not None]
        if backward and grounded and playing.leaves and not bad:
            found = torch.autograd.grad(grounded, playing.leaves, [torch.ones_like(t) for t in grounded], allow_unused=True)
            bad = [g for g in found if g is not None and badness(g)]
    if not bad and leap is None:
        return None
    if leap is not None:
        verdict = origin_of_leap(tracer.trace, leap)
    else:
        verdict = origin(tracer.trace, bad) or _came_in(tracer.trace, [t for t in last if badness(t)], playing)
    if verdict is None or not playing.notes:
        return verdict
    return replace(verdict, exact=False, notes=tuple(dict.fromkeys(playing.notes)))


def _came_in(trace: Trace, bad: Sequence[torch.Tensor], playing: _Playing) -> Verdict | None:
    """The verdict on the operation at which something bad came in from outside, or was written on purpose, where nothing has made it."""
    if playing.known_bad:
        return None
    given = NOT_NOTED if NOT_NOTED in playing.origins else FROM_OUTSIDE
    verdict = writer_of(trace, bad, given=given)
    if verdict is None or verdict.samples or verdict.because != given:
        return verdict
    return replace(verdict, samples=next(filter(None, playing.samples), ()))


def _behind(wanted: set[Made], calls: Sequence[Call]) -> list[Call]:
    """The calls on which these tensors depend: that made them, or wrote to what one of them is a view of."""
    bases: dict[int, int] = {}  # of each call, what its first argument began as: a call, or else the memory of what is held
    for call in calls:
        first = next(iter(_kept(call)), None)
        bases[call.number] = call.number if first is None else _base(first, bases)
    numbers, touched, found = {made.call for made in wanted}, set(), []
    for call in reversed(calls):
        if call.number in numbers or (writes(call.name) and bases[call.number] in touched):
            found.append(call)
            numbers |= {made.call for kept in _kept(call) if (made := _made(kept)) is not None}
            touched |= {bases[call.number], *(_base(kept, bases) for kept in _kept(call))}
    return found[::-1]


def _whole(calls: Sequence[Call]) -> list[Call]:
    """Without those that depend on calls that are no longer on the tape."""
    found: dict[int, Call] = {}
    for call in calls:
        if all(kept.call in found for kept in _kept(call) if isinstance(kept, Made)):
            found[call.number] = call
    return list(found.values())


def _made(kept: Made | Held) -> Made | None:
    return kept if isinstance(kept, Made) else kept.made


def _base(kept: Made | Held, bases: Mapping[int, int]) -> int:
    if isinstance(kept, Made):
        return bases.get(kept.call, kept.call)
    if kept.made is not None and kept.made.call in bases:
        return bases[kept.made.call]
    return -(storage_of(kept.tensor) if kept.tensor.layout == torch.strided else id(kept.tensor))


def beside(region: Region, losses: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The tensors on which the losses depend that neither models nor calls of the tape have made, in the order of use: targets, masks."""
    calls = _behind(_wanted(region, losses), region.calls)
    held = [kept.tensor for call in calls for kept in _kept(call) if isinstance(kept, Held) and not kept.root and kept.made is None]
    return tuple({id(tensor): tensor for tensor in held}.values())


def _wanted(region: Region, losses: Sequence[torch.Tensor]) -> set[Made]:
    """What the tape knows of the losses, or else its last result."""
    wanted = {known[1] for loss in losses if (known := region.known(loss)) is not None and known[1] is not None}
    return wanted or ({Made(region.calls[-1].number, 0)} if region.calls else set())


def _kept(call: Call) -> list[Made | Held]:
    return [kept for kept in tree_leaves((call.args, call.kwargs), is_leaf=_is_kept) if _is_kept(kept)]


def _is_kept(value: object) -> bool:
    return isinstance(value, (Made, Held))


def _again(call: Call, playing: _Playing) -> list[torch.Tensor]:
    try:
        # What is given is looked up before the generators are put back: it may be copied, never drawn.
        args, kwargs = tree_map(lambda kept: _given(kept, playing), (call.args, call.kwargs), is_leaf=_is_kept)
        with _drawing_as_then(call), torch.set_grad_enabled(call.grad):
            then = torch.default_generator.get_state()
            out = call.func(*args, **kwargs)
            _if_it_draws(call, then, playing)
    except Exception as error:  # noqa: BLE001  # whatever it was, the rest of the tape may do without
        playing.notes.append(f"{call.name} could not be called again ({type(error).__name__})")
        return []
    return [t for t in tree_leaves(args[0] if call.name == "__setitem__" else out) if isinstance(t, torch.Tensor)]


def _if_it_draws(call: Call, then: torch.Tensor, playing: _Playing) -> None:
    """With some arguments only, it may be: then the state of the generator was not noted."""
    with unseen():
        if not call.random and not torch.equal(torch.default_generator.get_state(), then):
            playing.notes.append(f"{call.name} drew other random numbers when it was called again")
            seen_drawing(call.func, call.name)


@contextmanager
def _drawing_as_then(call: Call) -> Iterator[None]:
    """Random generators in the states they had at this call; afterwards in those they have now, the default ones whatever the call."""
    generators = {id(g): g for g in (torch.default_generator, *(g for g, _ in call.random))}
    now = [(generator, generator.get_state()) for generator in generators.values()]
    try:
        for generator, state in call.random:
            generator.set_state(state)
        yield
    finally:
        for generator, state in now:
            generator.set_state(state)


def _given(kept: object, playing: _Playing) -> object:
    if isinstance(kept, Made):
        return playing.made[kept]
    if not isinstance(kept, Held):
        return kept
    if kept.made in playing.made:
        return playing.made[kept.made]
    if kept.version not in (-1, kept.tensor._version):
        playing.notes.append("a tensor outside the model was written to in place after it was used")
    if (same := _memory(kept)) not in playing.given:
        playing.given[same] = _copy(kept, playing)
    return playing.given[same]


def _memory(kept: Held) -> object:
    """What two tensors share that are one to the program: a write to one of them is a write to the other."""
    tensor = kept.tensor
    if tensor.layout != torch.strided:
        return id(tensor)
    return storage_of(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype, kept.root


def _copy(kept: Held, playing: _Playing) -> torch.Tensor:
    """Calls that write in place, as those of `zero_grad` do, must not write to what the program holds when they are made again."""
    with unseen():
        copy = kept.tensor.detach().clone()
        if badness(copy):
            playing.known_bad |= kept.root or kept.made is not None
            playing.origins.append(NOT_NOTED if kept.computed else FROM_OUTSIDE)
            playing.samples.append(bad_samples(copy, playing.batch))
        if not (kept.root or kept.made is not None) or not copy.is_floating_point():
            return copy
        leaf = copy.requires_grad_()
        playing.leaves.append(leaf)
        return leaf.clone()  # a leaf itself could not be written to
