"""The model, its parameters or its optimizer change while the training goes on."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.optim import SGD

import hookscope as hs

from ._oracle import check, recorded, stats_of
from ._tagged import Tagged, at, batch, events, loss_of, micros_with, one_by_one, tags


@pytest.fixture
def model() -> Tagged:
    torch.manual_seed(0)
    return Tagged()


@pytest.fixture
def sgd(model: Tagged) -> SGD:
    return SGD(model.parameters(), lr=0.01)


def step(model: nn.Module, optimizer: SGD, number: int) -> None:
    optimizer.zero_grad()
    loss_of(model, number).backward()
    optimizer.step()


def test_an_optimizer_made_after_the_watch_is_recognised(model: Tagged) -> None:
    with hs.watch(model) as watched:
        optimizer = SGD(model.parameters(), lr=0.01)
        for number in range(3):
            step(model, optimizer, number)
    assert tags(watched.run) == one_by_one(range(3))
    assert at(watched.run, "lr") == dict.fromkeys(range(3), 0.01)


def test_an_optimizer_of_another_model_makes_no_step(model: Tagged, sgd: SGD) -> None:
    stranger = Tagged()
    other = SGD(stranger.parameters(), lr=0.5)
    with hs.watch(model, sgd) as watched:
        for number in range(3):
            step(stranger, other, 100)
            step(model, sgd, number)
    assert tags(watched.run) == one_by_one(range(3))
    assert micros_with(watched.run, "loss") == {number: [0] for number in range(3)}  # and none of the stranger's
    assert at(watched.run, "lr") == dict.fromkeys(range(3), 0.01)
    assert events(watched.run, "closed", "steps", "optimizer_steps") == [(3, 3)]


def test_a_parameter_that_is_unfrozen_later_has_gradients_from_then_on(model: Tagged) -> None:
    model.map.bias.requires_grad_(False)
    optimizer = SGD([model.map.weight], lr=0.01)
    with hs.watch(model, optimizer) as watched:
        step(model, optimizer, 0)
        model.map.bias.requires_grad_(True)
        optimizer.add_param_group({"params": [model.map.bias], "lr": 0.1})
        step(model, optimizer, 1)
        step(model, optimizer, 2)
    assert sorted(micros_with(watched.run, "map.bias:param")) == [0, 1, 2]
    assert sorted(micros_with(watched.run, "map.bias:param_grad")) == [1, 2]
    assert sorted(micros_with(watched.run, "map.bias:update")) == [1, 2]
    assert at(watched.run, "lr") == dict.fromkeys(range(3), 0.01)
    assert at(watched.run, "lr.1") == dict.fromkeys((1, 2), 0.1)


@pytest.mark.parametrize("how", ["add_param_group", "new optimizer"])
def test_a_head_that_is_replaced_is_watched_under_its_old_name(model: Tagged, sgd: SGD, how: str) -> None:
    with hs.watch(model) as watched:
        step(model, sgd, 0)
        model.map = nn.Linear(2, 5)
        if how == "add_param_group":
            sgd.add_param_group({"params": list(model.map.parameters())})
        optimizer = sgd if how == "add_param_group" else SGD(model.parameters(), lr=0.01)
        for number in (1, 2):
            step(model, optimizer, number)
    assert tags(watched.run) == one_by_one(range(3))
    for site in ("map:output", "map:output_grad", "map.weight:param", "map.weight:param_grad", "map.weight:update"):
        assert sorted(micros_with(watched.run, site)) == [0, 1, 2]
    assert at(watched.run, "map:output", "count") == {0: 6, 1: 15, 2: 15}
    assert at(watched.run, "map.weight:param", "count") == {0: 4, 1: 10, 2: 10}


def test_a_module_that_is_added_during_training_is_watched_from_its_first_forward() -> None:
    class Growing(nn.Sequential):
        pass

    model = Growing(nn.Linear(2, 2))
    optimizer = SGD(model.parameters(), lr=0.01)
    with hs.watch(model) as watched:
        step(model, optimizer, 0)
        model.append(nn.Linear(2, 2))
        optimizer.add_param_group({"params": list(model[1].parameters())})
        step(model, optimizer, 1)
    assert sorted(micros_with(watched.run, "1:output")) == [1]
    assert sorted(micros_with(watched.run, "1.weight:update")) == [1]
    assert sorted(micros_with(watched.run, "0:output")) == [0, 1]


def test_parameters_that_are_assigned_anew_are_found_again(model: Tagged, sgd: SGD) -> None:
    with hs.watch(model, updates="full") as watched:
        step(model, sgd, 0)
        model.load_state_dict({name: value.clone() * 2 for name, value in model.state_dict().items()}, assign=True)
        before = model.map.weight.detach().clone()
        optimizer = SGD(model.parameters(), lr=0.01)
        step(model, optimizer, 1)
        after = model.map.weight.detach().clone()
        step(model, optimizer, 2)
    assert tags(watched.run) == one_by_one(range(3))
    rows = {k: v for k, v in recorded(watched.run, kinds=("param", "update")).items() if k[0] == 1 and "weight" in k[2]}
    want = {(1, -1, "map.weight:param", 0): stats_of(before), (1, -1, "map.weight:update", 0): stats_of(after.double() - before.double())}
    check(rows, want)


def test_weights_loaded_in_place_are_read_as_they_are_then(model: Tagged, sgd: SGD) -> None:
    with hs.watch(model) as watched:
        step(model, sgd, 0)
        model.load_state_dict({name: torch.ones_like(value) for name, value in model.state_dict().items()})
        step(model, sgd, 1)
    assert at(watched.run, "map.weight:param", "mean")[1] == 1.0
    assert abs(at(watched.run, "map.weight:update", "absmax")[1]) < 0.5


def test_a_functional_call_is_read_and_its_gradients_are_those_of_what_was_put_in(model: Tagged, sgd: SGD) -> None:
    fast = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    with hs.watch(model) as watched:
        for number in range(2):
            loss = (functional_call(model, fast, (batch(number),)) + 1).square().mean() + loss_of(model, 50 + number)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    assert tags(watched.run) == {step: [[float(step), 50.0 + step]] for step in range(2)}
    assert events(watched.run, "switched_off") == []


def test_a_function_transform_is_passed_over(model: Tagged, sgd: SGD) -> None:
    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(model, parameters, (x,)).square().mean()

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    with hs.watch(model) as watched:
        for number in range(2):
            slopes = grad(loss)(parameters, batch(100))
            per_sample = torch.func.vmap(grad(loss), in_dims=(None, 0))(parameters, batch(200))
            assert slopes["map.weight"].shape == (2, 2)
            assert per_sample["map.weight"].shape == (3, 2, 2)
            step(model, sgd, number)
    assert tags(watched.run) == one_by_one(range(2))
    assert events(watched.run, "switched_off") == []
