"""One rank of trainings that are sick, each in its own way, and of their healthy twins."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

import hookscope as hs

STEPS = 24


def main(to: str, *programs: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    rank = dist.get_rank()
    for program in programs:
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        ddp = nn.parallel.DistributedDataParallel(inner)
        optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
        generator = torch.Generator().manual_seed(0 if program == "seed" else rank)
        with hs.watch(ddp, optimizer, to=f"{to}/{program}", on_finding="ignore"):
            for step in range(STEPS):
                optimizer.zero_grad()
                x = torch.randn(8, 4, generator=generator)
                if program == "nan" and step == 5 and rank:
                    x[3] = float("nan")
                model = inner if program == "bypass" else ddp
                times = 30.0 if program == "apart" and rank else 1.0
                (times * (model(x) - 1).square().mean()).backward()
                optimizer.step()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
