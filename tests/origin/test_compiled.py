"""Where a part of the training is compiled nothing is compiled anew to name an operation, and what can be named is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # a process each, and torch.compile takes seconds to load

PROGRAM = Path(__file__).with_name("_compiled.py")


def ran(what: str, when: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, PROGRAM, what, when], capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_where_the_loss_is_compiled_the_tape_is_off() -> None:
    told = ran("loss", "early")
    assert (told["compiled"], told["off"]) == (1, [])
    assert told["depths"] == [0] * 8
    assert told["found"][0] == ["nonfinite-loss", None, None, 6]


def test_a_loss_outside_a_compiled_model_is_named_as_ever() -> None:
    told = ran("model", "early")
    assert (told["compiled"], told["off"]) == (1, [])
    assert told["found"][0] == ["nonfinite-loss", "mul", None, 6]


def test_inside_a_compiled_model_the_operation_is_named_by_running_it_eagerly() -> None:
    told = ran("inside", "early")
    assert (told["compiled"], told["off"]) == (1, [])
    assert told["found"][0] == ["nonfinite-forward", "log", "1", 6]
    assert told["notes"] == ["replayed eagerly"]


def test_beside_a_compiled_block_too() -> None:
    told = ran("block", "early")
    assert (told["compiled"], told["off"], told["notes"]) == (1, [], ["replayed eagerly"])
    assert told["found"][0] == ["nonfinite-forward", "log", "1", 6]


def test_a_loss_that_is_compiled_in_the_midst_of_the_training_ends_the_tape_at_once() -> None:
    told = ran("loss", "late")
    assert (told["compiled"], told["off"]) == (1, [])
    assert told["depths"] == [1] * 2 + [0] * 6  # the tape is on behind a forward, until something is compiled


def test_a_model_that_is_compiled_while_the_tape_is_on_is_compiled_once_more_at_most() -> None:
    told = ran("model", "late")
    assert told["compiled"] <= 2
    assert told["off"] == []
    assert told["found"][0] == ["nonfinite-loss", "mul", None, 6]


def test_inside_a_model_compiled_in_place_the_operation_is_named_by_running_it_eagerly() -> None:
    for when in ("early", "late"):
        told = ran("in place", when)
        assert (told["compiled"], told["off"], told["notes"]) == (1, [], ["replayed eagerly"])
        assert told["found"][0] == ["nonfinite-forward", "log", "1", 6]


def test_a_loss_outside_a_model_compiled_in_place_is_named_as_ever() -> None:
    told = ran("in place, loss", "early")
    assert (told["compiled"], told["off"]) == (1, [])
    assert told["found"][0] == ["nonfinite-loss", "mul", None, 6]
