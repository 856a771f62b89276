"""Two tools that are told of each step: nansense and msprobe (mindstudio-probe). Each needs an environment that has it installed.

`pip install nansense mindstudio-probe`; what is not installed has no column.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

Steps = Callable[[], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def nansense(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Steps]:
    """`nansense.start`, its check for NaN and Inf at every batch, and somebody who lets it go on whenever it pauses."""
    import nansense as tool

    session = tool.start(model, epochs=1, phases={"train": 6}, optimizer=optimizer)
    session.set_debug_settings(interval=1)
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            session.step_run()
            time.sleep(0.01)

    person = threading.Thread(target=go_on, daemon=True)
    person.start()
    try:
        yield lambda: session.batch(phase="train", epoch=0)
        error = session.debug_error
        if error is not None:
            print(
                f"step {error.position.batch_idx}:", ", ".join(error.reasons), "in layers", *(f"module {one.layer}" for one in error.layers)
            )
    finally:
        over.set()
        person.join()
        session.close()


@contextlib.contextmanager
def msprobe(model: nn.Module, _optimizer: torch.optim.Optimizer) -> Iterator[Steps]:
    """`PrecisionDebugger` with statistics of modules and functions, then `msprobe overflow_check` for one step after the other."""
    from msprobe.overflow_check.analyzer import OverFlowCheck
    from msprobe.pytorch import PrecisionDebugger

    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch, "config.json")
        wanted = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
        given = {"task": "statistics", "dump_path": f"{scratch}/dump", "rank": [], "step": [], "level": "mix", "statistics": wanted}
        config.write_text(json.dumps(given))
        debugger = PrecisionDebugger(config_path=str(config))

        @contextlib.contextmanager
        def step() -> Iterator[None]:
            debugger.start(model=model)
            yield
            debugger.stop()
            debugger.step()

        yield step
        for number in itertools.count():
            dump, out = Path(scratch, "dump", f"step{number}"), Path(scratch, f"out{number}")
            if not dump.is_dir():
                break
            OverFlowCheck(str(dump), str(out)).analyze()
            for found in out.glob("*.json") if out.is_dir() else ():
                for one in json.loads(found.read_text()).get("rank_0", ())[:1]:
                    # Its lines say `File path, line 3, in f`; what is innermost comes first.
                    stack = [re.sub(r"File (.*?), line (\d+)", r'File "\1", line \2', text).split("\n")[0] for text in one["stack_info"]]
                    own = next((text for text in stack if "site-packages" not in text), "")
                    modules = (name.split(".")[1] for name in one["construct_info"] if name.startswith("Module."))
                    print(f"step {number}: {one['op_name']}", *(f"module {name}" for name in modules), own, sep="\n")
                    return


def installed() -> dict[str, Callable[..., contextlib.AbstractContextManager[Steps]]]:
    """Those that are there."""
    os.environ.setdefault("NICEGUI_SCREEN_TEST_PORT", "0")
    return {name: tool for name, tool in (("nansense", nansense), ("msprobe", msprobe)) if importlib.util.find_spec(name)}
