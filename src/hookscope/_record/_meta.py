"""What `run.json` says: who recorded the run, where, when, and with which settings."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any, Literal

from .. import __version__
from .._core._errors import RunUnreadableError

FORMAT = 1
Status = Literal["running", "finished", "failed", "interrupted"]


def now() -> str:
    """This moment, as run.json writes it: ISO 8601, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def launched(variable: str, alone: int) -> int:
    """What torchrun and its like tell each process of its place among the others."""
    told = os.environ.get(variable, "")
    return int(told) if told.isdecimal() and "MASTER_ADDR" in os.environ else alone


def _own_version() -> str:
    return __version__


@dataclass(frozen=True, slots=True)
class Meta:
    """The identity of a run. Every field has a default that speaks of this very process.

    `torch` is left to the caller, since reading and writing a run import no torch. `every` is the schedule: each how many steps a frame
    is recorded. `created` and `closed` are ISO 8601 in UTC; `closed` is None until the run was closed.

    >>> Meta(torch="2.13.0", selections=("encoder.*",), every=10).status
    'running'
    """

    torch: str = ""
    selections: tuple[str, ...] = ()
    every: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    rank: int = field(default_factory=lambda: launched("RANK", 0))
    world_size: int = field(default_factory=lambda: launched("WORLD_SIZE", 1))
    hookscope: str = field(default_factory=_own_version)
    python: str = field(default_factory=lambda: sys.version.split()[0])
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    created: str = field(default_factory=now)
    closed: str | None = None
    status: Status = "running"
    format: int = FORMAT

    def to_json(self) -> str:
        """The text of run.json; a setting that JSON does not know is written as its `str()`."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps(named, indent=1, default=str) + "\n"

    @property
    def process_is_gone(self) -> bool:
        """Whether the run still says `running` while its process, on this host, is no more: it was killed."""
        if self.status != "running" or self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False


def meta_from_json(text: str, where: str) -> Meta:
    """Read run.json; fields of later versions within the same format are ignored."""
    try:
        found = json.loads(text)
        number = int(found["format"])
        version = str(found["hookscope"])
    except (ValueError, KeyError, TypeError) as problem:
        raise RunUnreadableError(f"{where} is not a run: its run.json was not written by hookscope ({problem!r})") from None
    if number > FORMAT:
        raise RunUnreadableError(
            f"{where} is written in format {number}; this hookscope {__version__} reads formats up to {FORMAT}: "
            f"it needs hookscope {version} or newer (pip install -U 'hookscope>={version}')"
        )
    known = {f.name: found[f.name] for f in fields(Meta) if f.name in found}
    return Meta(**{**known, "selections": tuple(known.get("selections", ()))})
