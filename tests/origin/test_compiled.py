"""Where a part of the training is compiled the tape is off, and nothing is compiled anew because of it."""

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


@pytest.mark.parametrize("what", ["loss", "model"])
def test_a_compiled_part_is_compiled_once_and_what_goes_bad_is_still_found(what: str) -> None:
    told = ran(what, "early")
    assert (told["compiled"], told["off"]) == (1, [])
    assert told["depths"] == [0] * 8
    assert told["found"][0] == ["nonfinite-loss", None, 6]


def test_a_loss_that_is_compiled_in_the_midst_of_the_training_ends_the_tape_at_once() -> None:
    told = ran("loss", "late")
    assert (told["compiled"], told["off"]) == (1, [])
    assert told["depths"] == [1] * 2 + [0] * 6  # the tape is on behind a forward, until something is compiled


def test_a_model_that_is_compiled_while_the_tape_is_on_is_compiled_once_more_at_most() -> None:
    told = ran("model", "late")
    assert told["compiled"] <= 2
    assert told["depths"][3:] == [0] * 5
