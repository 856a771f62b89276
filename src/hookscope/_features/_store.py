"""What a way to store features offers to the writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ._batch import Batch
from ._extent import Extent


class Store(Protocol):
    """Takes batches; `anytime` says that it may be settled after any batch without a trace of it in the files."""

    anytime: bool

    @property
    def extents(self) -> dict[str, Extent]:
        """What is on disk, by stem."""

    def append(self, batch: Batch, /) -> None:
        """Take one batch; whatever fails, nothing of it is kept."""

    def full(self, unsettled: int, seconds: float, /) -> bool:
        """Whether it is time to settle: so many bytes and seconds after the last time."""

    def settle(self) -> None:
        """Make what was taken readable."""

    def holds(self, extents: Mapping[str, Extent], /) -> bool:
        """Whether the files have at least that."""

    def rewind(self, extents: Mapping[str, Extent], /) -> None:
        """Forget what is beyond that."""

    def close(self) -> None:
        """Let go of the files."""
