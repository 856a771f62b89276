"""Pairs of ranks that end right after a recorded step, each in its own way; says how the processes ended.

All are forked from one process, which has loaded what they need. The last thing that each does before Python ends is to hold Python's lock
for a moment: what a thread of gloo asks for meanwhile, it would get when Python has gone.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import sys
import time

atexit.register(ctypes.PyDLL(None).usleep, 300_000)

# Only now, since what is registered first is called last.
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from _launch import free_port  # noqa: E402
from torch import nn  # noqa: E402

import hookscope as hs  # noqa: E402

CODES = {"exit": 3, "late": 4}  # that a rank is to end with


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, *, late: bool = False) -> None:
    for step in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 3)).square().mean().backward()
        if late and step == 1:  # the other rank has told of this step, and ends without waiting
            time.sleep(0.15)
            os._exit(CODES["late"])
        optimizer.step()


def rank(way: str, number: int) -> None:
    """Train two steps and end."""
    dist.init_process_group("gloo", rank=number, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    agreed = "report" if way == "late" else "raise"  # with the other rank, at each step
    watch = hs.watch(model, optimizer, every=1, on_nonfinite=agreed, on_finding="ignore", reduce="step")
    if way.startswith("open"):
        steps(model, optimizer)
    elif way == "destroyed":
        steps(model, optimizer)
        dist.destroy_process_group()
        watch.close()
    else:
        with watch:
            steps(model, optimizer, late=way == "late" and number == 1)
            if way in CODES:
                sys.exit(CODES[way])
            if way == "raise":
                raise ValueError("the drill")
    if "kept" not in way and way != "destroyed":
        dist.destroy_process_group()


def main(*ways: str) -> None:
    warm = nn.Linear(3, 2)
    with hs.watch(warm, every=1):  # loads, once for all, what a first step loads
        steps(warm, torch.optim.SGD(warm.parameters(), 0.1))
    ended = []
    for way in ways:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
        processes = []
        for number in range(2):
            if not (process := os.fork()):
                return rank(way, number)  # and so to the end of the program, as any rank
            processes.append(process)
        ended.append([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes])
    sys.stdout.write(json.dumps(ended))
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
