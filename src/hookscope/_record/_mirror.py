"""A run that lies elsewhere, at a URL: its files are fetched into a directory of this machine, and read there."""

from __future__ import annotations

import os
import shutil
import weakref
from pathlib import Path
from typing import Any

from .._core._errors import RunError, RunUnreadableError
from ._source import DirectorySource, Snapshot


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether it is one, as `s3://bucket/runs/base` or `memory://base`."""
    return "://" in os.fspath(path)


def refuse_url(to: str | os.PathLike[str]) -> None:
    """Raise RunError where a run is to be recorded to a URL."""
    if is_url(to):
        raise RunError(
            f"cannot record to {os.fspath(to)}: frames are appended and must survive a kill, which object stores do not offer: "
            "record to a directory and copy it there; hs.Run reads it from its URL"
        )


class MirrorSource:
    """Fetches what is new or has changed in size at each look. Needs fsspec; the copy is gone with the source."""

    def __init__(self, url: str) -> None:
        import tempfile

        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # here, because few runs lie elsewhere
        except ModuleNotFoundError:
            raise RunUnreadableError(f"reading {url} needs fsspec, which is not installed: pip install fsspec") from None
        self.url = url
        self._there: Any
        self._there, self._root = url_to_fs(url)
        self.path = Path(tempfile.mkdtemp(prefix="hookscope-run-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        self._source = DirectorySource(self.path)
        self._fetched: dict[str, Any] = {}

    def poll(self) -> Snapshot:
        """The run as it stands there now."""
        found = self._there.find(self._root, detail=True)
        names = {name: name.removeprefix(self._root).lstrip("/") for name in found}
        if "run.json" not in names.values():
            raise RunUnreadableError(f"no run at {self.url}: there is no run.json")
        # As a reader of a directory goes: run.json first, so that a run seen as closed is seen whole.
        for name in sorted(found, key=lambda name: names[name] != "run.json"):
            facts = found[name].get("size"), found[name].get("ETag") or found[name].get("mtime") or found[name].get("created")
            if self._fetched.get(name) != facts:
                self._fetch(name, self.path / names[name])
                self._fetched[name] = facts
        return self._source.poll()

    def size(self) -> int:
        """Bytes of the run."""
        return self._source.size()

    def _fetch(self, name: str, to: Path) -> None:
        to.parent.mkdir(parents=True, exist_ok=True)
        fresh = to.with_name(f".{to.name}.fetched")
        self._there.get_file(name, str(fresh))
        fresh.replace(to)
