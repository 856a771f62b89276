"""One of two ranks of a training with gloo and DistributedDataParallel, one of which gets a bad sample; writes what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hookscope as hs

AT = 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return self.b(h + torch.log(1 - 2 * (x[:, :1] > 50).float()))


def main(rank: int, port: str, to: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=90))
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Net())
    reduced = 0

    def count(state, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations by identity
        nonlocal reduced
        reduced += 1
        tensor = bucket.buffer() / 2
        return dist.all_reduce(tensor, async_op=True).get_future().then(lambda f: f.value()[0])

    ddp.register_comm_hook(None, count)
    sgd = torch.optim.SGD(ddp.parameters(), 0.01)
    with hs.watch(ddp, sgd, to=to, on_finding="ignore") as w:
        for step in range(4):
            sgd.zero_grad()
            x = torch.randn(5, 4)
            if step == AT and rank == 1:
                x[3, 0] = 99.0
            ddp(x).square().mean().backward()
            sgd.step()
    events = [e for e in w.run.events if e["event"] in ("origin", "switched_off") and e.get("rank", 0) == rank]
    bits = [p.isnan().any().item() for p in ddp.parameters()]
    sys.stdout.write(json.dumps({"events": events, "reduced": reduced, "bad": bits}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
