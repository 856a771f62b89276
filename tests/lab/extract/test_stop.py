"""A forward ends early where, and only where, nothing that is wanted can come any more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._lab._extract._extractor import Extractor
from hookscope._lab._extract._options import Options

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Layer(nn.Linear):
    def __init__(self, number: int, ran: list[int]) -> None:
        super().__init__(4, 4)
        self.number, self.ran = number, ran

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ran[self.number] += 1
        return super().forward(x)


class Counted(nn.Module):
    """Four layers, and a count of how often each was called; `again` calls the first one once more at the end, `route` picks a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.calls = [0, 0, 0, 0]
        self.layers = nn.ModuleList(Layer(i, self.calls) for i in range(4))
        self.again: Callable[[torch.Tensor], bool] = lambda x: False
        self.skips: Callable[[torch.Tensor], bool] = lambda x: False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for i, layer in enumerate(self.layers):
            if i == 1 and self.skips(first):
                continue
            x = layer(x)
        return self.layers[0](x) if self.again(first) else x


def calls_of(model: Counted, select: object, batches: list[torch.Tensor], **options: object) -> list[list[int]]:
    """The layers that ran, batch by batch."""
    ran = []
    with Extractor(model, select, Options(**options)) as extractor:  # type: ignore[arg-type]
        for batch in batches:
            model.calls[:] = [0, 0, 0, 0]
            extractor.run(batch)
            ran.append(list(model.calls))
    return ran


def test_from_the_second_batch_on_the_forward_ends_after_the_last_wanted_site() -> None:
    assert calls_of(Counted().eval(), ["layers.1", "layers.0"], [X, X, X]) == [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]


def test_the_input_of_a_module_is_there_without_running_it() -> None:
    assert calls_of(Counted().eval(), "layers.2:input", [X, X]) == [[1, 1, 1, 1], [1, 1, 0, 0]]


def test_one_call_that_is_asked_for_ends_the_first_forward_already() -> None:
    assert calls_of(Counted().eval(), "layers.1", [X], call=0) == [[1, 1, 0, 0]]
    assert calls_of(Counted().eval(), "layers.1@0", [X]) == [[1, 1, 0, 0]]


def test_stop_takes_the_first_call_for_the_only_one() -> None:
    assert calls_of(Counted().eval(), "layers.1", [X], stop=True) == [[1, 1, 0, 0]]
    assert calls_of(Counted().eval(), ["layers.1@0", "layers.2"], [X], stop=True) == [[1, 1, 1, 0]]


def test_without_stop_every_forward_runs_to_its_end() -> None:
    assert calls_of(Counted().eval(), "layers.1", [X, X], stop=False, call=0) == [[1, 1, 1, 1]] * 2


def test_other_shapes_are_learned_anew() -> None:
    assert calls_of(Counted().eval(), "layers.1", [X, X[:2], X, X[:2]]) == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]


def test_a_module_that_is_called_again_keeps_all_its_calls() -> None:
    model = Counted().eval()
    model.again = lambda x: True
    assert calls_of(model, "layers.0", [X, X]) == [[2, 1, 1, 1]] * 2
    assert len(hs.extract(model, X, "layers.0")) == 2


def test_where_a_wanted_module_may_still_come_the_forward_goes_on() -> None:
    """Layer 1 is skipped in the first batch: nobody knows what it does in the next."""
    model = Counted().eval()
    model.skips = lambda x: bool(x.sum() == 0)
    assert calls_of(model, "layers[0:2]", [torch.zeros(3, 4), X, X]) == [[1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]]


def test_training_mode_and_graphs_and_own_functions_run_to_the_end() -> None:
    full = [[1, 1, 1, 1]] * 2
    assert calls_of(Counted(), "layers.1", [X, X]) == full
    assert calls_of(Counted().eval(), "layers.1", [X, X], grad=True) == full
    assert calls_of(Counted().eval(), "layers.1", [X, X], forward=lambda model, x: model(x)) == full
    assert calls_of(Counted().eval(), "layers.1:output/linear", [X, X]) == full


def test_stopped_forwards_give_what_whole_ones_give() -> None:
    model = Counted().eval()
    batches = [X + i for i in range(4)]
    stopped = hs.extract(model, (b for b in batches), "layers.2")
    whole = hs.extract(model, (b for b in batches), "layers.2", stop=False)
    assert torch.equal(stopped["layers.2"], whole["layers.2"])


def test_a_model_that_catches_every_exception_does_not_catch_the_end() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.ran = nn.Linear(4, 4), nn.Linear(4, 4), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(Exception):
                x = self.a(x)
            self.ran = True
            return self.b(x)

    model = Careful().eval()
    hs.extract(model, X, "a", stop=True)
    assert not model.ran


def test_gradients_and_stop_exclude_each_other() -> None:
    with pytest.raises(
        hs.UsageError, match=r"^stop=True ends the forward early, and gradients need a backward from its end: leave stop out$"
    ):
        hs.extract(Counted(), X, "layers.1:output_grad", stop=True)


def test_nothing_is_left_after_an_early_end() -> None:
    model = Counted().eval()
    hs.extract(model, X, "layers.1", stop=True)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.is_grad_enabled()
    assert model(X).requires_grad
