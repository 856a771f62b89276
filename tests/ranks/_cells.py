"""One rank that trains every cell of the table: how the model is spread, and what else is done to it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _nets import RATE, batches, loss_of, net
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, OffloadPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import hookscope as hs

PLAN = {
    f"{block}.{layer}": style() for block in ("first", "second") for layer, style in (("up", ColwiseParallel), ("down", RowwiseParallel))
}


CPU = torch.device("cpu")
Change = Callable[[nn.Module], Any]


def spread(how: str, model: nn.Module, within: Change = lambda model: None) -> nn.Module:
    """The model over the ranks; `within` is what else is done to it, after tensor parallelism and before what averages gradients."""
    world = dist.get_world_size()
    if how == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("copies", "dp"))
    elif how == "2d":
        both = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, both["tp"], PLAN)
        mesh = both["dp"]
    elif how in ("fsdp", "offload", "tp"):
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp" if how == "tp" else "dp",))
    if how == "tp":
        parallelize_module(model, mesh, PLAN)
    within(model)
    if how.startswith("fsdp1"):
        for name in ("first", "second"):
            setattr(model, name, FullyShardedDataParallel(getattr(model, name), use_orig_params=how == "fsdp1", device_id=CPU))
        return FullyShardedDataParallel(model, use_orig_params=how == "fsdp1", device_id=CPU)
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how in ("alone", "tp"):
        return model
    offload = CPUOffloadPolicy(pin_memory=False) if how == "offload" else OffloadPolicy()
    for block in (model.first, model.second):
        fully_shard(block, mesh=mesh, offload_policy=offload)
    return fully_shard(model, mesh=mesh, offload_policy=offload)


def samples(how: str, x: torch.Tensor) -> torch.Tensor:
    """The part of the batch that this rank works on."""
    world, rank = dist.get_world_size(), dist.get_rank()
    if how in ("alone", "tp"):
        return x
    return x.chunk(2)[rank // 2] if how == "2d" else x.chunk(world)[rank]


def train(how: str, what: str, to: Path | None, *, within: Change = lambda model: None) -> list[torch.Tensor]:
    """The parameters at the end, this rank's part of each."""
    model = spread(how, net(recompute=what == "checkpoint"), within)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    watching = contextlib.nullcontext() if to is None else hs.watch(model, optimizer, to=to, updates="full")
    with watching:
        for x in batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=what == "bf16"):
                output = model(samples(how, x))
            loss_of(output).backward()
            optimizer.step()
    return [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()]


def main(to: str, *hows: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    for how in hows:
        for what in ("plain", "bf16", "checkpoint"):
            watched, bare = train(how, what, Path(to) / how / what), train(how, what, None)
            assert all(torch.equal(a, b) for a, b in zip(watched, bare, strict=True)), (how, what)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
