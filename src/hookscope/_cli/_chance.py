"""The state of the random generators at a program's start: taken down, so that it can be run again from the same one.

Torch's own generator starts from a constant; Python's and numpy's start from what the system gives.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from ._after_import import after_import


def take_down(path: Path) -> None:
    """Write the state of Python's generator into a file, and of numpy's as soon as the program has imported it."""
    found: dict[str, Any] = {"python": random.getstate()}
    path.write_text(json.dumps(found))

    def numpy() -> None:
        state = sys.modules["numpy"].random.get_state()
        found["numpy"] = [state[0], state[1].tolist(), *state[2:]]
        path.write_text(json.dumps(found))

    after_import("numpy", numpy)


def begin_from(path: Path) -> None:
    """Make them what they were."""
    found = json.loads(path.read_text())
    version, state, gauss = found["python"]
    random.setstate((version, tuple(state), gauss))
    if "numpy" in found:
        after_import("numpy", lambda: sys.modules["numpy"].random.set_state(tuple(found["numpy"])))
