"""Compiled and wrapped models give the values of the plain model, under its own names, or say why not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True)), nn.Linear(8, 2)).eval()


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def compiled_inside(model: nn.Sequential) -> nn.Module:
    model[0] = torch.compile(model[0], backend="eager")
    return model


def compiled_checkpointed(model: nn.Sequential) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model[0] = checkpoint_wrapper(model[0])
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


WRAPPERS: dict[str, Callable[[Any], nn.Module]] = {
    "torch.compile": lambda model: torch.compile(model, backend="eager"),
    "model.compile": compiled_in_place,
    "a compiled part": compiled_inside,
    "DataParallel": nn.DataParallel,
    "compiled DataParallel": lambda model: torch.compile(nn.DataParallel(model), backend="eager"),
    "a checkpointed part, compiled": compiled_checkpointed,
    "torch.fx": torch.fx.symbolic_trace,
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_the_values_and_names_are_those_of_the_plain_model(wrapper: Callable[[Any], nn.Module], warm: bool) -> None:
    plain = hs.extract(net(), X, ["0.0", "1:input", "(root)"])
    wrapped = wrapper(net())
    if warm:
        with torch.no_grad():
            wrapped(X)
    feats = hs.extract(wrapped, X, ["0.0", "1:input", "(root)"])
    assert [str(key) for key in feats] == [str(key) for key in plain] == ["0.0:output", "1:input", "(root):output"]
    assert all(torch.equal(feats[key], plain[str(key)]) for key in feats)
    assert (feats["0.0"] < 0).any()


def test_a_capture_around_a_compiled_model_has_gradients_too() -> None:
    model = torch.compile(net(), backend="aot_eager")
    model(X).sum().backward()
    with hs.capture(model, ["0.0:output_grad", "1.weight:param_grad"]) as feats:
        model(X).sum().backward()
    plain = net()
    h = plain[0][0](X)
    (right,) = torch.autograd.grad(plain[1](h.relu()).sum(), h)
    assert torch.equal(feats["0.0:output_grad"], right)
    assert len(feats) == 2


def test_afterwards_the_compiled_model_runs_compiled_again() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    model = torch.compile(net(), backend=backend)
    with torch.no_grad():
        hs.extract(model, X, "1")
        assert graphs == []
        model(X)
    assert len(graphs) == 1


def test_a_scripted_model_is_refused_in_words() -> None:
    with pytest.warns(DeprecationWarning, match="jit"):
        model = torch.jit.script(net())
    with pytest.raises(hs.AttachError, match=r"^'1' is scripted, and torch places no hooks there: extract before torch\.jit\.script$"):
        hs.extract(model, X, "1")


def test_data_parallel_over_several_devices_is_refused_in_words() -> None:
    model = nn.DataParallel(net())
    model.device_ids = [0, 1]
    with pytest.raises(hs.AttachError, match=r"over 2 devices runs copies of the model: pass the model in it, model\.module"):
        hs.extract(model, X, "1")


@pytest.mark.skipif(sys.platform == "win32" or not torch.distributed.is_available(), reason="gloo over a file")
def test_ddp_gives_values_and_gradients_under_the_plain_names(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(net())
        plain = hs.extract(net(), X, "0.0")
        assert torch.equal(hs.extract(model, X, "0.0")["0.0"], plain["0.0"])
        stopped = hs.extract(model, (batch for batch in (X, X)), "0.0")
        assert torch.equal(stopped["0.0"], torch.cat([plain["0.0"]] * 2))
        with hs.capture(model, ["0.0:output_grad", "1.weight:param_grad"]) as feats:
            for _ in range(2):
                model.zero_grad()
                model(X).sum().backward()
        assert len(feats) == 4
        assert torch.equal(feats["1.weight:param_grad", 0], feats["1.weight:param_grad", 1])
    finally:
        torch.distributed.destroy_process_group()
