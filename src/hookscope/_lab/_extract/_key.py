"""What names one extracted tensor: the site it passed, and in which call of the module."""

from __future__ import annotations

from dataclasses import dataclass

from ..._core._site import Site


@dataclass(frozen=True, slots=True)
class Key:
    """`call` counts the calls of the site's module from 0, within one batch for `extract`, from the start for `capture`.

    >>> str(Key(Site(-1, "encoder.0", "output"))), str(Key(Site(-1, "encoder.0", "output"), 1))
    ('encoder.0:output', 'encoder.0:output#1')
    """

    site: Site
    call: int = 0

    def __str__(self) -> str:
        return f"{self.site.name}#{self.call}" if self.call else self.site.name
