"""One rank of a training to which something happens; says how it ended, bit for bit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from _cells import spread
from _nets import net
from torch import nn

import hookscope as hs

STEPS = 6
ENDS = ("kill", "raise", "reduce kill", "reduce raise")  # after which the ranks no longer speak to each other


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(100 * step + rank))


def happens(what: str, step: int, x: torch.Tensor) -> torch.Tensor:
    """What the drill does to rank 1, in step 3."""
    what = what.removeprefix("reduce ")
    if dist.get_rank() != 1 or step != 3:
        return x
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raise":
        raise ValueError("the drill")
    if what == "slow":
        time.sleep(1.5)
    if what == "nan":
        return x.index_fill(0, torch.tensor([2]), float("nan"))
    if what == "leap":
        return x * 1e6
    if what == "huge":
        return x * 1e30
    if what == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    return x


def options(what: str) -> dict[str, Any]:
    if what == "sampling":
        return {"every": 1 + dist.get_rank()}
    if what.startswith("reduce"):
        what = what.partition(" ")[2]
        return {**options(what), "reduce": "step"}
    if what == "unwatched" and dist.get_rank() == 1:
        return {"select": "**:output"}
    return {"every": 1} if what != "schedule" else {}


def train(how: str, what: str, to: str) -> dict[str, Any]:
    model = spread(how, net(recompute="checkpoint" in what)) if how != "syncbn" else synced()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    rank, sizes = dist.get_rank(), []
    watching: Any = contextlib.nullcontext()
    if to:
        watching = hs.watch(model, optimizer, to=to, on_finding="ignore", overwrite=True, **options(what))
    error = None
    try:
        with watching:
            for step in range(STEPS):
                optimizer.zero_grad()
                loss = model(happens(what, step, batch(step, 0 if how == "tp" else rank))).square().mean()
                loss.backward()
                optimizer.step()
                sizes.append(float(loss))
    except Exception as raised:  # noqa: BLE001  # that of a rank whose neighbour has gone
        error = type(raised).__name__
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(getattr(p, "_local_tensor", p).detach().numpy().tobytes())
    return {"digest": digest.hexdigest(), "losses": [repr(s) for s in sizes], "error": error}


def synced() -> nn.Module:
    torch.manual_seed(0)
    return spread("ddp", nn.Sequential(nn.Linear(4, 8), Normed(8), nn.ReLU(), nn.Linear(8, 2)))


class Normed(nn.Module):
    """Batch statistics over all ranks, as SyncBatchNorm makes them on GPUs: a forward that waits for the others."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.detach().square().mean(0)
        dist.all_reduce(scale)
        return self.weight * x / (scale + 1e-5).sqrt()


def main(to: str, *drills: str) -> None:
    """Each drill, `how:what`, without a watch and then with one, `how:reduce what` with one that speaks to other ranks.

    One that ends the process is done only with a watch, unless `to` is "bare".
    """
    dist.init_process_group("gloo", timeout=timedelta(seconds=40))
    told = {}
    for drill in drills:
        how, _, what = drill.partition(":")
        runs = [train(how, what, "" if to == "bare" else f"{to}/{how}-{what}")] if what in ENDS else None
        told[drill] = runs or [train(how, what, ""), train(how, what, f"{to}/{how}-{what}")]
        if what not in ENDS:
            dist.barrier()
    sys.stdout.write(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)  # a neighbour may be gone: no farewell


if __name__ == "__main__":
    main(*sys.argv[1:])
