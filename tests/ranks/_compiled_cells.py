"""One rank that trains every cell of the table of compiled models: how the model is spread, how it is compiled, what else is done to it.

Told are the words "done", or why torch itself refuses the cell without a watch; that the bits are those without one is asserted.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from _cells import samples, spread
from _nets import RATE, batches, loss_of, net
from torch import nn

import hookscope as hs

WAYS = ("eager", "compile", "fullgraph", "regional")
WHATS = ("plain", "bf16", "checkpoint")


def by_blocks(backend: str, model: nn.Module) -> None:
    for block in (model.first, model.second):
        block.compile(backend=backend, fullgraph=True)


def compiled(way: str, backend: str, model: nn.Module) -> nn.Module:
    return torch.compile(model, backend=backend, fullgraph=way == "fullgraph") if way in ("compile", "fullgraph") else model


def train(how: str, way: str, what: str, backend: str, to: Path | None) -> list[torch.Tensor]:
    """The parameters at the end, this rank's part of each."""
    torch._dynamo.reset()
    model = spread(how, net(recompute=what == "checkpoint"), (lambda m: by_blocks(backend, m)) if way == "regional" else (lambda _: None))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    watching = contextlib.nullcontext() if to is None else hs.watch(model, optimizer, to=to, updates="full", every=1)
    with watching:
        called = compiled(way, backend, model)
        for x in batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=what == "bf16"):
                output = called(samples(how, x))
            loss_of(output).backward()
            optimizer.step()
    return [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()]


def cell(how: str, way: str, what: str, backend: str, to: Path) -> str:
    try:
        bare = train(how, way, what, backend, None)
    except Exception as error:  # noqa: BLE001  # whatever torch says
        return f"{type(error).__name__}: {error}"
    watched = train(how, way, what, backend, to)
    same = all(torch.equal(a, b) for a, b in zip(watched, bare, strict=True))
    return "done" if same else "other bits"


def main(to: str, backend: str, *names: str) -> None:
    """`names` are cells as `how:way:what`."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    told = {}
    for name in names:
        told[name] = cell(*name.split(":"), backend, Path(to, *name.split(":")))
        dist.barrier()
    sys.stdout.write(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
