"""Every call of a module counts: shared ones, those of a loop, the steps of a generation; a forward that is only run again does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import hookscope as hs

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Looped(nn.Module):
    """One block, three times."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: torch.Tensor, times: int = 3) -> torch.Tensor:
        for _ in range(times):
            x = self.block(x)
        return x


def by_hand(model: Looped, times: int = 3) -> list[torch.Tensor]:
    x, found = X, []
    with torch.no_grad():
        for _ in range(times):
            x = model.block(x)
            found.append(x)
    return found


def test_each_call_of_a_shared_module_is_kept() -> None:
    model = Looped().eval()
    feats = hs.extract(model, X, "block")
    assert [key.call for key in feats] == [0, 1, 2]
    assert all(torch.equal(feats["block", i], right) for i, right in enumerate(by_hand(model)))
    assert all(torch.equal(a, b) for a, b in zip(feats.calls("block"), by_hand(model), strict=True))


@pytest.mark.parametrize(("select", "call"), [("block", 1), ("block@1", "all"), ("block@1", 1)])
def test_one_call_can_be_chosen(select: str, call: int | str) -> None:
    model = Looped().eval()
    feats = hs.extract(model, X, select, call=call)  # type: ignore[arg-type]
    assert len(feats) == 1
    assert torch.equal(feats["block@1"], by_hand(model)[1])


def test_a_call_that_never_came_is_an_error_that_says_how_many_there_were() -> None:
    with pytest.raises(hs.SelectionError, match=r"'block@7' gave nothing: 'block' ran 3 times, as calls 0 to 2, and no tensor of that"):
        hs.extract(Looped(), X, "block@7")


def test_a_module_under_two_names_is_one_site_that_answers_to_both() -> None:
    model = nn.Sequential()
    model.add_module("a", nn.Linear(4, 4))
    model.add_module("b", model.a)
    feats = hs.extract(model.eval(), X, "b")
    assert [str(key) for key in feats] == ["a:output", "a:output#1"]
    assert torch.equal(feats["b", 1], model(X))


class Checkpointed(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inp, self.block, self.out = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), nn.Linear(4, 1)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inp(x)
        if self.kind == "plain":
            return self.out(self.block(h))
        if self.kind == "selective":
            ops = [torch.ops.aten.addmm.default]
            return self.out(checkpoint(self.block, h, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(ops)))
        return self.out(checkpoint(self.block, h, use_reentrant=self.kind == "re-entrant"))


def trained(kind: str) -> tuple[hs.Extracted, Checkpointed]:
    model = Checkpointed(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with hs.capture(model, ["block.*:input", "block.*:output", "block.*:output_grad", "block.0.weight:param_grad"]) as feats:
        for step in range(3):
            optimizer.zero_grad()
            model(X + step).pow(2).mean().backward()
            optimizer.step()
    return feats, model


@pytest.mark.parametrize("kind", ["re-entrant", "non-reentrant", "selective"])
def test_a_checkpointed_forward_counts_once_and_gives_what_the_plain_one_gives(kind: str) -> None:
    (feats, model), (plain, twin) = trained(kind), trained("plain")
    assert {str(key) for key in feats} == {str(key) for key in plain}
    assert len(feats) == 3 * 10
    assert all(torch.equal(feats[key], plain[key]) for key in plain)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_gradients_are_those_of_autograd() -> None:
    model = Checkpointed("plain").double()
    x = X.double()
    h = model.inp(x)
    first = model.block[0](h)
    loss = model.out(model.block[2](model.block[1](first))).pow(2).mean()
    right = torch.autograd.grad(loss, [first, model.block[0].weight])
    with hs.capture(model, ["block.0:output_grad", "block.0.weight:param_grad"]) as feats:
        model(x).pow(2).mean().backward()
    assert torch.equal(feats["block.0:output_grad"], right[0])
    assert torch.equal(feats["block.0.weight:param_grad"], right[1])


def test_a_gradient_that_comes_in_two_parts_is_their_sum() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "c": nn.Linear(4, 4)})

    def forward() -> torch.Tensor:
        h = model["a"](X)
        return (model["b"](h) * model["c"](h)).sum()

    with hs.capture(model, "a:output_grad") as feats:
        forward().backward()
    h = model["a"](X)
    assert torch.allclose(feats["a:output_grad"], torch.autograd.grad((model["b"](h) * model["c"](h)).sum(), h)[0], atol=1e-7)


def test_a_gradient_at_what_is_overwritten_later_is_that_of_the_value_before() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    with hs.capture(model, ["0", "0:output_grad"]) as feats:
        model(X).sum().backward()
    assert torch.equal(feats["0:output_grad"], (feats["0"] > 0).float())


def test_gradients_come_from_a_function_that_goes_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with torch.no_grad():
        feats = hs.extract(model, X, "0:output_grad", forward=lambda model, x: model(x).sum().backward())
    assert torch.equal(feats["0:output_grad"], model[1].weight.detach().expand(3, 4))


def test_without_a_backward_a_gradient_is_missed_in_words() -> None:
    with pytest.raises(
        hs.SelectionError, match=r"^'0:output_grad' gave nothing: '0' ran once, as call 0, and no gradient has come back to"
    ):
        hs.extract(nn.Sequential(nn.Linear(4, 4)), X, ["0", "0:output_grad"])


def test_a_backward_after_the_block_is_no_longer_listened_to() -> None:
    model = nn.Linear(4, 4)
    with pytest.warns(hs.HookscopeWarning, match="no gradient has come back"), hs.capture(model, "(root):output_grad") as feats:
        loss = model(X).sum()
    loss.backward()
    assert len(feats) == 0


def test_under_autocast_the_tensors_are_what_autocast_makes_them() -> None:
    model = Looped().eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        feats = hs.extract(model, X, "block", pool="flatten")
        with torch.no_grad():
            right = model.block[0](X).tanh()
    assert feats["block", 0].dtype == torch.bfloat16
    assert torch.equal(feats["block", 0], right)
