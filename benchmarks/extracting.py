"""What extraction costs: a forward of a small GPT-2 that gives the outputs of its six blocks, over the same forward without.

Both alternate in one process on one model and one batch, so that a machine that slows down slows both; shown is the median of the ratios
in time of the processor used by this thread, with the quartiles. Each way has a process of its own, since some change torch for good.
One thread. What can be made once before is not measured: wrapping the model for a peer. A peer that is not installed says so
(`pip install "hookscope[bench-peers]"`); baukit is on no package index, so a tracer in its manner stands in: a context with a hook a layer.

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
from importlib.metadata import version
from importlib.util import find_spec
from types import TracebackType
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import hookscope as hs
from hookscope._lab._extract._extractor import Extractor
from hookscope._lab._extract._options import Options

LAYERS, WIDTH, BATCH, TOKENS = 6, 256, 8, 128
WARM, LEAST, MOST, ENOUGH_S = 3, 15, 400, 8.0
BLOCKS = [f"transformer.h.{i}" for i in range(LAYERS)]
Way = Callable[[GPT2LMHeadModel, torch.Tensor], Callable[[], Any]]


def bare(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: model(ids)


def hookscope_extract(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: hs.extract(model, ids, "transformer.h.*", stop=False)


def hookscope_in_a_loader(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    extractor = Extractor(model, "transformer.h.*", Options(stop=False)).__enter__()
    return lambda: extractor.run(ids)


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


def hookscope_stop_asked(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: hs.extract(model, ids, "transformer.h[0:2]", stop=True)


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


class Enough(Exception):  # noqa: N818 # it ends a forward, and nothing has failed
    """Ends a forward from within a hook."""


class Tracer:
    """A context in the manner of baukit's: a hook a layer, copies, and with `stop` an end of the forward after the last of them."""

    def __init__(self, model: torch.nn.Module, names: list[str], *, stop: bool = False) -> None:
        self.found: dict[str, torch.Tensor] = {}
        self._last = names[-1] if stop else None
        self._handles = [model.get_submodule(name).register_forward_hook(partial(self._note, name)) for name in names]

    def _note(self, name: str, _module: Any, _args: Any, output: Any) -> None:
        self.found[name] = (output[0] if isinstance(output, tuple) else output).detach().clone()
        if name == self._last:
            raise Enough

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> bool:
        for handle in self._handles:
            handle.remove()
        return kind is Enough


def tracer(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: _traced(model, ids, BLOCKS)


def tracer_stop_after_two(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    return lambda: _traced(model, ids, BLOCKS[:2], stop=True)


def _traced(model: GPT2LMHeadModel, ids: torch.Tensor, names: list[str], *, stop: bool = False) -> dict[str, torch.Tensor]:
    with Tracer(model, names, stop=stop) as traced:
        model(ids)
    return traced.found


def bare_two_blocks(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    model.transformer.h, model.lm_head = model.transformer.h[:2], torch.nn.Identity()
    model.transformer.ln_f = torch.nn.Identity()
    return lambda: model(ids)


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


def surgeon(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    from surgeon_pytorch import Inspect

    inspected = Inspect(model, layer=BLOCKS)
    return lambda: inspected(ids)[1]


def torchextractor(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    import torchextractor

    extractor = torchextractor.Extractor(model, BLOCKS)
    return lambda: extractor(ids)[1]


def layer_getter(model: GPT2LMHeadModel, ids: torch.Tensor) -> Callable[[], Any]:
    from torch_intermediate_layer_getter import IntermediateLayerGetter

    getter = IntermediateLayerGetter(model, {name: name for name in BLOCKS})
    return lambda: getter(ids)[0]


WAYS: dict[str, tuple[str, Way]] = {  # the distribution it needs, the way
    "bare, against itself": ("", bare),
    "hooks by hand, no copies": ("", raw_hooks),
    "hooks by hand, copies": ("", raw_hooks_that_copy),
    "tracer like baukit's, copies": ("", tracer),
    "hs.extract": ("", hookscope_extract),
    "hs.extract, a loader's batch": ("", hookscope_in_a_loader),
    "hs.capture": ("", hookscope_capture),
    "hs.extract, pool='mean'": ("", hookscope_pooled),
    "hs.extract, all 79 modules": ("", hookscope_every_module),
    "hs.extract, functions": ("", hookscope_functions),
    "output_hidden_states": ("transformers", hidden_states),
    "captum LayerActivation": ("captum", captum),
    "surgeon Inspect": ("surgeon-pytorch", surgeon),
    "torchextractor": ("torchextractor", torchextractor),
    "IntermediateLayerGetter": ("torch-intermediate-layer-getter", layer_getter),
    "nnsight trace": ("nnsight", nnsight),
    "torchlens extract": ("torchlens", torchlens),
    "two of six: bare, rest removed": ("", bare_two_blocks),
    "two of six: tracer that stops": ("", tracer_stop_after_two),
    "two of six: hs.extract, stop=True": ("", hookscope_stop_asked),
    "two of six: a loader's 2nd batch": ("", hookscope_stop_after_two),
}
MODULES = {"surgeon-pytorch": "surgeon_pytorch", "torch-intermediate-layer-getter": "torch_intermediate_layer_getter"}


def measured(way: Way) -> np.ndarray:
    """Ratios of the way's time to the bare one's, pair by pair."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = GPT2Config(vocab_size=512, n_positions=TOKENS, n_embd=WIDTH, n_layer=LAYERS, n_head=4, use_cache=False)
    model, ids = GPT2LMHeadModel(config).eval(), torch.randint(0, 512, (BATCH, TOKENS))
    ratios: list[float] = []
    with torch.no_grad():
        alone, run = bare(copy.deepcopy(model), ids), way(model, ids)  # a way may change its model
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
        needed = WAYS[name][0]
        if needed and find_spec(MODULES.get(needed, needed)) is None:
            print(f"{name:34}       -   not installed")
            continue
        done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True, check=False)
        told = done.stdout.splitlines()[-1] if not done.returncode else f"{name:34}       -   {done.stderr.splitlines()[-1][:90]}"
        print(told, f"  {needed} {version(needed)}" if needed else "", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
