"""What watching costs on a GPU: training steps with a watch, over the same steps without, and the kernels' bandwidth beside a copy.

Every way of looking at a training is timed against an unwatched copy of the model on the same batch, in turn, a block of steps each, with
the device waited for only where a block ends; shown are medians over the blocks. It stops by itself before six minutes are over.

`python benchmarks/gpu.py` needs a GPU, and `transformers`; `--device cpu --tiny` runs all of it on small models, to see that it runs.
"""

from __future__ import annotations

import importlib.util
import inspect
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpu_kernels import Place, asked_for, block, kernels_table, lists_table, machine
from torch import nn
from torch.nn.functional import cross_entropy
from watching import unheard

import hookscope as hs

# What is measured with which keywords of `hs.watch`. A row whose keywords this version does not know is shown as such.
WATCHES: dict[str, dict[str, Any]] = {
    "watch, default": {},
    "watch, every step": {"every": 1, "budget": None},
    "watch, sentinel only": {"every": 1_000_000},
}
PEERS = ("norm().item() hooks", "anomaly mode", "wandb.watch offline")
COMPILED = ("watch, default", "watch, sentinel only")  # each is compiled anew, which takes longer than to measure it

ROW_S, BLOCKS, STEPS, WARM = 7.0, 12, 5, 3

Step = Callable[[], None]


@dataclass(frozen=True)
class Training:
    """A model, its optimizer and a step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Step


class Bottleneck(nn.Module):
    """Three convolutions and a way past them, as in a ResNet-50."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        shapes = [(inside, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, k, s, k // 2, bias=False) for a, b, k, s in shapes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _, _ in shapes)
        self.act, self.past = nn.ReLU(inplace=True), nn.Identity()
        if stride > 1 or inside != 4 * width:
            self.past = nn.Sequential(nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            h = norm(conv(h))
            h = self.act(h) if i < 2 else h
        return self.act(h + self.past(x))


def resnet(place: Place) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    """Fifty layers, 25.6 million parameters, on 64 pictures of 224 x 224."""
    width, counts, size, batch = (4, (1, 1), 32, 2) if place.tiny else (64, (3, 4, 6, 3), 224, 64)
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inside = width
    for stage, count in enumerate(counts):
        for i in range(count):
            layers.append(Bottleneck(inside, width << stage, 2 if stage and not i else 1))
            inside = 4 * (width << stage)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))
    x, label = torch.randn(batch, 3, size, size, device=place.device), torch.randint(1000, (batch,), device=place.device)
    return model, lambda m: cross_entropy(m(x).float(), label)


def gpt2(place: Place) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    """Twelve layers of width 768, 124 million parameters, on 8 texts of 1024 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0} if place.tiny else {}
    config = GPT2Config(**small, use_cache=False)
    tokens = torch.randint(config.vocab_size, (2, 16) if place.tiny else (8, 1024), device=place.device)
    return GPT2LMHeadModel(config), lambda m: m(input_ids=tokens, labels=tokens).loss


CASES = {"GPT-2, eager": (gpt2, False), "ResNet-50, eager": (resnet, False), "GPT-2, compiled": (gpt2, True)}


def training(case: str, place: Place) -> Training:
    """In bfloat16 by autocast, with AdamW."""
    make, compiled = CASES[case]
    torch.manual_seed(0)
    model, loss = make(place)
    model.to(place.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=place.device.type == "cuda")
    called = torch.compile(model) if compiled else model

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(place.device.type, torch.bfloat16):
            value = loss(called)
        value.backward()
        optimizer.step()

    return Training(model, optimizer, step)


@contextmanager
def watched(trained: Training, **how: Any) -> Iterator[Step]:
    """By hookscope, in memory."""
    with hs.watch(trained.model, trained.optimizer, on_finding="ignore", **how):
        yield trained.step


@contextmanager
def naive(trained: Training) -> Iterator[Step]:
    """A norm of every output and of every gradient arriving there, read back at once: what tutorials show."""
    norms: dict[str, float] = {}

    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            norms["output"] = output.norm().item()
            if output.requires_grad:
                output.register_hook(lambda grad: norms.update(grad=grad.norm().item()))

    with ExitStack() as hooks:
        for module in trained.model.modules():
            if not list(module.children()):
                hooks.callback(module.register_forward_hook(hook).remove)
        yield trained.step


@contextmanager
def anomaly(trained: Training) -> Iterator[Step]:
    """Autograd's own."""

    def step() -> None:
        with torch.autograd.set_detect_anomaly(True):
            trained.step()

    yield step


@contextmanager
def wandb_watch(trained: Training) -> Iterator[Step]:
    """Histograms of parameters and gradients, at every step, kept offline."""
    import wandb

    with tempfile.TemporaryDirectory() as folder:
        run = wandb.init(mode="offline", dir=folder, project="benchmark", settings=wandb.Settings(silent=True))
        run.watch(trained.model, log="all", log_freq=1)

        def step() -> None:
            trained.step()
            run.log({"step": 1})

        try:
            yield step
        finally:
            run.unwatch(trained.model)
            run.finish()


def compare(case: str, name: str, place: Place) -> str:
    """One row: the step without and with, and the ratio."""
    unknown = sorted(set(WATCHES.get(name, {})) - set(inspect.signature(hs.watch).parameters))
    if unknown:
        return f"not in this version: {', '.join(unknown)}"
    if name == PEERS[2] and not _installed("wandb"):
        return "wandb is not installed"
    if place.left() < 2 * ROW_S:
        return "no time left"
    bare, looked_at = training(case, place), training(case, place)
    ways = {PEERS[0]: naive, PEERS[1]: anomaly, PEERS[2]: wandb_watch}
    enter = ways[name](looked_at) if name in ways else watched(looked_at, **WATCHES[name])
    steps, pairs = (1, 2) if place.tiny else (STEPS, BLOCKS), []
    with enter as step:
        with unheard():
            block(bare.step, place, WARM)
        block(step, place, WARM)
        began = time.perf_counter()
        while len(pairs) < 3 or (len(pairs) < steps[1] and time.perf_counter() - began < ROW_S):
            with unheard():
                before = block(bare.step, place, steps[0])
            pairs.append((before, block(step, place, steps[0])))
    times = np.array(pairs)
    ratio = times[:, 1] / times[:, 0]
    return f"{np.median(times[:, 0]):9.2f} {np.median(times[:, 1]):9.2f} {np.median(ratio):8.3f} {ratio.max():8.3f}"


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def steps_table(place: Place) -> list[str]:
    """One line a model and a way of looking at it; one that fails says so and does not end the others."""
    lines = [f"{'model':18} {'looked at by':22} {'bare ms':>9} {'with ms':>9} {'ratio':>8} {'largest':>8}"]
    for case, (_, compiled) in CASES.items():
        for name in COMPILED if compiled else (*WATCHES, *PEERS):
            try:
                row = compare(case, name, place)
            except Exception as failed:  # noqa: BLE001  # the other rows are worth having
                row = f"failed: {type(failed).__name__}: {str(failed)[:80]}"
            torch.compiler.reset()
            lines.append(f"{case:18} {name:22} {row}")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Both tables, and what they were measured on."""
    place = asked_for(__doc__)
    if place is None:
        return
    model, _ = gpt2(place)
    found = [*kernels_table(place), "", *lists_table(list(model.parameters()), place), "", *steps_table(place)]
    print("", machine(place), "", *found, sep="\n")


if __name__ == "__main__":
    main()
