"""One rank of a pipeline of two stages, split by hand or traced, under two schedules; watched and bare, the bits have to agree."""

from __future__ import annotations

import contextlib
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _nets import RATE, Net, batches, net
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, SplitPoint, pipeline

import hookscope as hs

MICROS = 4
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Stage(nn.Module):
    """One block of the model, by its name there."""

    def __init__(self, model: Net, name: str) -> None:
        super().__init__()
        self.add_module(name, getattr(model, name))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.children():
            x = block(x)
        return x


def stage_of(how: str, rank: int) -> PipelineStage:
    cpu = torch.device("cpu")
    if how == "traced":
        split = pipeline(net(), mb_args=(next(batches())[:2],), split_spec={"second": SplitPoint.BEGINNING})
        return split.build_stage(rank, cpu)
    return PipelineStage(Stage(net(), ("first", "second")[rank]), rank, 2, cpu)


def train(how: str, schedule: str, to: Path | None) -> list[torch.Tensor]:
    rank = dist.get_rank()
    stage = stage_of(how, rank)
    optimizer = torch.optim.SGD(stage.submod.parameters(), RATE)
    steps = SCHEDULES[schedule](stage, MICROS, loss_fn=lambda output, _target: output.square().mean())
    watching: Any = contextlib.nullcontext() if to is None else hs.watch(stage.submod, optimizer, to=to, every=1, updates="full")
    with watching:
        for x in batches():
            optimizer.zero_grad()
            steps.step(x) if rank == 0 else steps.step(target=torch.zeros(len(x), 3))
            optimizer.step()
    return [p.detach().clone() for p in stage.submod.parameters()]


def main(to: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    for how in ("split", "traced"):
        for schedule in SCHEDULES:
            watched, bare = train(how, schedule, Path(to) / how / schedule), train(how, schedule, None)
            assert all(torch.equal(a, b) for a, b in zip(watched, bare, strict=True)), (how, schedule)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
