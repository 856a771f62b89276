"""What is extracted is what was there at the moment it was produced, whatever is written to that memory afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hookscope as hs

X = torch.linspace(-2, 2, 24).reshape(4, 6)


class Writes(nn.Module):
    """A module that writes to what it is given, and passes it on."""

    def __init__(self, write: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.write(x)
        return x


def to_a_row(x: torch.Tensor) -> None:
    x[1] = 7.0


def to_a_view_of_a_view(x: torch.Tensor) -> None:
    x.t().reshape(6, 4)[:, :2].t().fill_(-3.0)


def to_an_array(x: torch.Tensor) -> None:
    x.numpy()[:, 0] = 5.0


def by_its_storage(x: torch.Tensor) -> None:
    x.untyped_storage().fill_(0)


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "relu_": torch.relu_,
    "add_": lambda x: x.add_(1.0),
    "a row": to_a_row,
    "a view of a view": to_a_view_of_a_view,
    "out=": lambda x: torch.mul(x, 2.0, out=x),
    ".data": lambda x: x.data.mul_(3.0),
    "detach": lambda x: x.detach().zero_(),
    "an alias made by from_dlpack": lambda x: torch.from_dlpack(x).neg_(),
    "an array": to_an_array,
    "a list of tensors": lambda x: torch._foreach_add_([x], 4.0),
    "copy_": lambda x: x.copy_(x.flip(0)),
    "its storage": by_its_storage,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_later_write_changes_nothing(write: Callable[[torch.Tensor], object], mode: Callable[[], object]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), Writes(write), nn.Linear(6, 2)).eval()
    with torch.no_grad():
        made = model[0](X)
        written = made.clone()
        write(written)
    with mode():  # type: ignore[attr-defined]
        feats = hs.extract(model, X.clone(), ["0", "1:input", "1:output"])
    assert torch.equal(feats["0"], made)
    assert torch.equal(feats["1:input"], made)
    assert torch.equal(feats["1:output"], written)
    assert not torch.equal(made, written)


@given(st.lists(st.sampled_from(["fc", "relu", *WRITES]), min_size=1, max_size=6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_module_of_any_chain_gives_what_it_gives_by_itself(names: list[str], views: bool) -> None:
    torch.manual_seed(0)
    parts: list[nn.Module] = [
        nn.Linear(6, 6) if name == "fc" else nn.ReLU(inplace=True) if name == "relu" else Writes(WRITES[name]) for name in names
    ]
    x = X.expand(2, 4, 6).contiguous()[1] if views else X.clone()
    value, inputs, outputs = x.clone(), [], []
    with torch.no_grad():
        for part in parts:
            inputs.append(value.clone())
            value = part(value.clone())
            outputs.append(value.clone())
    feats = hs.extract(nn.Sequential(*parts).eval(), x, ["*:input", "*:output"])
    assert all(torch.equal(feats[f"{i}:input"], inputs[i]) for i in range(len(parts)))
    assert all(torch.equal(feats[f"{i}:output"], outputs[i]) for i in range(len(parts)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(6, 6), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        y += x
        return self.act(y)


def test_an_output_is_what_it_was_before_a_residual_was_added_to_it() -> None:
    model = Residual().eval()
    with torch.no_grad():
        assert torch.equal(hs.extract(model, X, "fc")["fc"], model.fc(X))


def test_a_weight_is_what_the_forward_used_after_the_optimizer_has_changed_it() -> None:
    model = nn.Linear(6, 2)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.capture(model, ["weight:param", "weight:param_grad"]) as feats:
        model(X).sum().backward()
        expected = model.weight.grad.clone()
        optimizer.step()
        model.weight.grad.zero_()
    assert torch.equal(feats["weight:param"], before)
    assert torch.equal(feats["weight:param_grad"], expected)
    assert not torch.equal(model.weight, before)


def test_a_running_statistic_that_moves_on_does_not_move_what_was_taken() -> None:
    norm = nn.BatchNorm1d(6)
    with hs.capture(norm, "(root)") as feats:
        kept = [norm(X + i).detach().clone() for i in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(feats.calls("(root)"), kept, strict=True))


def test_what_is_taken_is_the_users_to_change() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Identity()).eval()
    feats = hs.extract(model, X, "*")
    feats["0"].zero_()
    with torch.no_grad():
        assert torch.equal(feats["1"], model[0](X))


@pytest.mark.parametrize("kept", [{"dtype": "float64"}, {"pool": "flatten"}, {"pool": lambda t: t[:, :3]}, {"to_device": "cpu"}])
def test_a_tensor_that_was_cast_moved_or_pooled_is_safe_as_well(kept: dict[str, object]) -> None:
    model = nn.Sequential(nn.Linear(6, 6), Writes(torch.Tensor.zero_)).eval()
    assert hs.extract(model, X, "0", **kept)["0"].abs().sum() > 0  # type: ignore[arg-type]


def test_without_a_copy_the_memory_is_the_models() -> None:
    seen: list[int] = []
    model = nn.Sequential(nn.Linear(6, 6), Writes(lambda x: seen.append(x.data_ptr()))).eval()
    assert hs.extract(model, X, "0", clone=False)["0"].data_ptr() == seen[0]


def test_without_a_copy_an_overwritten_tensor_is_an_error_that_names_it() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)).eval()
    with pytest.raises(hs.UsageError, match=r"^0:output was overwritten in place after it was taken, and clone=False kept no copy: leave"):
        hs.extract(model, X, "0", clone=False)


def test_a_graph_that_is_kept_leads_back_through_the_copy() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)).eval()
    x = X.clone().requires_grad_()
    feats = hs.extract(model, x, "0", grad=True)
    (got,) = torch.autograd.grad(feats["0"].pow(2).sum(), x)
    (right,) = torch.autograd.grad(model[0](x).pow(2).sum(), x)
    assert torch.equal(got, right)


def test_what_is_extracted_in_inference_mode_can_be_trained_on() -> None:
    model = nn.Linear(6, 2).eval()
    with torch.inference_mode():
        feats = hs.extract(model, X, "(root)")
    assert not feats["(root)"].is_inference()
    nn.Linear(2, 1)(feats["(root)"]).sum().backward()
