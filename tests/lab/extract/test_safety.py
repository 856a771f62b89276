"""Nothing stays on the model after any failure, and what others have put there is not touched."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Raises(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


def everything_on(model: nn.Module) -> list[Any]:
    """All hooks of all modules and parameters, and the attributes that a module has of its own."""
    names = [n for n in vars(nn.Module()) if "hooks" in n]
    found: list[Any] = [(sorted(vars(m)), [list(vars(m)[n].items()) for n in names if vars(m)[n]]) for m in model.modules()]
    return [
        *found,
        *(list((p._backward_hooks or {}).items()) + list((p._post_accumulate_grad_hooks or {}).items()) for p in model.parameters()),
    ]


ALL = ["**:input", "**:output", "**:output_grad", "**:output/relu", "**:param", "**:param_grad"]


def captured(model: nn.Module) -> None:
    with hs.capture(model, ALL):
        model(X)


FETCH = {"extract": lambda model: hs.extract(model, X, ALL), "capture": captured}


def net(last: nn.Module) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), last)
    model[0].register_forward_hook(lambda m, args, out: out + 1)
    model[1].register_forward_pre_hook(lambda m, args: None)
    return model


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("by", ["extract", "capture"])
def test_after_an_exception_in_the_forward_the_model_is_as_before(error: BaseException, by: str) -> None:
    model = net(Raises(error))
    before = everything_on(model)
    with pytest.raises(type(error)) as raised:
        FETCH[by](model)
    assert raised.value is error
    assert everything_on(model) == before
    assert torch.is_grad_enabled()
    assert not torch.overrides._get_current_function_mode_stack()


@pytest.mark.parametrize(
    "wrong",
    [
        {"select": ["0", "misspelt"]},
        {"select": "0", "pool": lambda t: None},
        {"select": "2", "pool": "mean:NCHW"},
        {"select": "0", "clone": "never"},
        {"select": "0", "call": -1},
        {"select": "0", "stop": 1.5},
        {"select": "0", "dtype": "float61"},
        {"select": "0", "to_device": "gpu"},
        {"select": "0", "pool": "average"},
        {"select": []},
        {"select": "0:update"},
        {"select": "2:output_grad"},
        {"select": "0", "forward": 3},
        {"select": "0", "grad": "yes"},
    ],
    ids=" ".join,
)
def test_a_wrong_argument_is_an_error_of_use_and_leaves_nothing(wrong: dict[str, Any]) -> None:
    model = net(nn.Unflatten(1, (2, 2)))
    before = everything_on(model)
    with pytest.raises(hs.UsageError):
        hs.extract(model, X, **wrong)
    assert everything_on(model) == before


def test_a_failure_half_way_through_the_placing_unwinds_what_was_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net(nn.Linear(4, 2))
    before = everything_on(model)

    def refuses(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no hook here")

    monkeypatch.setattr(model[2], "register_forward_hook", refuses)
    with pytest.raises(RuntimeError, match="no hook here"):
        hs.extract(model, X, "*")
    monkeypatch.undo()
    assert everything_on(model) == before


def test_the_hooks_of_others_are_kept_and_what_they_change_is_seen() -> None:
    model = net(nn.Linear(4, 2))
    before = everything_on(model)
    feats = hs.extract(model, X, ["0", "0:output/linear"])
    with torch.no_grad():
        assert torch.equal(feats["0"], nn.functional.linear(X, model[0].weight, model[0].bias) + 1)
    assert everything_on(model) == before


def test_the_forward_returns_the_same_bits_and_the_same_object_inside_a_capture() -> None:
    model = net(nn.Linear(4, 2))
    bare = model(X)
    with hs.capture(model, ["**:input", "**:output", "**:output/*"]):
        assert torch.equal(model(X), bare)


def test_gradients_and_random_numbers_are_the_same_bits_inside_a_capture() -> None:
    found = []
    for watched in (False, True):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(4, 1))
        if watched:
            with hs.capture(model, ALL):
                model(X).sum().backward()
        else:
            model(X).sum().backward()
        found.append([*(p.grad for p in model.parameters()), torch.rand(3)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_mode_of_the_model_is_left_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    model[0].eval()
    hs.extract(model, X, "*")
    assert (model.training, model[0].training, model[1].training) == (True, False, True)


def test_the_model_can_be_copied_and_pickled_inside_a_capture() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with hs.capture(model, "*") as feats:
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            twin(X)
        assert len(feats) == 0
        model(X)
    assert len(feats) == 2


def test_an_empty_loader_is_an_error() -> None:
    with pytest.raises(hs.UsageError, match=r"^the loader, a DataLoader, gave no batch: it is empty, or was used up before$"):
        hs.extract(nn.Linear(4, 2), torch.utils.data.DataLoader([]), "(root)")


def test_an_empty_selection_is_an_error() -> None:
    with pytest.raises(hs.SelectionError, match="an empty selection selects nothing"):
        hs.extract(nn.Linear(4, 2), X, [])


def test_what_is_no_module_is_an_error() -> None:
    with pytest.raises(hs.AttachError, match=r"model is a function, not a torch\.nn\.Module"):
        hs.extract(everything_on, X, "*")  # type: ignore[arg-type]


def test_a_misspelt_name_is_answered_with_near_ones_before_anything_runs() -> None:
    model = nn.Sequential()
    model.add_module("encoder", Raises(ValueError("it ran")))
    with pytest.raises(hs.SelectionError, match="no site of kind output matches 'encodr': did you mean 'encoder'"):
        hs.extract(model, X, "encodr")


def test_a_container_that_is_never_called_is_answered_with_what_is_in_it() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(4, 4)])})
    with pytest.raises(hs.SelectionError, match=r"'layers' is a ModuleList, which is never called: choose what is in it, 'layers\.\*'"):
        hs.extract(model, X, "layers")


class Direct(nn.Module):
    """Calls the forward of a child, and leaves another one out."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder.forward(x).tanh()


