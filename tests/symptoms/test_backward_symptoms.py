"""What people report of hooks that watch a backward, and what a watched model does instead. Numbers are those of pytorch's issues."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import checkpoint

import hookscope as hs

from ._watching import X, calls, l2, norm, recorded, seeded, watch_steps

pytestmark = pytest.mark.slow


def two_layers() -> nn.Sequential:
    return seeded(nn.Linear(6, 6), nn.Linear(6, 1))


@pytest.mark.parametrize("grad", [False, True])
def test_the_first_layer_is_seen_whether_its_input_has_a_gradient_or_not(grad: bool) -> None:
    """56380, 100528: a full backward hook skipped it, or comes too early."""
    model, twin = two_layers(), two_layers()
    run = watch_steps(model, lambda: model(X.clone().requires_grad_(grad)).square().sum())
    hidden = twin[0](X)
    hidden.retain_grad()
    twin[1](hidden).square().sum().backward()
    assert hidden.grad is not None
    assert l2(run, "0:output_grad") == pytest.approx(norm(hidden.grad))
    rows = run.rows(0, 0)
    names = {site.id: site.name for site in run.sites if site.kind == "output_grad" and site.path}
    assert [names[site] for site in rows.site.tolist() if site in names] == ["0:output_grad", "1:output_grad"]  # in forward order


def test_a_weights_gradient_is_this_steps_own_from_the_first_step_on() -> None:
    """149938: in a full backward hook `.weight.grad` is None, or the previous step's."""
    model, twin = two_layers(), two_layers()
    run = watch_steps(model, lambda: model(X).square().sum(), steps=3)
    optimizer, norms = torch.optim.SGD(twin.parameters(), lr=0.01), []
    for _ in range(3):
        optimizer.zero_grad()
        twin(X).square().sum().backward()
        grad = twin[0].weight.grad
        assert isinstance(grad, torch.Tensor)
        norms.append(norm(grad))
        optimizer.step()
    assert run["0.weight:param_grad", "l2"].values.tolist() == pytest.approx(norms)
    assert len({round(value, 6) for value in norms}) == 3


