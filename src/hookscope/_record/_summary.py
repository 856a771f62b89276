"""A run at a glance."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ._meta import Meta
from ._series import Series, Steps
from ._source import Snapshot, Source


@dataclass(frozen=True, slots=True)
class Summary:
    """How much was recorded, how it went and how it ended.

    `status` is `running`, `finished`, `failed`, `interrupted`, or `killed` where the process is gone without a word. `duration` is in
    seconds, up to the end or, for a run without end, to the last write. `never_fired` names modules that the watcher reported as silent.

    >>> Summary("base", "finished", 2, (("output", 3),), first_loss=1.0, last_loss=0.5, duration=4.0, bytes=2048).sites_total
    3
    """

    name: str
    status: str
    steps: int
    sites: tuple[tuple[str, int], ...] = ()
    first_loss: float | None = None
    last_loss: float | None = None
    never_fired: tuple[str, ...] = ()
    duration: float | None = None
    bytes: int = 0
    unread_bytes: int = 0

    @property
    def sites_total(self) -> int:
        """The number of sites of all kinds."""
        return sum(count for _, count in self.sites)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.sites)
        took = "" if self.duration is None else f" in {_duration(self.duration)}"
        lines = [f"{self.name}: {self.status}, {self.steps:,} steps{took}, {_size(self.bytes)}"]
        lines += [f"sites: {self.sites_total:,} ({kinds})" if kinds else "sites: none"]
        if self.first_loss is not None and self.last_loss is not None:
            lines += [f"loss: {self.first_loss:.4g} at the first step, {self.last_loss:.4g} at the last"]
        if self.never_fired:
            more = f" and {len(self.never_fired) - 5} more" if len(self.never_fired) > 5 else ""
            lines += [f"never fired: {', '.join(self.never_fired[:5])}{more}"]
        if self.unread_bytes:
            lines += [f"unread: {_size(self.unread_bytes)} at the end of a file, cut off within a write"]
        return "\n".join(lines)


def summarise(source: Source, snapshot: Snapshot, *, steps: Steps, loss: Series | None) -> Summary:
    """Put the summary together."""
    meta = snapshot.meta
    seen = loss is not None and len(loss.values) > 0
    return Summary(
        name=source.path.name or str(source.path) if source.path else "in memory",
        status="killed" if meta.process_is_gone else meta.status,
        steps=len(steps),
        sites=tuple(Counter(s.kind for s in snapshot.sites).most_common()),
        first_loss=float(loss.values[0]) if loss and seen else None,
        last_loss=float(loss.values[-1]) if loss and seen else None,
        never_fired=_never_fired(snapshot),
        duration=_seconds(meta, source.path),
        bytes=source.size(),
        unread_bytes=snapshot.unread,
    )


def _never_fired(snapshot: Snapshot) -> tuple[str, ...]:
    """The modules of the last report on it: an earlier one may name modules that fired since."""
    reports = [e["modules"] for e in snapshot.events if e.get("event") == "never_fired" and isinstance(e.get("modules"), list)]
    return tuple(str(name) for name in reports[-1]) if reports else ()


def _seconds(meta: Meta, path: Path | None) -> float | None:
    begin = datetime.fromisoformat(meta.created)
    if meta.closed is not None:
        return (datetime.fromisoformat(meta.closed) - begin).total_seconds()
    if path is None:
        return (datetime.now(timezone.utc) - begin).total_seconds()
    written = max((p.stat().st_mtime for p in path.rglob("*") if p.is_file()), default=begin.timestamp())
    return max(0.0, written - begin.timestamp())


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    minutes, whole = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole} s" if minutes else f"{seconds:.1f} s"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
