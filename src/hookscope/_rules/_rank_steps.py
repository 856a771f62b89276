"""Ranks that took different numbers of steps, or of which one ended without a word."""

from __future__ import annotations

from collections.abc import Iterator

from .._core._finding import Finding
from .._record import Run


def rank_steps(run: Run) -> Iterator[Finding]:
    """The ranks of one training did not take the same number of steps.

    Fires when the run is over, on what each rank noted at its end (source: the events `closed`): a warning where some ranks came to their
    end and another never did, which was killed or hangs; information where all ended after different numbers of steps.

    Ignores runs that go on, and differences in what was recorded: only steps taken count.

    Causes: a rank killed for memory; loaders of different length.
    Do: look at the log of that rank; make the loaders equally long (`drop_last=True`), or train inside `Join`.
    """
    ended = {int(e.get("rank", 0)): int(e["steps"]) for e in run.events if e.get("event") == "closed" and "steps" in e}
    if len(run.ranks) < 2 or not ended or run.meta.status == "running":
        return
    lost = [rank for rank in run.ranks if rank not in ended]
    last = max(ended.values())
    if lost:
        seen = int(run.rank(lost[0]).steps[-1])
        rest = f"while rank {min(ended)} took {ended[min(ended)]} steps"
        text = f"rank {lost[0]} never came to its end: its last recorded step is {seen}, {rest}"
        yield _finding(text, "warning", (seen, max(last - 1, seen)), lost[0], {"ranks": lost, "steps": ended})
    elif len(set(ended.values())) > 1:
        first = min(ended, key=lambda rank: ended[rank])
        text = f"ranks took different numbers of steps: rank {first} took {ended[first]}, others up to {last}"
        yield _finding(text, "info", (ended[first], last - 1), first, {"steps": ended})


def _finding(text: str, severity: str, steps: tuple[int, int], rank: int, evidence: dict[str, object]) -> Finding:
    return Finding(
        rule="rank-steps",
        severity="warning" if severity == "warning" else "info",
        message=text,
        first_step=steps[0],
        last_step=steps[1],
        where="loop",
        phase="data",
        rank=rank,
        causes=("the process was killed, or hangs",) if severity == "warning" else ("the loaders are of different length",),
        advice=("look at the log of that rank",) if severity == "warning" else ("make the loaders equally long, or train inside Join",),
        evidence=evidence,
    )
