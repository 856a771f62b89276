"""What the eight stats of a tensor on a GPU cost: memory read a second, beside torch operations, `torch.sum` and a copy.

`python benchmarks/gpu_kernels.py` needs a GPU; `--device cpu --tiny` shows only that it runs. `benchmarks/gpu.py` has this, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from hookscope._stats import Cells, Listed, backend, reduce_into
from hookscope._stats._fallback import stats_in_chunks

LIMIT_S = 330.0
ELEMENTS = (1_000, 100_000, 10_000_000, 300_000_000)


@dataclass(frozen=True)
class Place:
    """Where, and how large."""

    device: torch.device
    tiny: bool
    began: float = field(default_factory=time.perf_counter)

    def wait(self) -> None:
        """Until the device has done what is queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def left(self) -> float:
        """Seconds until this has to be over."""
        return LIMIT_S - (time.perf_counter() - self.began)


def block(step: Callable[[], object], place: Place, steps: int) -> float:
    """Milliseconds a step."""
    place.wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    place.wait()
    return (time.perf_counter() - start) / steps * 1e3


def call_seconds(call: Callable[[], object], place: Place) -> float:
    """The time of one call in a row of them, the best of five."""
    call()
    best = float("inf")
    for _ in range(2 if place.tiny else 5):
        best = min(best, block(call, place, 2 if place.tiny else 20) / 1e3)
    return best


def kernels_table(place: Place) -> list[str]:
    """GB a second that are read; a copy reads and writes, and is given by what it reads."""
    lines = [f"{'dtype':10} {'elements':>12} {'reduce_into':>12} {'torch ops':>12} {'torch.sum':>12} {'copy':>12}   GB/s read"]
    row = Cells(place.device).row()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for n in ELEMENTS[:2] if place.tiny else ELEMENTS:
            if place.left() < 5:
                break
            x = torch.randn(n, device=place.device).to(dtype)
            target = torch.empty_like(x)
            calls = (lambda: reduce_into(row, x), lambda: stats_in_chunks(x), x.sum, lambda: target.copy_(x))  # noqa: B023  # called here
            rates = " ".join(f"{x.nbytes / call_seconds(call, place) / 1e9:12.1f}" for call in calls)
            lines.append(f"{str(dtype).removeprefix('torch.'):10} {n:12} {rates}")
    return lines


def lists_table(parameters: list[torch.Tensor], place: Place) -> list[str]:
    """All parameters of a model: in one call, and one by one."""
    tensors = [p.detach().to(place.device) for p in parameters]
    cells = Cells(place.device)
    rows = [cells.row() for _ in tensors]

    def at_once() -> None:
        listed = Listed()
        for row, x in zip(rows, tensors, strict=True):
            listed.add(row, x)
        listed.write()

    together = call_seconds(at_once, place)
    single = call_seconds(lambda: [reduce_into(row, x) for row, x in zip(rows, tensors, strict=True)], place)
    size = sum(x.nbytes for x in tensors) / 1e9
    return [
        f"{len(tensors)} parameters: in one call {together * 1e3:.2f} ms ({size / together:.0f} GB/s), one by one {single * 1e3:.2f} ms"
    ]


def asked_for(doc: str | None) -> Place | None:
    """By the command line; None, and said so, where there is no GPU."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and few steps")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here; `--device cpu --tiny` shows only that this program runs")
        return None
    return Place(torch.device(given.device), given.tiny)


def machine(place: Place) -> str:
    """What a table was measured on."""
    what = torch.cuda.get_device_name() if place.device.type == "cuda" else "CPU"
    return f"torch {torch.__version__}, {what}; statistics on CPU by {backend()}"


def main() -> None:
    """Both tables; the list is of the sizes that GPT-2's parameters have."""
    place = asked_for(__doc__)
    if place is not None:
        width = 32 if place.tiny else 768
        layer = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width, 4 * width), (4 * width,), (4 * width, width)]
        print(machine(place), *kernels_table(place), "", *lists_table([torch.randn(shape) for shape in 12 * layer], place), sep="\n")


if __name__ == "__main__":
    main()
