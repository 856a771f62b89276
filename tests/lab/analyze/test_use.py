"""What `analyze` takes, refuses, and leaves as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookscope as hs


class Two(nn.Module):
    """Takes two inputs and an option."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.fc(x + y) * scale


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize(
    "loader",
    [
        [(torch.ones(5, 3), torch.zeros(5, 3), "labels")],
        [[torch.ones(5, 3), torch.zeros(5, 3)]],
        [{"x": torch.ones(5, 3), "y": torch.zeros(5, 3), "labels": 1}],
        (torch.ones(5, 3), torch.zeros(5, 3)),
        {"x": torch.ones(5, 3), "y": torch.zeros(5, 3)},
        DataLoader(TensorDataset(torch.ones(5, 3), torch.zeros(5, 3), torch.zeros(5)), batch_size=2),
    ],
)
def test_a_batch_is_a_tuple_or_dict_and_the_model_gets_what_it_takes(loader: Any) -> None:
    assert hs.analyze(Two(), loader, "fc")["fc"].positions == 5


def test_forward_says_what_the_model_gets() -> None:
    data = [{"image": torch.ones(5, 3), "label": 0}]
    model = nn.Sequential(nn.Linear(3, 4))
    assert hs.analyze(model, data, forward=lambda model, b: model(b["image"]))["0"].positions == 5
    assert hs.analyze(Two(), data, forward=lambda model, b: model(b["image"], b["image"]))["fc"].positions == 5
    assert hs.analyze(Two(), data, forward=lambda model, b: model(x=b["image"], y=b["image"]))["fc"].positions == 5
    with pytest.raises(hs.UsageError, match=r"Two.forward takes none of the batch's keys, 'image', 'label': say"):
        hs.analyze(Two(), data)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("model", [1]), {}, hs.AttachError, "model is a str"),
        ((nn.Linear(3, 4), []), {}, hs.UsageError, "the loader, a list, gave no batch"),
        ((nn.Linear(3, 4), 7), {}, hs.UsageError, "a int gives no batches"),
        ((nn.Sequential(nn.Linear(3, 4)), torch.ones(2, 3), "O"), {}, hs.SelectionError, "no site of kind output matches 'O'"),
        ((nn.Linear(3, 4), torch.ones(2, 3), "(root):input"), {}, hs.UsageError, "only outputs are analyzed: leave out ':input'"),
        ((nn.Linear(3, 4), torch.ones(2, 3), "weight:param"), {}, hs.UsageError, "leave out ':param'"),
        ((nn.Linear(3, 4), torch.ones(2, 3), "weight"), {}, hs.SelectionError, "there is only 'weight:param'"),
    ],
)
def test_wrong_use_is_told_in_one_sentence(arguments: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hs.analyze(*arguments, **options)


def test_a_misspelt_layer_names_near_ones() -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(hs.SelectionError, match="did you mean 'fc"):
        hs.analyze(Two(), (torch.ones(2, 3), torch.ones(2, 3)), "fcc")
    with pytest.raises(hs.SelectionError, match="no layer of the analysis is called '1'"):
        hs.analyze(model, torch.ones(2, 3))["1"]


class Odd(nn.Module):
    """A layer that never runs, one that returns integers, one whose width changes."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.best, self.wide, self.fc = nn.Linear(3, 3), Argmax(), nn.Identity(), nn.Linear(3, 3)
        self.kept = nn.ModuleList([nn.Identity()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.best(x)
        self.wide(x @ x.T)
        return self.fc(x)


class Argmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.argmax(-1)


def test_what_gave_nothing_is_told_with_the_reason() -> None:
    analysis = hs.analyze(Odd(), [torch.ones(5, 3), torch.ones(4, 3)])
    assert [layer.name for layer in analysis] == ["fc", "(root)"]
    assert analysis.blind == {
        "best": "it returns int64, not floating-point numbers",
        "wide": "its number of units changes, 5 and then 4: name their dimension with dim=",
        "idle": "it never ran",
        "kept.0": "it never ran",
    }
    assert "idle: it never ran" in str(analysis)
    with pytest.raises(hs.SelectionError, match="nothing was read at 'best': it returns int64"):
        analysis["best"]
    for selection in ("idle", "best"):
        with pytest.raises(hs.UsageError, match="no selected module gave anything to read"):
            hs.analyze(Odd(), torch.ones(5, 3), selection)


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the user's own")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_nothing_stays_on_the_model_and_modes_buffers_and_random_states_are_as_before(fails: bool, train: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), *([Failing()] if fails else []))
    model[2].eval()  # a mix of modes
    foreign = model[0].register_forward_hook(lambda *_: None)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes, state = [m.training for m in model.modules()], torch.get_rng_state()
    data = [torch.randn(8, 3, generator=torch.Generator().manual_seed(0))]
    if fails:
        with pytest.raises(RuntimeError, match="the user's own"):
            hs.analyze(model, data, train=train)
    else:
        hs.analyze(model, data, train=train)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert hooks(model) == 1
    foreign.remove()
    assert all(p.grad is None for p in model.parameters())


def test_the_pass_is_one_of_evaluation_unless_asked_otherwise() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    assert hs.analyze(model, torch.ones(100, 4), "0")["0"].sparsity.max() == 0
    assert hs.analyze(model, torch.ones(100, 4), "0", train=True)["0"].sparsity.min() > 0.3


def test_the_model_computes_the_same_under_the_pass() -> None:
    model, x, got = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)).eval(), torch.randn(5, 3), []
    handle = model.register_forward_hook(lambda _m, _a, out: got.append(out.clone()))
    hs.analyze(model, x)
    handle.remove()
    assert torch.equal(got[0], model(x))


def test_inference_mode_and_frozen_gradients_do_no_harm() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True))
    with torch.inference_mode():
        x = torch.randn(50, 3)
        inside = hs.analyze(model, x)
    assert inside["0"].stats.min.min() < 0 <= inside["1"].stats.min.min()
    assert hs.analyze(model, x)["1"].positions == 50  # inference tensors, outside of the mode


@pytest.mark.slow
def test_a_compiled_model_runs_uncompiled_and_gives_the_same() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.randn(50, 3)
    plain = hs.analyze(model, x)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    found = hs.analyze(compiled, x)
    assert [layer.name for layer in found] == [layer.name for layer in plain]
    assert found["1"].stats.mean.tolist() == plain["1"].stats.mean.tolist()
    model[0].compile(backend="eager")
    model(x)
    assert hs.analyze(model, x)["0"].positions == 50
