"""Edits of gradients, against the arithmetic by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookscope as hs

from ._hand import Chain, assert_same, batch, run


class Graded(torch.autograd.Function):
    """Hands its input on, and `fn` of the gradient back."""

    @staticmethod
    def forward(ctx, x, fn):
        ctx.fn = fn
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.fn(grad), None


def clipped(grad: torch.Tensor) -> torch.Tensor:
    return grad * min(1.0, 0.1 / grad.norm().item())


OPS = {
    "scale": (hs.scale(0.1), lambda g: 0.1 * g),
    "zero": (hs.zero(), torch.zeros_like),
    "clip": (hs.clip_norm(0.1), clipped),
    "clamp": (hs.clamp(-0.1, 0.1), lambda g: g.clamp(-0.1, 0.1)),
    "zero a unit": (hs.zero().at(units=1), lambda g: g * torch.tensor([1, 0, 1, 1, 1, 1])),
    "two": ([hs.scale(3.0), hs.clip_norm(0.1)], lambda g: clipped(3 * g)),
}


@pytest.mark.parametrize("case", OPS)
def test_an_edit_of_an_outputs_gradient_equals_a_function_with_that_backward(case: str) -> None:
    op, by_hand = OPS[case]
    model, hand, x = Chain(), Chain(), batch()
    hand.hand = lambda h: Graded.apply(h, by_hand)
    plain = model(x)
    with hs.edit(model, {"first:output_grad": op}):
        assert torch.equal(model(x), plain)  # the forward stays as it is
        edited = run(model, x)
    assert_same(edited, run(hand, x))


@pytest.mark.parametrize("case", OPS)
def test_an_edit_of_a_parameters_gradient_acts_on_what_each_backward_brings(case: str) -> None:
    op, by_hand = OPS[case]
    model, hand = Chain(), Chain()
    with hs.edit(model, {"norm.bias:param_grad": op}):
        total = torch.zeros(6, dtype=torch.float64)
        for seed in (1, 2, 3):  # gradients that are added up
            model(batch(seed=seed)).pow(2).sum().backward()
            hand.zero_grad()
            hand(batch(seed=seed)).pow(2).sum().backward()
            total += by_hand(hand.norm.bias.grad)
    torch.testing.assert_close(model.norm.bias.grad, total, rtol=1e-12, atol=1e-12)
    hand.zero_grad()
    model.zero_grad()
    model(batch()).pow(2).sum().backward()
    hand(batch()).pow(2).sum().backward()
    assert torch.equal(model.norm.bias.grad, hand.norm.bias.grad)


def test_every_parameter_is_clipped_by_itself() -> None:
    model, x = Chain(), batch()
    plain = run(model, x)
    with hs.edit(model, {"**:param_grad": hs.clip_norm(0.5)}):
        edited = run(model, x)
    for name, parameter in model.named_parameters():
        want = plain[name] * min(1.0, 0.5 / plain[name].norm().item())
        torch.testing.assert_close(parameter.grad, want, rtol=1e-12, atol=1e-12)
    assert torch.equal(edited["input"], plain["input"])


def test_the_embedding_gradient_shrink_equals_its_usual_form() -> None:
    torch.manual_seed(0)
    embed, head = nn.Embedding(7, 4).double(), nn.Linear(4, 2).double()
    model, ids = nn.Sequential(embed, head), torch.tensor([[1, 2, 2]])
    h = embed(ids)
    head(h * 0.1 + h.detach() * 0.9).pow(2).sum().backward()
    want = embed.weight.grad
    for selection in ("0:output_grad", "0.weight:param_grad"):
        embed.weight.grad = None
        with hs.edit(model, {selection: hs.scale(0.1)}):
            model(ids).pow(2).sum().backward()
        torch.testing.assert_close(embed.weight.grad, want, rtol=1e-12, atol=1e-12)


def test_a_gradient_that_is_not_finite_is_zeroed_where_it_arises() -> None:
    model = nn.Linear(3, 1, bias=False)
    with hs.edit(model, {"(root):output_grad": hs.zero_nonfinite()}):
        y = model(torch.stack([torch.ones(3), torch.zeros(3)]))
        y.sqrt().sum().backward() if (y >= 0).all() else (y.abs().sqrt()).sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.isfinite().all()
    assert model.weight.grad.any()


def test_a_layer_before_an_in_place_activation_has_its_own_gradient_edited() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1)).double()
    x = batch()
    plain = run(model, x)
    with hs.edit(model, {"0:output_grad": hs.scale(2.0)}):
        edited = run(model, x)
    for name, factor in {"output": 1, "input": 2, "0.weight": 2, "0.bias": 2, "2.weight": 1, "2.bias": 1}.items():
        torch.testing.assert_close(edited[name], factor * plain[name], rtol=1e-12, atol=1e-12)


def test_what_is_handed_on_has_only_the_gradient_of_that_way_edited() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.way = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 3 * x + self.way(x)

    x, model = torch.ones(2, requires_grad=True), Residual()
    with hs.edit(model, {"way:output_grad": hs.zero()}):
        for again in (x, x * 1):  # a leaf, and none
            (grad,) = torch.autograd.grad(model(again).sum(), x)
            assert grad.tolist() == [3.0, 3.0]
    assert not x._backward_hooks


def test_a_module_that_returns_a_parameter_does_not_gather_hooks_on_it() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(3))

        def forward(self) -> torch.Tensor:
            return self.table

    model = Positions()
    with hs.edit(model, {"(root):output_grad": hs.scale(0.5)}):
        for _ in range(3):
            model.table.grad = None
            model().sum().backward()
            assert model.table.grad.tolist() == [0.5, 0.5, 0.5]


def test_a_graph_built_under_the_edit_keeps_it_and_one_built_after_has_none() -> None:
    model, x = Chain(), batch()
    plain = run(model, x)
    e = hs.edit(model, {"first:output_grad": hs.scale(2.0)})
    loss = (model(x) * batch(5, 3, seed=7)).sum()
    model.zero_grad()
    loss.backward(retain_graph=True)
    e.close()
    model.zero_grad()
    loss.backward()
    torch.testing.assert_close(model.first.weight.grad, 2 * plain["first.weight"])
    assert_same(run(model, x), plain, exact=True)


def test_an_output_the_loss_does_not_use_has_no_gradient_to_edit() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.chunk(2 * x, 2)

    model, x = Two(), torch.ones(4, requires_grad=True)
    with hs.edit(model, {"(root):output_grad[0]": hs.scale(5.0), "(root):output_grad[1]": hs.zero()}):
        left, right = model(x)
        left.sum().backward()
        assert x.grad.tolist() == [10.0, 10.0, 0.0, 0.0]
        (left.sum() + right.sum()).detach()
        model(x)[1].sum().backward()


def test_second_derivatives_flow_through_an_edited_gradient() -> None:
    model, x = Chain(), batch().requires_grad_()
    hand = Chain()
    hand.hand = lambda h: Graded.apply(h, lambda g: 0.3 * g)

    def penalty(net: nn.Module) -> torch.Tensor:
        (grad,) = torch.autograd.grad(net(x).pow(2).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(grad.pow(2).sum(), net.first.weight)
        return second

    with hs.edit(model, {"first:output_grad": hs.scale(0.3)}):
        edited = penalty(model)
    torch.testing.assert_close(edited, penalty(hand), rtol=1e-12, atol=1e-12)


def test_a_frozen_parameter_has_no_gradient_and_the_edit_says_so() -> None:
    model = Chain()
    model.first.requires_grad_(False)
    e = hs.edit(model, {"first:param_grad": hs.zero()})
    model(batch()).sum().backward()
    with pytest.warns(hs.HookscopeWarning, match="on 'first:param_grad' never acted"):
        e.close()
    model.zero_grad()
    with hs.edit(model, {"**:param_grad": hs.zero()}):
        model(batch()).sum().backward()
    assert model.first.weight.grad is None
    assert not model.second.weight.grad.any()


def test_a_tied_parameter_is_edited_once_under_either_name() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    ids = torch.tensor([[0, 1]])
    model(ids).sum().backward()
    plain = model[0].weight.grad.clone()
    for name in ("0.weight", "1.weight"):
        model.zero_grad()
        with hs.edit(model, {f"{name}:param_grad": hs.scale(0.5)}) as e:
            model(ids).sum().backward()
        torch.testing.assert_close(model[0].weight.grad, 0.5 * plain)
        assert list(e.counts.values()) == [1]


def test_steps_of_a_parameters_gradient_are_the_backwards_that_bring_one() -> None:
    model = nn.Linear(2, 1, bias=False)
    found = []
    with hs.edit(model, {"weight:param_grad": hs.zero().at(steps=1)}):
        for _ in range(3):
            model.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            found.append(model.weight.grad.sum().item())
    assert found == [2.0, 0.0, 2.0]
