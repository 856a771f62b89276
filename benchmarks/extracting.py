"""What extraction costs: a forward of a small GPT-2 that gives the outputs of its six blocks, over the same forward without.

Both alternate in one process on one model and one batch, so that a machine that slows down slows both; shown is the median of the ratios
in time of the processor used by this thread, with the quartiles. Each way has a process of its own, since some change torch for good.
One thread. A peer that is not installed is left out (`pip install "hookscope[bench-peers]"`); baukit is on no package index.

    python benchmarks/extracting.py [WAY ...]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import copy
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import hookscope as hs
from hookscope._lab._extract._extractor import Extractor
from hookscope._lab._extract._options import Options

LAYERS, WIDTH, BATCH, TOKENS = 6, 256, 8, 128
WARM, LEAST, MOST, ENOUGH_S = 3, 15, 200, 12.0
BLOCKS = [f"transformer.h.{i}" for i in range(LAYERS)]
Way = Callable[[GPT2LMHeadModel, torch.Tensor], Callable[[], Any]]


def bare(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: model(ids)


def hookscope_extract(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: hs.extract(model, ids, "transformer.h.*", stop=False)


def hookscope_every_module(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: hs.extract(model, ids, "**", stop=False)


def hookscope_pooled(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: hs.extract(model, ids, "transformer.h.*", pool="mean", stop=False)


def hookscope_capture(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    def run() -> None:
        with hs.capture(model, "transformer.h.*"):
            model(ids)

    return run


def hookscope_stop_after_two(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    extractor = Extractor(model, "transformer.h[0:2]", Options()).__enter__()
    return lambda: extractor.run(ids)


def hookscope_functions(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: hs.extract(model, ids, "transformer.h.*.attn:output/scaled_dot_product_attention", stop=False)


def raw_hooks(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: _hooked(model, ids, lambda tensor: tensor.detach())


def raw_hooks_that_copy(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: _hooked(model, ids, lambda tensor: tensor.detach().clone())


def _hooked(model: GPT2LMHeadModel, ids: torch.Tensor, keep: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}

    def note(name: str, _module: Any, _args: Any, output: Any) -> None:
        found[name] = keep(output[0] if isinstance(output, tuple) else output)

    handles = [model.get_submodule(name).register_forward_hook(partial(note, name)) for name in BLOCKS]
    model(ids)
    for handle in handles:
        handle.remove()
    return found


def hidden_states(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: model(ids, output_hidden_states=True).hidden_states


def captum(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    from captum.attr import LayerActivation

    layers = LayerActivation(lambda ids: model(ids).logits, [model.get_submodule(name) for name in BLOCKS])
    return lambda: layers.attribute(ids)


def nnsight(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    from nnsight import NNsight

    wrapped = NNsight(model)

    def run() -> Any:
        with wrapped.trace(ids):
            saved = list().save()  # noqa: C408 # nnsight reads this line itself
            for block in wrapped.transformer.h:
                saved.append(block.output)
        return saved

    return run


def torchlens(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    import torchlens

    return lambda: torchlens.extract(model, ids, BLOCKS)


WAYS: dict[str, tuple[str, Way]] = {
    "bare, against itself": ("", bare),
    "hooks by hand, no copies": ("", raw_hooks),
    "hooks by hand, copies": ("", raw_hooks_that_copy),
    "hs.extract": ("", hookscope_extract),
    "hs.capture": ("", hookscope_capture),
    "hs.extract, pool='mean'": ("", hookscope_pooled),
    "hs.extract, all 79 modules": ("", hookscope_every_module),
    "hs.extract, functions": ("", hookscope_functions),
    "hs.extract, two of six, stopping": ("", hookscope_stop_after_two),
    "output_hidden_states": ("transformers", hidden_states),
    "captum LayerActivation": ("captum", captum),
    "nnsight trace": ("nnsight", nnsight),
    "torchlens extract": ("torchlens", torchlens),
}


def measured(way: Way) -> np.ndarray:
    """Ratios of the way's time to the bare one's, pair by pair."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = GPT2Config(vocab_size=512, n_positions=TOKENS, n_embd=WIDTH, n_layer=LAYERS, n_head=4, use_cache=False)
    model, ids = GPT2LMHeadModel(config).eval(), torch.randint(0, 512, (BATCH, TOKENS))
    ratios: list[float] = []
    with torch.no_grad():
        run, alone = way(model, ids), bare(copy.deepcopy(model), ids)
        for _ in range(WARM):
            run(), alone()
        begun = time.perf_counter()
        while len(ratios) < LEAST or (len(ratios) < MOST and time.perf_counter() - begun < ENOUGH_S):
            first, second = (_seconds(run), _seconds(alone)) if len(ratios) % 2 else (_seconds(alone), _seconds(run))[::-1]
            ratios.append(first / second)
    return np.array(ratios)


def _seconds(run: Callable[[], Any]) -> float:
    begun = time.thread_time()
    run()
    return time.thread_time() - begun


def main(names: list[str]) -> None:
    if names[:1] == ["--one"]:
        warnings.simplefilter("ignore")
        low, middle, high = np.percentile(measured(WAYS[names[1]][1]), [25, 50, 75])
        print(f"{names[1]:34}{middle:8.3f}   {low:.3f} to {high:.3f}")
        return
    print(f"{'way':34}{'ratio':>8}   quartiles")
    for name in names or WAYS:
        if WAYS[name][0] and find_spec(WAYS[name][0]) is None:
            print(f"{name:34}       -   not installed")
            continue
        done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True, check=False)
        print(
            done.stdout.splitlines()[-1] if not done.returncode else f"{name:34}       -   {done.stderr.splitlines()[-1][:90]}", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1:])
