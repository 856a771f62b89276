"""One rank of trainings in which something happens on the last rank only; says where each rank learned of it."""

from __future__ import annotations

import json
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _cells import spread
from _nets import net

import hookscope as hs
from hookscope._watch import _wire

STEPS = 8
LAST_STEP = {"uneven": 5}
DRILLS: dict[str, dict[str, Any]] = {
    "grad": {"on_nonfinite": "raise"},  # its own gradient is bad, those of others are not
    "skip": {"on_nonfinite": "skip"},
    "batch": {"on_finding": "raise"},  # its batch is bad, and nothing that other ranks see: each has a model of its own
    "same": {"on_finding": "ignore"},
    "uneven": {"on_finding": "ignore"},  # it takes fewer steps
    "sampling": {"on_finding": "ignore"},  # it records others
}


def train(how: str, what: str, to: Path, *, reduce: Any) -> dict[str, Any]:
    model = spread(how, net())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    odd = dist.get_rank() == dist.get_world_size() - 1
    every = 2 if what == "sampling" and odd else 1
    learned, step, weights = "", -1, []
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            with hs.watch(model, optimizer, to=to, every=every, reduce=reduce, **DRILLS[what]) as w:
                for step in range(LAST_STEP[what] if what == "uneven" and odd else STEPS):
                    optimizer.zero_grad()
                    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
                    if odd and step == 3 and what in ("batch", "same"):
                        x[1] = float("nan")
                    with model.no_sync() if how == "ddp" and what == "uneven" else torch.enable_grad():
                        model(x).square().mean().backward()
                    if odd and step == 3 and what in ("grad", "skip"):
                        next(model.parameters()).grad.fill_(float("nan"))
                    optimizer.step()
                    weights.append(sum(float(getattr(p, "_local_tensor", p).detach().double().sum()) for p in model.parameters()))
        except (hs.NonFiniteError, hs.FindingError) as error:
            learned = type(error).__name__
    found = sorted({(f.rule, f.module, f.first_step) for f in w.findings})
    told = [str(one.message) for one in given if "given up" in str(one.message)]
    moved = [a != b for a, b in zip(weights[1:], weights, strict=False)]
    return {"learned": learned, "step": step, "findings": found, "given_up": told, "moved": moved}


def main(to: str, *drills: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    told = {}
    for drill in drills:
        how, _, what = drill.partition(":")
        reduce = None if drill == "alone:grad" else "step"
        told[f"{how}-{what}"] = train(how, what, Path(to) / f"{how}-{what}", reduce=reduce)
        dist.barrier()
    if drills and drills[0].startswith("ddp"):
        _wire.OPENING_S = 2.0
        if dist.get_rank() == 0:  # no other rank opens a watch
            try:
                hs.watch(net(), reduce="step")
            except hs.AttachError as error:
                told["alone"] = {"learned": str(error)}
        dist.barrier()
    sys.stdout.write(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
