"""Where the tape was not built in C, all of this holds as well."""

from __future__ import annotations

import pytest

from hookscope._origin._region import Region

from ._ways import plainly
from .test_from_outside import *  # noqa: F403  # the same tests once more
from .test_modes import *  # noqa: F403
from .test_outside import *  # noqa: F403


@pytest.fixture(autouse=True)
def _nothing_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    plainly(monkeypatch)
    assert type(Region().tape).__name__ == "PlainTape"
