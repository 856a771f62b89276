"""A function of the program's that is told of findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._core._finding import Finding
from ._notice import log


def tell(listener: Callable[[Finding], Any], finding: Finding, *, quietly: bool) -> None:
    """What it raises is meant to reach the training; if `quietly`, another exception is on its way already, and it goes to the log."""
    try:
        listener(finding)
    except Exception:
        if not quietly:
            raise
        log.warning("on_finding failed at: %s", finding.headline, exc_info=True)
