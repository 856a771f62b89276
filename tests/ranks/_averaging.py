"""One rank of trainings under DistributedDataParallel in all its ways, each without and with a watch; says how far they agree."""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join

import hookscope as hs

Data = nn.parallel.DistributedDataParallel
WAYS: dict[str, dict[str, Any]] = {
    "static_graph": {"static_graph": True},
    "find_unused": {"find_unused_parameters": True},
    "bucket_view": {"gradient_as_bucket_view": True},
    "small_buckets": {"bucket_cap_mb": 1e-5},
    "no_sync": {},
    "comm_hook": {},
    "join": {},
}


class Branching(nn.Module):
    """`branch` is used by odd ranks only, where `branching` is asked for."""

    def __init__(self, *, branching: bool) -> None:
        super().__init__()
        self.trunk, self.branch, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.branching = branching

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.trunk(x))
        if not self.branching or dist.get_rank() % 2:
            x = self.branch(x)
        return self.head(x)


def halved(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future().then(lambda f: f.value()[0])


def train(way: str, to: Path | None) -> tuple[list[torch.Tensor], dict[str, float]]:
    """The parameters at the end; the square norms of this rank's own gradients of the last step, from hooks of the test's own."""
    torch.manual_seed(0)
    own: dict[str, float] = {}
    model = Branching(branching=way == "find_unused")
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: own.__setitem__(name, float(p.grad.double().square().sum())))
    ddp = Data(model, **WAYS[way])
    if way == "comm_hook":
        halved.__annotations__.clear()  # DDP compares them by identity
        ddp.register_comm_hook(None, halved)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    with (
        contextlib.nullcontext() if to is None else hs.watch(ddp, optimizer, to=to),
        Join([ddp]) if way == "join" else contextlib.nullcontext(),
    ):
        for _ in range(3 + 2 * (way == "join" and dist.get_rank())):
            own.clear()
            optimizer.zero_grad()
            if way == "no_sync":
                with ddp.no_sync():
                    ddp(torch.randn(4, 4, generator=generator)).square().mean().backward()
            ddp(torch.randn(4, 4, generator=generator)).square().mean().backward()
            optimizer.step()
    return [p.detach().clone() for p in model.parameters()], dict(own)


def main(to: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    told = {}
    for way in WAYS:
        bare, _ = train(way, None)
        watched, own = train(way, Path(to) / way)
        told[way] = {"equal": all(torch.equal(a, b) for a, b in zip(watched, bare, strict=True)), "own": own}
        dist.barrier()
    sys.stdout.write(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
