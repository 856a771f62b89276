"""What the watch did not see, why, and the way out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._core._finding import Finding
from .._record import Run
from ._blind_kinds import KINDS
from ._silence import Evidence, named_in, topmost

SHOWN = 4
# In one sentence about one module, and about several.
_WORDS = {"were": "was", "their": "its", "them": "it", "run": "runs", "take": "takes", "return": "returns"}
_TOLD_BY_EVENT = ("unhookable", "skipped_transforms", "untapped_gradients", "untraced_outputs", "lost_gradients")


def blind(run: Run) -> Iterator[Finding]:
    """The watch did not see everything: which modules, parameters, calls and frames it missed, and why.

    Fires on what the watch itself noted when it ended (source: the events of the run): modules that were never called, each with the reason
    that the run's own rows give (its parameters have gradients: its weight is used directly; only `output/eval` was recorded; modules
    inside it ran; it got no gradient), modules that a graph of `torch.compile` does not read, scripted ones and those inside a transform of
    `torch.func`, gradients that torch drops when a view is written to, parameters behind the loss that belong to no watched model, calls
    beyond the 256th of one module, models trained in other threads meanwhile, frames dropped to save memory, and parts of hookscope
    switched off after an error. All of it is information, one finding a kind.

    Ignores containers whose children ran (`Sequential`, `ModuleList`), modules that fired in an earlier part of a resumed run, and code
    between modules, of which nothing tells. A run that was killed has no such notes but those of the moment.

    Causes: named with each kind.
    Do: named with each kind, such as calling the module instead of using its weight, or keeping modules in an `nn.ModuleList`.
    """
    evidence = Evidence(run)
    for kind, modules in _silent(run, evidence).items():
        elements = sum(evidence.elements[name] for name in modules)
        yield _finding(run, kind, topmost(modules), {"n": len(modules), "elements": elements})
    for kind in _TOLD_BY_EVENT:
        if modules := named_in(run, kind):
            yield _finding(run, kind, topmost(modules), {"n": len(modules)})
    yield from _hidden(run)
    yield from _lost(run)
    yield from _elsewhere(run)
    yield from _switched_off(run)


def _silent(run: Run, evidence: Evidence) -> dict[str, list[str]]:
    """The modules that were not heard, by why."""
    silent = named_in(run, "never_fired")
    if silent and not len(run.steps):
        return {"untrained": silent}
    compiled, transformed = set(named_in(run, "compiled")), set(named_in(run, "skipped_transforms"))
    found: dict[str, list[str]] = {}
    for name in silent:
        reason = "compiled" if name in compiled - evidence.fired else None if name in transformed else evidence.reason(name)
        if reason is not None:
            found.setdefault(reason, []).append(name)
    return {kind: found[kind] for kind in KINDS if kind in found}


def _hidden(run: Run) -> Iterator[Finding]:
    if events := _events(run, "hidden_parameters"):
        names = [str(name) for event in events for name in event.get("parameters", ())]
        count = sum(int(event.get("count", 0)) for event in events)
        yield _finding(run, "hidden_parameters", names, {"n": count, "noun": "parameter", "step": _step(events[0])})


def _lost(run: Run) -> Iterator[Finding]:
    if calls := sum(int(event.get("calls", 0)) for event in _events(run, "lost_calls")):
        yield _finding(run, "lost_calls", (), {"n": calls, "noun": "call"})
    if dropped := _events(run, "frames_dropped"):
        why = "since the disk could not keep up" if dropped[-1].get("by") == "disk" else "to save memory"
        facts = {"n": int(dropped[-1].get("frames", 0)), "noun": "frame", "last": dropped[-1].get("last_step"), "why": why}
        yield _finding(run, "frames_dropped", (), facts)


def _elsewhere(run: Run) -> Iterator[Finding]:
    if names := sorted({str(name) for event in _events(run, "other_threads") for name in event.get("models", ())}):
        yield _finding(run, "other_threads", names, {"n": len(names), "noun": "model"})


def _switched_off(run: Run) -> Iterator[Finding]:
    if events := _events(run, "switched_off"):
        parts = [str(event.get("part")) for event in events]
        facts = {"n": len(parts), "noun": "part", "step": _step(events[0]), "error": events[0].get("error")}
        yield _finding(run, "switched_off", parts, facts)


def _finding(run: Run, kind: str, names: Sequence[str], facts: Mapping[str, Any]) -> Finding:
    """`facts`: the number `n` of what (`noun`, modules by default), the `step` it begins at, and what else the message speaks of."""
    about, n, noun = KINDS[kind], facts["n"], facts.get("noun", "module")
    grammar = {word: singular if n == 1 else word for word, singular in _WORDS.items()}
    told = about.message.format(**{**facts, **grammar, "n": f"{n:,}", "noun": noun if n == 1 else f"{noun}s", "names": _listed(names)})
    steps = [int(step) for step in run.steps] or [0]
    begin = facts.get("step", steps[0])
    in_front = names and about.where == "module"
    return Finding(
        rule="blind",
        severity="info",
        message=f"{_listed(names)}: {told}" if in_front else told,
        first_step=begin,
        last_step=max(begin, steps[-1]),
        where=about.where,
        phase=about.phase,
        module=names[0] if in_front and noun == "module" else None,
        causes=about.causes,
        advice=about.advice,
        evidence={"kind": kind, **({f"{noun}s": list(names)} if names else {})},
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN:,} more" if len(names) > SHOWN else shown


def _events(run: Run, name: str) -> list[Mapping[str, Any]]:
    return [event for event in run.events if event.get("event") == name]


def _step(event: Mapping[str, Any]) -> int:
    return int(event.get("step") or 0)
