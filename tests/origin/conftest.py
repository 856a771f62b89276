"""A process in which something was compiled keeps neither tape nor records: other tests may have left it so."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> None:
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
