"""A sink: where frames go, be it a directory, memory or another program's logger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args

from .._core._errors import UsageError
from .._core._frame import Frame
from .._core._site import Site

Outcome = Literal["finished", "failed", "interrupted"]
Event = dict[str, Any]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class Sink(Protocol):
    """Takes what a watch records, in order: sites before the frames that speak of them.

    A sink may raise `OSError` (a full disk): whoever feeds it stops feeding it, and the training goes on.
    """

    def sites(self, table: Sequence[Site], /) -> None:
        """The whole table of sites; given again, whole, whenever it grows."""

    def frame(self, frame: Frame, /) -> None:
        """All stats of one step; the arrays may be reused by the caller afterwards."""

    def event(self, event: Event, /) -> None:
        """Something that happened: `event["event"]` names it, the rest is plain JSON."""

    def flush(self) -> None:
        """Bring everything taken so far to where a reader finds it."""

    def close(self, status: str, /) -> None:
        """Flush, and mark the run as `finished`, `failed` or `interrupted`; a second call changes nothing."""


def checked_outcome(status: str) -> Outcome:
    """The status itself, if a run can end with it."""
    for outcome in OUTCOMES:
        if status == outcome:
            return outcome
    raise UsageError(f"a run cannot be closed with status {status!r}: choose one of {', '.join(OUTCOMES)}")