@pytest.mark.parametrize("name", ["encoder", "spare"])
def test_a_module_that_did_not_run_is_never_an_empty_result(name: str) -> None:
    with pytest.raises(
        hs.SelectionError, match=rf"'{name}' did not run as a module; either the forward does not .* {name}\.forward\(\.\.\.\)"
    ):
        hs.extract(Direct(), X, name)


def test_in_a_capture_what_did_not_come_is_warned_of_and_remembered() -> None:
    model = Direct()
    with pytest.warns(hs.HookscopeWarning, match="'spare' did not run as a module"), hs.capture(model, ["spare", "(root)"]) as feats:
        model(X)
    assert len(feats) == 1
    with pytest.raises(hs.SelectionError, match="'spare' did not run as a module"):
        feats["spare"]


def test_inside_torch_func_the_answer_is_an_error_in_words() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(hs.UsageError, match=r"'0:output' is inside torch\.func"):
        hs.extract(model, lambda: torch.func.vmap(model)(X), "0")


def test_batches_of_a_loader_are_joined_along_the_samples() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    data = torch.randn(10, 4)
    feats = hs.extract(model, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=4), "*")
    assert torch.allclose(feats["1"], model(data).detach(), atol=1e-6)


def test_batches_that_cannot_be_joined_are_an_error_with_the_way_out() -> None:
    def ragged() -> Iterator[torch.Tensor]:
        yield from (torch.zeros(2, 3, 4), torch.zeros(2, 5, 4))

    with pytest.raises(hs.UsageError, match=r"0:output has the shapes \(2, 3, 4\), \(2, 5, 4\) over the batches.*pool"):
        hs.extract(nn.Sequential(nn.Linear(4, 4)), ragged(), "0")
    assert hs.extract(nn.Sequential(nn.Linear(4, 4)), ragged(), "0", pool="mean")["0"].shape == (4, 4)


def test_what_another_thread_runs_meanwhile_is_not_taken() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with hs.capture(model, "0") as feats:
        other = threading.Thread(target=model, args=(X,))
        other.start()
        other.join()
        assert len(feats) == 0
        model(X)
    assert len(feats) == 1


def test_between_two_batches_the_model_is_the_users() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).eval()

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(3):
            yield X
            assert model(X).shape == (3, 4)

    assert hs.extract(model, batches(), "0", call=0)["0"].shape == (9, 4)
