"""The parts of the laboratory take what the others give, and all of them the same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookscope as hs

X, LABELS = torch.linspace(-2, 2, 24, dtype=torch.float64).reshape(6, 4), torch.arange(6)


class Net(nn.Module):
    """`act` is called twice; forward has a second argument, and `scale` has a default."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.second, self.lstm = nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.LSTM(4, 3)
        self.double()

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        h = self.act(self.second(self.act(self.first(x)))) * scale
        return self.lstm(h)[0]


def net() -> Net:
    return Net().eval()


FORMS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: X,
    "tuple": lambda: (X,),
    "tuple with labels": lambda: (X, 1.0, LABELS),
    "dict": lambda: {"x": X},
    "dict with labels": lambda: {"x": X, "labels": LABELS, "id": "a"},
    "loader": lambda: DataLoader(TensorDataset(X, LABELS), batch_size=6),
    "loader of dicts": lambda: DataLoader([{"x": x, "label": 1} for x in X], batch_size=6),  # type: ignore[arg-type]
    "generator": lambda: (batch for batch in [X]),
    "list of batches": lambda: [(X, LABELS)],
}
RIGHT = net()(X)
RUNS: dict[str, Callable[[Any], bool]] = {
    "extract": lambda given: torch.equal(hs.extract(net(), given, "lstm")["lstm:output[0]"], RIGHT),
    "analyze": lambda given: abs(hs.analyze(net(), given)["(root)"].stats.mean - RIGHT.mean(0).detach().numpy()).max() < 1e-12,
    "cka": lambda given: abs(hs.cka(net(), given, "first")["first", "first"] - 1) < 1e-9,
    "diff": lambda given: bool(hs.diff(net(), net(), given)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_a_batch_of_any_form_reaches_the_model_without_its_labels(run: Callable[[Any], bool], form: Callable[[], Any]) -> None:
    assert run(form())


@pytest.mark.parametrize("form", ["tensor", "tuple", "tuple with labels", "dict", "dict with labels"])
def test_one_batch_of_any_form_reaches_the_model_where_one_is_meant(form: str, tmp_path: Any) -> None:
    given, model = FORMS[form](), net()
    assert hs.diagnose_dead_neurons(model, given) == hs.diagnose_dead_neurons(model, X)
    assert bool(hs.diff(hs.record_reference(model, given, to=tmp_path / "ref"), model, X))
    other = tuple(-part if part is X else part for part in given) if isinstance(given, tuple) else -X
    assert hs.trace_patch(model, given, other, "first", lambda out: out.sum(), positions="whole").effect.tolist() == [[1.0]]


def test_more_arguments_than_are_required_are_passed_where_the_batch_is_given_by_itself_and_left_out_of_a_loader() -> None:
    assert torch.equal(hs.extract(net(), (X, 0.5), "lstm")["lstm:output[0]"], net()(X, 0.5))
    assert torch.equal(hs.extract(net(), iter([(X, 0.5)]), "lstm")["lstm:output[0]"], RIGHT)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_a_misspelt_key_of_a_batch_is_no_label(run: Callable[[Any], bool]) -> None:
    with pytest.raises(hs.UsageError, match=r"Net\.forward has no argument 'scalee': did you mean 'scale'\?"):
        run({"x": X, "scalee": 2.0})


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_a_loader_without_a_batch_is_told(run: Callable[[Any], bool]) -> None:
    with pytest.raises(hs.UsageError, match="the loader, a generator, gave no batch: it is empty, or was used up before"):
        run(batch for batch in ())


def test_the_means_of_an_analysis_ablate_by_hand() -> None:
    model = net()
    means = hs.mean(hs.analyze(model, X))
    mean = model.first(X).mean(0)
    with hs.edit(model, {"first": means}):
        edited = model(X)
    by_hand = model.lstm(model.act(model.second(model.act(mean.expand(6, 4)))))[0]
    torch.testing.assert_close(edited, by_hand, rtol=1e-12, atol=1e-12)


def test_the_means_of_a_module_that_is_called_twice_are_those_of_each_call() -> None:
    model = net()
    with hs.edit(model, {"act": hs.mean(hs.analyze(model, X, "act"))}):
        edited = model(X)
    second = torch.tanh(model.second(torch.tanh(model.first(X)))).mean(0)
    torch.testing.assert_close(edited, model.lstm(second.expand(6, 4))[0], rtol=1e-12, atol=1e-12)


def test_the_means_of_a_tensor_in_a_structure_are_found() -> None:
    model = net()
    with hs.edit(model, {"lstm": hs.mean(hs.analyze(model, X, "lstm"))}):
        torch.testing.assert_close(model(X), RIGHT.mean(0).expand(6, 3), rtol=1e-12, atol=1e-12)


def extracted(model: nn.Module, other: torch.Tensor) -> hs.Extracted:
    return hs.extract(model, other, ["first", "act", "lstm"])


def captured(model: nn.Module, other: torch.Tensor) -> hs.Extracted:
    with hs.capture(model, ["first", "act", "lstm"]) as feats:
        model(other)
    return feats


@pytest.mark.parametrize("site", ["first", "act", "lstm", "lstm:output[0]"])
@pytest.mark.parametrize("taken", [extracted, captured])
def test_what_was_taken_of_another_batch_is_patched_in(taken: Callable[..., hs.Extracted], site: str) -> None:
    model, other = net(), X.flip(0) * 3
    with hs.edit(model, {site: hs.patch(taken(model, other))}):
        assert torch.equal(model(X), RIGHT_OF_OTHER)


RIGHT_OF_OTHER = net()(X.flip(0) * 3)


def test_a_call_that_was_not_taken_is_told() -> None:
    model = net()
    with hs.edit(model, {"act": hs.patch(hs.extract(model, X, "act", call=1))}) as edit:
        with pytest.raises(
            hs.UsageError, match=r"patch\(...\) holds the calls 1 of act:output and not call 0: narrow it by at\(calls=\.\.\.\)"
        ):
            model(X)
        assert edit.closed
    with hs.edit(model, {"act": hs.patch(hs.extract(model, X, "act", call=1)).at(calls=1)}):
        assert torch.equal(model(-X), RIGHT)


def test_a_site_that_was_not_taken_is_told_with_those_that_were() -> None:
    with pytest.raises(hs.UsageError, match=r"patch\(...\) holds nothing for second:output: did you mean 'first:output'\?"):
        hs.edit(net(), {"second": hs.patch(hs.extract(net(), X, "first"))})
    with pytest.raises(hs.UsageError, match=r"mean\(...\) holds nothing for second:output: did you mean 'first:output'\?"):
        hs.edit(net(), {"second": hs.mean(hs.analyze(net(), X, "first"))})


def test_an_iterator_of_batches_is_ablated_over_all_of_them() -> None:
    def given() -> Iterator[Any]:
        yield from (X[:3], X[3:])

    model = net()
    found = hs.ablate(model, "first", lambda model, x: model(x).sum(1), given())
    by_hand = torch.cat([model(X[:3]), model(X[3:])]).detach().sum(1).mean()
    assert found.baseline == pytest.approx(float(by_hand))
