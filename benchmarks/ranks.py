"""What watching costs a rank, where 1, 2 or 4 train one model data-parallel: each records for itself, whatever their number.

A model of 12 linear layers under DistributedDataParallel, gloo. In each process rounds without a watch, with one that records every step,
and with one that also tells the other ranks (`reduce="step"`) come in turn; the time is that of the process's processor, since ranks that
share processors wait for each other, and the numbers are medians over rounds of the mean of all ranks, in milliseconds a step.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

import hookscope as hs

ROUNDS, STEPS, WIDTH, LAYERS = 5, 20, 256, 12
WAYS = ("bare", "watched", "reduced")


def one_round(ddp: nn.Module, optimizer: torch.optim.Optimizer, way: str) -> float:
    """Milliseconds of processor time a step, the opening and closing of the watch left out."""
    options = {"every": 1, "on_finding": "ignore", "reduce": "step" if way == "reduced" else None}
    with nullcontext() if way == "bare" else hs.watch(ddp, optimizer, **options):
        began = 0.0
        for step in range(STEPS + 2):
            if step == 2:
                began = time.process_time()
            optimizer.zero_grad()
            ddp(torch.randn(32, WIDTH)).square().mean().backward()
            optimizer.step()
        return (time.process_time() - began) / STEPS * 1e3


def rank() -> None:
    """One rank; the first says what all have measured."""
    dist.init_process_group("gloo")
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    ddp = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
    warnings.simplefilter("ignore")
    measured = torch.zeros(ROUNDS, len(WAYS), dtype=torch.float64)
    for turn in range(ROUNDS):
        for i, way in enumerate(WAYS):
            measured[turn, i] = one_round(ddp, optimizer, way)
    dist.all_reduce(measured)
    if dist.get_rank() == 0:
        print(json.dumps((measured / dist.get_world_size()).tolist()))
    dist.destroy_process_group()


def main() -> None:
    """One line a number of ranks."""
    print(f"{'ranks':>5} {'bare':>8} {'watched':>8} {'more':>8} {'reduce':>8} {'more':>8}   ms of the processor a step and rank")
    for ranks in (1, 2, 4):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        words = [sys.executable, __file__, "--rank"]
        running = [
            subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **told, "RANK": str(number)})
            for number in range(ranks)
        ]
        said = [process.communicate()[0] for process in running]
        rounds = json.loads(said[0])
        bare, watched, reduced = (statistics.median(column) for column in zip(*rounds, strict=True))
        more, most = (statistics.median(r[i] - r[0] for r in rounds) for i in (1, 2))
        print(f"{ranks:5} {bare:8.2f} {watched:8.2f} {more:8.2f} {reduced:8.2f} {most:8.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", action="store_true", help="be one of the ranks")
    rank() if parser.parse_args().rank else main()
