"""What people report of hooks where a model is transformed, compiled, copied or taken apart. Numbers are those of pytorch's issues."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao.quantization.fuse_modules import fuse_known_modules

import hookscope as hs

from ._watching import X, l2, norm, recorded, seeded, watch_steps


def per_sample_gradients(model: nn.Module) -> torch.Tensor:
    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        output = torch.func.functional_call(model, parameters, (x,))
        assert isinstance(output, torch.Tensor)
        return output.square().sum()

    weights = {name: p.detach() for name, p in model.named_parameters()}
    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, X)
    assert isinstance(found, dict)
    return torch.cat([gradient.reshape(len(X), -1) for gradient in found.values()], 1)


def test_gradients_of_every_sample_are_taken_as_if_nobody_watched() -> None:
    """99556, functorch 1124: a full backward hook raises under `grad` and `vmap`."""
    model = seeded(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    plain = per_sample_gradients(model)
    with hs.watch(model) as w:
        assert torch.equal(per_sample_gradients(model), plain)
    assert [event["event"] for event in w.run.events if event["event"] == "switched_off"] == []


def test_modules_that_ran_only_inside_a_transform_are_said_to_be_unseen() -> None:
    """functorch 638: backward hooks are silent under vmap, and nobody says so."""
    model = seeded(nn.Linear(6, 1))
    with hs.watch(model) as w:
        torch.func.vmap(model)(X).sum().backward()
    assert not recorded(w.run, "0:output_grad")
    assert [event["modules"] for event in w.run.events if event["event"] == "skipped_transforms"] == [["(root)", "0"]]


class Counting:
    """A backend of torch.compile that counts the graphs it is given."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        forward: Callable[..., Any] = graph.forward
        return forward


@pytest.mark.slow  # torch.compile takes seconds to load
def test_a_watch_that_comes_after_the_compilation_says_what_it_does_not_see_and_has_all_parameters() -> None:
    """117758, 117265, 115750: hooks that are added after the first call are ignored, without a word."""
    torch.compiler.reset()
    model = seeded(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1))
    backend = Counting()
    compiled = torch.compile(model, backend=backend)
    compiled(X).sum().backward()
    run = watch_steps(model, lambda: compiled(X).square().sum(), steps=2)
    assert run["0.weight:param_grad", "l2"].steps.tolist() == [0, 1]
    unseen = {path for event in run.events if event["event"] == "never_fired" for path in event["modules"]}
    seen = {site.path or "(root)" for site in run.sites if site.kind == "output"}
    assert unseen | seen == {"(root)", "0", "1", "2"}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = seeded(nn.Linear(6, 6), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


@pytest.mark.slow  # torch.compile takes seconds to load
def test_a_watch_that_comes_first_breaks_no_graph() -> None:
    """142358: a hook on which the compiler is disabled switches the compilation of its module off."""

    def trained(*, watched: bool) -> tuple[int, torch.Tensor]:
        torch.compiler.reset()
        model, backend = Residual(), Counting()
        model.compile(backend=backend)
        w = hs.watch(model) if watched else None
        output = model(X)
        output.sum().backward()
        model(X).sum().backward()
        if w is not None:
            w.close()
        return backend.graphs, output

    (plain, expected), (graphs, output) = trained(watched=False), trained(watched=True)
    assert graphs == plain == 1
    assert torch.equal(output, expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_scripted_part_takes_no_hook_and_its_parameters_are_watched() -> None:
    """34329: Python hooks on it raise."""
    model = nn.Sequential(torch.jit.script(nn.Linear(6, 6)), nn.Linear(6, 1))
    run = watch_steps(model, lambda: model(X).sum())
    assert recorded(run, "0.weight:param_grad")
    assert recorded(run, "1:output_grad")
    assert [event["modules"] for event in run.events if event["event"] == "unhookable"] == [["0"]]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_copy_of_a_watched_model_can_be_scripted() -> None:
    """53421: a hook that is no plain function breaks the scripting."""
    model = seeded(nn.Linear(6, 1))
    w = hs.watch(model)
    model(X)
    w.close()
    assert torch.equal(torch.jit.script(model)(X), model(X))


def test_layers_of_a_watched_model_are_fused() -> None:
    """69158: several hooks on a layer made the fusion raise."""
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU()).eval()
    x = torch.ones(1, 3, 2, 2)
    with hs.watch(model), hs.watch(model):
        fused = fuse_known_modules([model[0], model[1]], False)
        expected = model[1](model[0](x))
    assert torch.equal(fused[0](x), expected)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_pickled_copy_keeps_the_hooks_that_are_part_of_the_model() -> None:
    """102983: weight_norm of the older kind is a hook; who clears the hooks of a copy takes the norm away."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 3)))
    with hs.watch(model):
        copied = pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        copied[0].weight_g.mul_(2)
        bias = model[0].bias
        assert isinstance(bias, torch.Tensor)
        torch.testing.assert_close(copied(X) - bias, 2 * (model(X) - bias))
    assert len(model[0]._forward_pre_hooks) == 1


def test_both_parts_of_a_normed_weight_have_their_gradients() -> None:
    """41529: hooks on both of them raised."""

    def make() -> nn.Sequential:
        return nn.Sequential(nn.utils.parametrizations.weight_norm(seeded(nn.Linear(6, 3))[0]))

    model, twin = make(), make()
    run = watch_steps(model, lambda: model(X).square().sum())
    twin(X).square().sum().backward()
    gradients = {name: p.grad for name, p in twin.named_parameters()}
    assert len(gradients) == 3
    for name, grad in gradients.items():
        assert grad is not None
        assert l2(run, f"{name}:param_grad") == pytest.approx(norm(grad), rel=1e-5)


def test_all_hooks_of_a_watch_go_and_those_of_others_stay() -> None:
    """2847: there is no way to remove all hooks of a model."""
    model = seeded(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1))
    count: list[str] = []
    mine = model[0].register_forward_hook(lambda *_: count.append("forward"))
    parameter = model[2].weight
    assert isinstance(parameter, nn.Parameter)
    parameter.register_hook(lambda _: count.append("backward"))
    w = hs.watch(model, select=["**", "**:input"])
    model(X).sum().backward()
    w.close()
    assert list(model[0]._forward_hooks) == [mine.id]
    for module in (model, model[1], model[2]):
        assert [*module._forward_hooks, *module._forward_pre_hooks, *module._backward_hooks, *module._backward_pre_hooks] == []
    model(X).sum().backward()
    assert count == ["forward", "backward"] * 2
