"""What the run says it did not see: modules that never ran, and parts of the watching that were lost or switched off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._words import count

if TYPE_CHECKING:
    from .._record import Run

Event = Mapping[str, Any]
SHOWN = 6
# Events that are no loss of sight, or that are told elsewhere.
SEEN = frozenset({"finding", "skipped", "attached", "resumed", "closed", "never_fired", "origin", "incident"})
# Events that list modules, in words; the rule `blind` says more of them.
OF_MODULES = {
    "compiled": "inside a graph of torch.compile that does not read it",
    "untapped_gradients": "gradient not seen at an output that shares memory with an input, in a graph of torch.compile",
    "untraced_outputs": "more tensors returned than a graph of torch.compile has room for",
    "unhookable": "scripted, without hooks",
    "skipped_transforms": "inside a transform of torch.func",
    "lost_gradients": "gradient lost at an output that is a view and was written to",
}
BY_RULE = frozenset({*OF_MODULES, "never_fired", "lost_calls", "frames_dropped", "hidden_parameters", "switched_off"})


def silent(events: Sequence[Event]) -> frozenset[str]:
    """The modules that the last such event says never ran."""
    last: Sequence[Any] = ()
    for event in events:
        if event.get("event") == "never_fired":
            last = event.get("modules") or event.get("sites") or ()
    return frozenset(str(name).partition(":")[0] for name in last)


def spent(events: Sequence[Event]) -> float | None:
    """Seconds that watching itself took, over all parts of a resumed run; None where it does not say."""
    found = [float(event["spent_seconds"]) for event in events if event.get("event") == "closed" and "spent_seconds" in event]
    return sum(found) if found else None


def trained(run: Run) -> int:
    """How many steps there were, as far as the run says, recorded or not."""
    return max([len(run.steps), *(int(event.get("steps", 0)) for event in run.events if event.get("event") == "closed")])


def blindness(events: Sequence[Event], *, told: bool = False, unread_bytes: int = 0) -> tuple[str, ...]:
    """One line for each thing that was not seen; equal lines once, with their number. `told`: without what findings of the rule say."""
    events = [event for event in events if not (told and event.get("event") in BY_RULE)]
    never = sorted(silent(events))
    lines = [f"never ran: {_listed(never)}"] if never else []
    others = Counter(_line(event) for event in events if event.get("event") not in SEEN)
    lines += [line if times == 1 else f"{line} ({times:,} times)" for line, times in others.items()]
    if unread_bytes:
        lines.append(f"{unread_bytes:,} bytes at the end of a file, cut off within a write")
    return tuple(lines)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown}, and {len(names) - SHOWN:,} more" if len(names) > SHOWN else shown


def _line(event: Event) -> str:
    match event.get("event"):
        case "switched_off":
            return f"{event.get('part')} from step {event.get('step')} on: switched off after an error, {event.get('error')}"
        case "frames_dropped":
            why = "since the disk could not keep up" if event.get("by") == "disk" else "to save memory"
            return f"{count(int(event.get('frames', 0)), 'frame')} up to step {event.get('last_step')}, dropped {why}"
        case str(name) if name in OF_MODULES:
            return f"{OF_MODULES[name]}: {_listed([str(module) for module in event.get('modules', ())])}"
        case "hidden_parameters":
            return f"{count(int(event.get('count', 0)), 'parameter')} behind the loss, of no watched model"
        case "lost_calls":
            return f"{count(int(event.get('calls', 0)), 'call')} of modules that ran too often within one micro-batch"
        case name:
            rest = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("event", "time"))
            return f"{str(name).replace('_', ' ')}: {rest}" if rest else str(name)
