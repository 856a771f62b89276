"""Where torch.compile runs a module, no hook does: the run says so, whatever way it was compiled, and nothing else is blamed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import hookscope as hs

from ._hiding import BATCH, Forward, blind, missed, watched

COMPILED: dict[str, Callable[[nn.Module], tuple[nn.Module, Forward]]] = {
    "the watched model": lambda model: (compiled := torch.compile(model, backend="eager"), compiled),
    "by its own method": lambda model: (model.compile(backend="aot_eager"), (model, model))[1],
    "around it": lambda model: (model, torch.compile(model, backend="eager")),
    "around a model that holds it": lambda model: (model, torch.compile(nn.Sequential(model, nn.Tanh()), backend="eager")),
}


@pytest.fixture
def _fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("way", COMPILED)
def test_a_compiled_model_is_said_to_be_compiled(way: str) -> None:
    model, forward = COMPILED[way](nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    run = watched(model, forward)
    assert missed(run) == {"compiled": ["(root)"]}
    assert blind(run)["compiled"].message.startswith("(root): 3 modules run in a graph of torch.compile")
    assert run["0.weight:param_grad", "rms"].values.min() > 0


@pytest.mark.usefixtures("_fresh_compiler")
def test_one_compiled_layer_is_the_only_one_missed() -> None:
    model = nn.Sequential(torch.compile(nn.Linear(4, 4), backend="eager"), nn.Tanh(), nn.Linear(4, 4))
    assert missed(watched(model)) == {"compiled": ["0"]}


@pytest.mark.usefixtures("_fresh_compiler")
def test_the_advice_for_a_compiled_model_lets_one_look_inside() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), backend="eager")
    assert missed(watched(model)) == {"compiled": ["(root)"]}
    torch.compiler.set_stance("force_eager")
    try:
        assert missed(watched(model)) == {}
    finally:
        torch.compiler.set_stance("default")


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_model_inside_a_compiled_function_looks_like_one_whose_weights_are_used() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    found = blind(watched(model, torch.compile(lambda x: model(2 * x), backend="eager")))
    assert found["functional"].module == "(root)"
    assert "compiled by torch.compile" in found["functional"].causes[1]


def test_a_compiled_model_that_is_gone_before_the_watch_ends_is_remembered() -> None:
    def train() -> hs.watch:
        model = torch.compile(nn.Linear(4, 4), backend="eager")
        watch = hs.watch(model)
        model(BATCH).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        return watch

    w = train()
    w.close()
    assert missed(w.run) == {"compiled": ["(root)"]}
