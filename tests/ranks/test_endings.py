"""However a rank that has just told the others of a step ends, it ends in order: its threads do not outlive Python."""

from __future__ import annotations

import json
import os

import pytest

from ._launch import launch

pytestmark = pytest.mark.slow  # processes that load torch

CODES = {"raise": 1, "exit": 3, "late": 4}
WAYS = ("normal", "kept", "destroyed", "open", "open kept", *CODES)
DRILLS = 5 * WAYS if os.environ.get("HOOKSCOPE_RANK_DRILLS") else ("normal", "destroyed", "open kept", "raise", "late")


def test_a_rank_ends_with_its_own_code_whatever_it_had_under_way() -> None:
    (ended,) = launch("_ending.py", *DRILLS, ranks=1)
    expected = [[CODES.get(way, 0)] * 2 for way in DRILLS]
    assert json.loads(ended.out or "[]") == expected, ended.err[-3000:]
    assert ended.err.count("ValueError: the drill") == 2 * DRILLS.count("raise")
