"""Models are found as the program calls them, whole, before their first forward has run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

import hookscope as hs

from ._discovering import WHOLE, discovered, of_modules, of_parameters, present, sgd, step, two_layers


def test_a_model_called_directly_is_complete_at_its_first_step(tmp_path: Path) -> None:
    def program() -> None:
        model = two_layers()
        optimizer = sgd(model)
        for _ in range(2):
            step(model, optimizer)

    run = discovered(tmp_path, program)
    assert run.steps.tolist() == [0, 1]
    assert present(run, 0) == present(run, 1) == WHOLE


def test_the_numbers_of_the_first_forward_are_right(tmp_path: Path) -> None:
    x = torch.randn(3, 2)
    model = two_layers()
    expected = model(x).double().pow(2).mean().sqrt().item()
    run = discovered(tmp_path, lambda: step(model, sgd(model), x))
    assert run["2:output", "rms"].values.tolist() == [pytest.approx(expected, rel=1e-6)]
    assert run["(root):input", "count"].values.tolist() == [6]


class Wrapper(nn.Module):
    """Calls the module inside, as DistributedDataParallel does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


@pytest.mark.parametrize("wrap", [nn.DataParallel, Wrapper])
def test_a_wrapper_does_not_hide_the_model(wrap: Callable[[nn.Module], nn.Module], tmp_path: Path) -> None:
    def program() -> None:
        model = wrap(two_layers())
        step(model, sgd(model))

    found = present(discovered(tmp_path, program))
    if wrap is nn.DataParallel:
        assert found == WHOLE
    else:
        assert {"module.2:output", "module.0.weight:param_grad", "(root):output"} <= found


def test_losses_and_layers_without_parameters_are_no_models(tmp_path: Path) -> None:
    def program() -> None:
        net, criterion, squash = nn.Linear(2, 1), nn.MSELoss(), nn.Sequential(nn.Tanh(), nn.Flatten())
        optimizer = sgd(net)
        criterion(squash(torch.ones(3, 2, requires_grad=True)), torch.ones(3, 2)).backward()
        step(lambda x: criterion(squash(net(x)), torch.ones(3, 1)), optimizer)

    run = discovered(tmp_path, program)
    assert {site.path for site in run.sites if site.kind == "output"} == {""}


def test_a_model_made_long_after_another_began_is_complete_from_its_first_step_on(tmp_path: Path) -> None:
    resting = []

    def program() -> None:
        first = nn.Linear(2, 1)
        optimizer = sgd(first)
        for _ in range(100):
            step(first, optimizer)
        resting.append(not torch_module._global_forward_pre_hooks)
        second = two_layers()
        optimizer = sgd(second)
        for _ in range(2):
            step(second, optimizer)

    run = discovered(tmp_path, program)
    assert resting == [True]  # a module's call cost nothing any more
    assert len(run.steps) == 102
    whole = of_modules("second", "second.0", "second.2") | of_parameters("second.0.weight")
    assert whole <= present(run, 100)
    assert whole <= present(run, 101)
    assert not any(name.startswith("second") for name in present(run, 99))


def test_a_model_that_has_waited_for_its_turn_is_found_when_an_optimizer_comes_with_it(tmp_path: Path) -> None:
    def program() -> None:
        first, waiting = nn.Linear(2, 1), two_layers()
        optimizer = sgd(first)
        for _ in range(50):
            step(first, optimizer)
        optimizer = sgd(waiting)
        for _ in range(3):
            step(waiting, optimizer)

    run = discovered(tmp_path, program)
    assert of_modules("waiting", "waiting.1") | of_parameters("waiting.2.bias") <= present(run, int(run.steps[-1]))


def test_a_head_put_on_later_is_watched_too(tmp_path: Path) -> None:
    def program() -> None:
        model = two_layers()
        optimizer = sgd(model)
        step(model, optimizer)
        step(model, optimizer)
        model[2] = nn.Linear(4, 5)
        optimizer = sgd(model)
        for _ in range(3):
            step(model, optimizer)

    run = discovered(tmp_path, program)
    assert run.steps.tolist() == [0, 1, 2, 3, 4]
    assert [present(run, n) for n in range(5)] == [WHOLE] * 5
    assert run["2:output", "count"].values.tolist() == [3, 3, 15, 15, 15]


def test_a_model_first_called_without_gradients_is_found_when_it_trains(tmp_path: Path) -> None:
    def program() -> None:
        model = two_layers()
        with torch.no_grad():
            model(torch.ones(3, 2))
        with torch.inference_mode():
            model(torch.ones(3, 2))
        step(model, sgd(model))

    run = discovered(tmp_path, program)
    assert run.steps.tolist() == [0]
    assert present(run) == WHOLE


def test_a_model_that_only_evaluates_is_no_model_of_the_training(tmp_path: Path) -> None:
    def program() -> None:
        student, teacher = nn.Linear(2, 1), nn.Linear(2, 1)
        with torch.no_grad():
            teacher(torch.ones(3, 2))
        step(student, sgd(student))

    assert {site.path for site in discovered(tmp_path, program).sites if site.kind == "output"} == {""}


def test_a_selection_that_matches_nothing_is_one_warning_with_near_misses(tmp_path: Path) -> None:
    def program() -> None:
        model = two_layers()
        steps = partial(step, model, sgd(model))
        with pytest.warns(hs.HookscopeWarning, match=r"no site matches '0\.wieght': did you mean '0\.weight'\?") as caught:
            steps()
        steps()  # a second warning would be an error
        assert len(caught) == 1
        assert caught[0].filename == step.__code__.co_filename

    run = discovered(tmp_path, program, ["0.wieght", "1:output"])
    assert present(run) == {"1:output"}


@pytest.mark.slow
def test_a_transformer_in_a_hand_written_loop_is_found_whole(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    def program() -> None:
        config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
        bert = BertForSequenceClassification(config)
        optimizer = torch.optim.AdamW(bert.parameters(), lr=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            bert(input_ids=torch.ones(2, 5, dtype=torch.long), labels=torch.tensor([0, 1])).loss.backward()
            optimizer.step()

    run = discovered(tmp_path, program)
    assert present(run, 0) == present(run, 1)
    assert {"(root):output.logits", "bert.encoder.layer.1.output.dense:output_grad", "classifier.bias:update"} <= present(run, 0)
    assert {"(root):input.input_ids"} <= present(run, 0)