class Shared(nn.Module):
    """One layer, called twice, each time in a checkpoint of its own."""

    def __init__(self, around: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.around, self.layer = around, seeded(nn.Linear(6, 6))[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.around(self.layer, self.around(self.layer, x).tanh())


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_layer_that_two_checkpoints_share_counts_each_use_once(reentrant: bool) -> None:
    """81296, 143573: hooks of the parameter fire twice in a re-entrant backward, those of the module again in the recomputation."""
    model, twin = Shared(partial(checkpoint, use_reentrant=reentrant)), Shared(lambda layer, x: layer(x))
    run = watch_steps(model, lambda: model(X.clone().requires_grad_()).square().sum(), select=["**", "**:input"])
    twin(X).square().sum().backward()
    assert calls(run, "layer:output") == calls(run, "layer:output_grad") == calls(run, "layer:input") == 2
    grad = twin.layer.weight.grad
    assert isinstance(grad, torch.Tensor)
    assert l2(run, "layer.weight:param_grad") == pytest.approx(norm(grad))


@pytest.mark.parametrize("how", ["set_", "data"])
def test_a_parameter_whose_memory_was_exchanged_is_still_seen(how: str) -> None:
    """139742: hooks on the node that accumulates its gradient are lost with it."""
    model = seeded(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    weight = model[0].weight
    assert isinstance(weight, nn.Parameter)
    with hs.watch(model, optimizer, updates="full") as w:
        with torch.no_grad():
            if how == "set_":
                weight.set_(torch.ones(1, 6))
            else:
                weight.data = torch.ones(1, 6)
        model(X).sum().backward()
        optimizer.step()
    assert w.run["0.weight:param", "mean"].values.tolist() == [1.0]
    assert l2(w.run, "0.weight:param_grad") == pytest.approx(norm(X.sum(0)))
    assert l2(w.run, "0.weight:update") == pytest.approx(0.01 * norm(X.sum(0)), rel=1e-5)


def test_a_weight_and_its_gradient_are_not_mixed_up() -> None:
    """187268: a hook behind the accumulation is given the parameter, where one expects the gradient."""
    model = seeded(nn.Linear(6, 1, bias=False))
    before = norm(model[0].weight)  # type: ignore[arg-type]
    run = watch_steps(model, lambda: torch.sum(model(X) * 1000))
    assert l2(run, "0.weight:param") == pytest.approx(before)
    assert l2(run, "0.weight:param_grad") == pytest.approx(1000 * norm(X.sum(0)))


class SplitInTwo(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.unbind(1)[:2]


def test_an_output_that_the_loss_does_not_use_has_no_gradient_and_does_no_harm() -> None:
    """11751: its hook is called with None."""
    model = seeded(nn.Linear(6, 2), SplitInTwo())
    run = watch_steps(model, lambda: torch.sum(model(X)[1]))
    assert not recorded(run, "1:output_grad[0]")
    assert l2(run, "1:output_grad[1]") == pytest.approx(2.0)


class ThreeOperations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((6,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight * 5).flatten()


def test_the_gradient_of_a_module_of_several_operations_is_that_of_its_output() -> None:
    """598: the older kind of hook gives the last operation's inputs."""
    model = ThreeOperations()
    run = watch_steps(model, lambda: torch.sum(3 * model(X)))
    assert l2(run, "(root):output_grad") == pytest.approx(3 * 24**0.5)


def alive(hooked: bool, how: str) -> int:
    """How many of three models outlive their last reference."""
    tokens = []
    for _ in range(3):
        model = seeded(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
        tokens.append(weakref.ref(model))
        watch = hs.watch(model) if hooked else None
        loss = model(X).square().sum()
        if how == "create_graph":
            gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            (loss + sum(g.square().sum() for g in gradients)).backward()
            del gradients
        elif how == "backward":
            loss.backward()
        del model, loss, watch
    gc.collect()
    return sum(token() is not None for token in tokens)


@pytest.mark.parametrize("how", ["create_graph", "backward", "forward only"])
def test_a_watched_model_is_freed_when_nobody_holds_it(how: str) -> None:
    """82528, 74831, 7343: hooks that hold tensors of the graph they sit on are never freed."""
    gc.collect()
    before = list(torch_module._global_module_registration_hooks)
    assert alive(False, how) == 0
    assert alive(True, how) == 0
    gc.collect()  # a watch goes after its model, in the round that follows
    assert list(torch_module._global_module_registration_hooks) == before  # nor does its watch leave a hook in torch itself


def test_a_garbage_collection_in_the_midst_of_a_step_loses_no_hook() -> None:
    """102174: it collected hooks that the graph should have kept."""
    model = seeded(nn.Linear(6, 1))

    def loss() -> torch.Tensor:
        value = model(X).sum()
        gc.collect()
        return value

    assert l2(watch_steps(model, loss), "0:output_grad") == pytest.approx(2.0)


@pytest.mark.parametrize("where", ["module", "tensor", "optimizer"])
def test_a_watch_may_be_closed_from_within_any_hook(where: str) -> None:
    """58354: a hook that removed itself crashed; in an optimizer's hooks it still raises."""
    model = seeded(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    w = hs.watch(model, optimizer)
    if where == "module":
        model.register_forward_hook(lambda *_: w.close())
    elif where == "optimizer":
        optimizer.register_step_pre_hook(lambda *_: w.close())
        optimizer.register_step_post_hook(lambda *_: None)
    output = model(X)
    if where == "tensor":
        output.register_hook(lambda _: w.close())
    output.sum().backward()
    optimizer.step()
    assert model[0]._forward_hooks == {}
    assert w.run.meta.status == "finished"


def test_an_error_in_a_hook_of_the_users_keeps_its_words_and_its_place() -> None:
    """112438, 42560, 37672: the message was swallowed, the traceback lost, or masked by another error."""
    model = seeded(nn.Linear(6, 1))

    def a_hook_of_mine(grad: torch.Tensor) -> None:
        raise ValueError("the real cause")

    with hs.watch(model):
        output = model(X)
        output.register_hook(a_hook_of_mine)
        with pytest.raises(ValueError, match="the real cause") as caught:
            output.sum().backward()
    assert "a_hook_of_mine" in "".join(traceback.format_exception(caught.value))


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_an_infinite_gradient_is_found_which_anomaly_detection_lets_pass() -> None:
    """160016, 101069: it knows NaN alone, in the backward alone, and tells the place by a warning."""
    model = seeded(nn.Linear(6, 1))

    def loss() -> torch.Tensor:
        output = model(X + 2)
        return (output - output.detach()).sqrt().sum()

    with pytest.warns(hs.FindingWarning, match="Inf"), torch.autograd.detect_anomaly(check_nan=True):
        run = watch_steps(model, loss)
    assert run["0.weight:param_grad", "inf"].values.tolist() == [6.0]
    assert hs.diagnose(run).verdict == "sick"


def test_a_nan_in_the_forward_is_found_which_anomaly_detection_lets_pass() -> None:
    """160016."""
    model = seeded(nn.Linear(6, 6), nn.Softplus())
    with pytest.warns(hs.FindingWarning, match="'?0'?"):
        run = watch_steps(model, lambda: model(X * float("nan")).detach().sum() + 0 * model[0].weight.sum())
    assert l2(run, "0:output") == 0  # of the finite elements, of which there are none
    assert run["0:output", "nan"].values.tolist() == [24.0]


def test_packing_and_unpacking_hooks_of_the_users_run_as_often_as_ever() -> None:
    """70134, 130734: of several pairs only the innermost runs, so an observer that uses one switches the user's off."""

    def packed(watched: bool) -> int:
        model, count = two_layers(), []
        w = hs.watch(model) if watched else None
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (count.append(1), t)[1], lambda t: t):
            model(X).square().sum().backward()
        if w is not None:
            w.close()
        return len(count)

    assert packed(True) == packed(False) > 0


def test_a_forbidden_operation_in_place_is_still_refused() -> None:
    """128611: with an observer that packs saved tensors torch no longer notices, and gives wrong gradients."""
    model = seeded(nn.Linear(6, 6), nn.Sigmoid())
    with hs.watch(model):
        output = model(X)
        output.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()
