"""What people report of hooks that watch a forward, and what a watched model does instead. Numbers are those of pytorch's issues."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookscope as hs

from ._watching import X, calls, l2, never_fired, norm, recorded, seeded, watch_steps


def test_an_activation_in_place_does_not_crash_and_is_seen_before_and_after() -> None:
    """61519: with a full backward hook, `ReLU(inplace=True)` raises in the forward."""
    model = seeded(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 1))
    run = watch_steps(model, lambda: model(X).sum())
    twin = seeded(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1))
    before = twin[0](X)
    before.retain_grad()
    after = twin[1](before)
    twin[2](after).sum().backward()
    assert before.grad is not None
    assert l2(run, "0:output") == pytest.approx(norm(before))
    assert l2(run, "1:output") == pytest.approx(norm(after))
    assert l2(run, "0:output_grad") == pytest.approx(norm(before.grad))


def test_a_module_that_returns_its_input_still_returns_that_very_object() -> None:
    """61446: a full backward hook that does nothing replaces what goes in and out."""
    model = nn.Identity()
    given = X.clone().requires_grad_()
    with hs.watch(model):
        assert model(given) is given
        with torch.no_grad():  # 59901: under no_grad, too
            assert model(given) is given
    assert given.grad_fn is None


class Packs(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.inner = how, nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor] | dict[str, torch.Tensor]:
        y = self.inner(x)
        return [y * 2, y] if self.how == "list" else {"y": y * 2, "z": y}


@pytest.mark.parametrize(("how", "place"), [("list", "[0]"), ("dict", '["y"]')])
def test_outputs_in_lists_and_dicts_are_seen_with_their_gradients(how: str, place: str) -> None:
    """87540: a full backward hook is silent on them."""
    torch.manual_seed(0)
    model = Packs(how)
    run = watch_steps(model, lambda: sum((part.sum() for part in _parts(model(X))), torch.zeros(())))
    assert l2(run, f"(root):output_grad{place}") == pytest.approx(12**0.5)  # a one for each of the 4 x 3 elements
    assert l2(run, "inner:output_grad") == pytest.approx(3 * 12**0.5)  # used twice, once doubled


def _parts(output: list[torch.Tensor] | dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return list(output.values()) if isinstance(output, dict) else output


class Multiply(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b


def test_a_first_argument_without_gradient_does_no_harm() -> None:
    """57944: it crashed."""
    model = Multiply()
    with hs.watch(model) as w:
        model(torch.ones(2), torch.full((2,), 3.0, requires_grad=True)).sum().backward()
    assert l2(w.run, "(root):output_grad") == pytest.approx(2**0.5)


class OnlyKeywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, *, b: torch.Tensor) -> torch.Tensor:
        return b * self.weight


def test_a_module_that_takes_only_keywords_is_seen_with_its_input_and_its_gradient() -> None:
    """35643, 156695: hooks are not given keywords, and a full backward hook sees no gradient for them."""
    holder = nn.ModuleDict({"inner": OnlyKeywords()})
    run = watch_steps(holder, lambda: holder["inner"](b=X).sum(), select=["**", "**:input"])
    assert l2(run, "inner:input.b") == pytest.approx(norm(X))
    assert l2(run, "inner:output_grad") == pytest.approx(24**0.5)
    assert l2(run, "inner.weight:param_grad") == pytest.approx(norm(X.sum(0)))


def test_the_input_of_a_module_in_place_is_not_taken_from_what_it_wrote() -> None:
    """95617: in a forward hook the input of such a module is overwritten already."""
    model = nn.ReLU(inplace=True)
    with hs.watch(model, select=["**", "**:input"]) as w:
        model(torch.tensor([1.0, -2.0]))
        w.close("failed")  # no backward will come
    assert w.run["(root):input", "min"].values.tolist() == [-2.0]
    assert w.run["(root):output", "min"].values.tolist() == [0.0]


def test_a_projection_that_attention_uses_without_calling_it_has_its_gradients_and_is_said_to_be_silent() -> None:
    """78109: hooks on `MultiheadAttention.out_proj` are never called."""
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 3, 8)
    run = watch_steps(model, lambda: model(x, x, x)[0].square().sum())
    torch.manual_seed(0)
    twin = nn.MultiheadAttention(8, 2, batch_first=True)
    twin(x, x, x)[0].square().sum().backward()
    grad = twin.out_proj.weight.grad
    assert grad is not None
    assert l2(run, "out_proj.weight:param_grad") == pytest.approx(norm(grad))
    assert "out_proj" in never_fired(run)
    assert not recorded(run, "out_proj:output")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_encoder_that_is_evaluated_is_seen_inside_and_computes_the_same(mode: type[torch.no_grad]) -> None:
    """128413, 132700, 82919: its fast path calls no submodule."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 3, 8)
    with mode():
        plain = encoder(x)
        with hs.watch(encoder) as w:
            watched = encoder(x)
    torch.testing.assert_close(watched, plain)
    assert recorded(w.run, "layers.0.self_attn:output/eval[0]")
    assert recorded(w.run, "layers.1.linear1:output/eval")


def test_a_lazy_module_is_hooked_before_it_has_a_shape() -> None:
    """60132: a hook that was there before made its first call raise."""
    model = nn.Sequential(nn.LazyLinear(3))
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with hs.watch(model) as w:  # the optimizer has nothing of the model yet
        optimizer.add_param_group({"params": list(model.parameters())})
        model(X).sum().backward()
        optimizer.step()
    assert w.run["0.weight:param_grad", "count"].values.tolist() == [18.0]
    assert l2(w.run, "0:output_grad") == pytest.approx(12**0.5)


class Moody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.fails = nn.Linear(6, 1), True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        if self.fails:
            raise ValueError("not today")
        return y


def test_a_forward_that_raises_leaves_the_next_one_whole() -> None:
    """134242: the module stack of a tracker stays as the exception left it."""
    model = Moody()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer) as w:
        with pytest.raises(ValueError, match="not today"):
            model(X)
        model.fails = False
        for _ in range(2):
            model(X).sum().backward()
            optimizer.step()
    assert w.run.steps.tolist() == [0, 1]
    assert w.run["inner:output_grad", "l2"].values.tolist() == pytest.approx([2.0, 2.0])
    assert calls(w.run, "(root):output") == 1


def test_an_output_that_is_a_view_and_is_written_to_is_said_to_have_lost_its_gradient() -> None:
    """117366 and the like: an operation in place through a view gives the tensor a new place in the graph."""
    model = seeded(nn.Linear(6, 6), nn.Flatten(0), nn.ReLU(inplace=True))
    run = watch_steps(model, lambda: model(X).sum())
    assert recorded(run, "0:output_grad")
    assert not recorded(run, "1:output_grad")
    assert l2(run, "2:output_grad") == pytest.approx(24**0.5)
    assert [event["modules"] for event in run.events if event["event"] == "lost_gradients"] == [["1"]]


class Unregistered(nn.Module):
    """Its inner layer lies in a plain list, where no module and no optimizer finds it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = [nn.Linear(6, 6)], nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers[0](x))


def test_layers_that_lie_in_a_plain_list_are_named_though_nothing_leads_to_them() -> None:
    model = Unregistered()
    run = watch_steps(model, lambda: model(X).sum())
    (event,) = [event for event in run.events if event["event"] == "hidden_parameters"]
    assert event["count"] == 2
    assert sorted(event["parameters"]) == ["Linear.bias", "Linear.weight"]
