"""What a graph of torch.compile does not read of a model is said, whatever way it was compiled, and nothing else is blamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import hookscope as hs

from ._hiding import BATCH, Forward, blind, missed, watched

pytestmark = pytest.mark.slow

COMPILED: dict[str, Callable[[nn.Module], tuple[nn.Module, Forward]]] = {
    "the watched model": lambda model: (compiled := torch.compile(model, backend="eager"), compiled),
    "by its own method": lambda model: (model.compile(backend="aot_eager"), (model, model))[1],
    "around it": lambda model: (model, torch.compile(model, backend="eager")),
    "around a model that holds it": lambda model: (model, torch.compile(nn.Sequential(model, nn.Tanh()), backend="eager")),
}


class Box:
    def __init__(self, content: torch.Tensor) -> None:
        self.content = content


class Odd(nn.Linear):
    """Returns what no graph reads."""

    def forward(self, x: torch.Tensor) -> Box:  # type: ignore[override]
        return Box(super().forward(x))


class Holder(nn.Sequential):
    """Takes the tensor out of it again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).content


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("way", COMPILED)
def test_a_compiled_model_is_read(way: str) -> None:
    model, forward = COMPILED[way](nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    run = watched(model, forward)
    assert missed(run) == {}
    for site in ("0.weight:param_grad", "0:output", "1:output_grad"):
        assert run[site, "rms"].values.min() > 0


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_compiled_module_that_returns_an_object_is_said_not_to_be_read() -> None:
    run = watched(model := Holder(nn.Tanh(), Odd(4, 4)), torch.compile(model, backend="eager"))
    assert missed(run) == {"compiled": ["1"]}
    assert blind(run)["compiled"].message.startswith("1: 1 module runs in a graph of torch.compile that does not read it")
    assert run["0:output", "rms"].values.min() > 0


@pytest.mark.usefixtures("_fresh_compiler")
def test_the_advice_for_it_lets_one_look_inside() -> None:
    torch.compiler.set_stance("force_eager")
    try:
        assert missed(watched(torch.compile(Holder(Odd(4, 4)), backend="eager"))) == {}
    finally:
        torch.compiler.set_stance("default")


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_view_that_is_written_to_has_its_gradient_missed_in_a_graph() -> None:
    class Written(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self[1](self[0](x))
            h += 1
            return self[2](h)

    model = Written(nn.Linear(4, 4), nn.Flatten(0), nn.Linear(16, 4))
    found = blind(watched(model, torch.compile(model, backend="aot_eager")))
    assert found["untapped_gradients"].message.startswith("1: the gradient at the output of")


@pytest.mark.usefixtures("_fresh_compiler")
def test_more_tensors_than_there_is_room_for_are_said_to_be_missed() -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(x / k for k in range(1, 12))

    class Sum(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sum(super().forward(x), torch.zeros(()))

    model = Sum(nn.Linear(4, 4), Many())
    run = watched(model, torch.compile(model, backend="aot_eager"))
    assert missed(run) == {"untraced_outputs": ["1"]}
    assert run["1:output[3]", "rms"].values.min() > 0


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_model_inside_a_compiled_function_is_read_too() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    run = watched(model, torch.compile(lambda x: model(2 * x), backend="eager"))
    assert missed(run) == {}
    assert run["0:output", "rms"].values.min() > 0


def test_a_compiled_model_that_is_gone_before_the_watch_ends_is_remembered() -> None:
    def train() -> hs.watch:
        model = torch.compile(Holder(Odd(4, 4)), backend="eager")
        watch = hs.watch(model)
        model(BATCH).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        return watch

    w = train()
    w.close()
    assert missed(w.run) == {"compiled": ["0"]}
