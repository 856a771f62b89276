"""Step numbers, micro-batches and calls in loops off the beaten track: without an optimizer, with many backwards, with none, cut short."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

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


def stepping_in_backward(model: nn.Module) -> dict[nn.Parameter, Optimizer]:
    optimizers: dict[nn.Parameter, Optimizer] = {p: SGD([p], lr=0.01) for p in model.parameters()}

    def step(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)  # type: ignore[arg-type]  # torch says Tensor and gives the parameter
    return optimizers


@pytest.mark.parametrize("named", [True, False])
def test_optimizers_that_step_within_backward_make_one_step_of_it(model: Tagged, named: bool) -> None:
    optimizers = stepping_in_backward(model)
    with hs.watch(model, list(optimizers.values()) if named else None) as watched:
        for number in range(4):
            loss_of(model, number).backward()
    assert tags(watched.run) == one_by_one(range(4))
    for name in ("map.weight", "map.bias"):
        for kind in ("param", "param_grad", "update"):
            assert micros_with(watched.run, f"{name}:{kind}") == {step: [-1] for step in range(4)}
    assert micros_with(watched.run, "map:output_grad") == {step: [0] for step in range(4)}
    assert events(watched.run, "closed", "steps", "optimizer_steps") == [(4, 8)]


def by_data(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.data -= 0.01 * parameter.grad
    parameter.grad = None


def under_no_grad(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    with torch.no_grad():
        parameter -= 0.01 * parameter.grad
        parameter.grad.zero_()


@pytest.mark.parametrize("change", [by_data, under_no_grad])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_weights_changed_by_hand_make_a_step(model: Tagged, change: Callable[[nn.Parameter], None], accumulated: int) -> None:
    before, after = [], []
    with hs.watch(model, updates="full") as watched:
        for step in range(3):
            before.append(model.map.weight.detach().clone())
            for i in range(accumulated):
                loss_of(model, step * accumulated + i).backward()
            for p in model.parameters():
                change(p)
            after.append(model.map.weight.detach().clone())
    assert tags(watched.run) == {s: [[float(s * accumulated + i)] for i in range(accumulated)] for s in range(3)}
    want = {(s, -1, "map.weight:param", 0): stats_of(b) for s, b in enumerate(before)}
    want |= {(s, -1, "map.weight:update", 0): stats_of(a.double() - b.double()) for s, (a, b) in enumerate(zip(after, before, strict=True))}
    check({k: v for k, v in recorded(watched.run, kinds=("param", "update")).items() if "weight" in k[2]}, want)
    assert micros_with(watched.run, "map.weight:param_grad") == {step: [-1] for step in range(3)}
    assert events(watched.run, "closed", "steps", "optimizer_steps") == [(3, 0)]


def test_two_backwards_through_one_graph_are_two_micro_batches(model: Tagged, sgd: SGD) -> None:
    with hs.watch(model) as watched:
        loss = loss_of(model, 1)
        loss.backward(retain_graph=True)
        (3 * loss).backward()
        sgd.step()
    assert tags(watched.run) == {0: [[1.0]]}
    assert micros_with(watched.run, "map:output_grad") == {0: [0, 1]}
    rows = recorded(watched.run, kinds=("output_grad",))
    assert rows[0, 1, "map:output_grad", 0].sumsq == pytest.approx(9 * rows[0, 0, "map:output_grad", 0].sumsq, rel=1e-6)


def test_a_backward_that_runs_on_into_earlier_graphs_gives_the_newest_forwards_gradient(model: Tagged, sgd: SGD) -> None:
    gradients = []
    with hs.watch(model) as watched:
        state = batch(1)
        for _ in range(3):  # truncated backpropagation through time, never truncated
            state = model(state)
            state.retain_grad()
            (loss := state.square().mean()).backward(retain_graph=True)
            # What the loss itself sends: nothing later has used this state yet.
            gradients.append(torch.autograd.grad(loss, state, retain_graph=True)[0])
        sgd.step()
    want = {(0, micro, "map:output_grad", 0): stats_of(g) for micro, g in enumerate(gradients)}
    check({k: v for k, v in recorded(watched.run, kinds=("output_grad",)).items() if k[2] == "map:output_grad"}, want)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).tanh())


def test_a_gradient_penalty_leaves_the_gradients_of_the_backward_apart_from_its_own() -> None:
    torch.manual_seed(0)
    critic, x = Critic(), torch.randn(4, 2, requires_grad=True)
    optimizer = SGD(critic.parameters(), lr=0.0)
    a = critic.a(x)
    a.retain_grad()
    (slope,) = torch.autograd.grad(critic.b(a.tanh()).sum(), x, create_graph=True)
    a.grad = None
    slope.square().sum().backward()
    assert a.grad is not None
    with hs.watch(critic, optimizer) as watched:
        for _ in range(2):
            optimizer.zero_grad()
            (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
            slope.square().sum().backward()
            optimizer.step()
    # The penalty does not depend on what b returns, only on its weight: no gradient of the loss arrives there.
    got = recorded(watched.run, kinds=("output_grad",))
    check(got, {(step, 0, "a:output_grad", 0): stats_of(a.grad) for step in range(2)})
    assert micros_with(watched.run, "a:output") == {0: [0], 1: [0]}


def test_a_second_derivative_is_no_further_step(model: Tagged, sgd: SGD) -> None:
    with hs.watch(model) as watched:
        for number in range(3):
            sgd.zero_grad()
            loss = loss_of(model, number)
            slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            (loss + sum(s.square().sum() for s in slopes)).backward()
            sgd.step()
    assert tags(watched.run) == one_by_one(range(3))
    assert micros_with(watched.run, "map:output_grad") == {step: [0] for step in range(3)}


def test_gradients_taken_without_a_backward_make_steps_too(model: Tagged, sgd: SGD) -> None:
    with hs.watch(model) as watched:
        for number in range(3):
            for p, g in zip(model.parameters(), torch.autograd.grad(loss_of(model, number), list(model.parameters())), strict=True):
                p.grad = g
            sgd.step()
    assert tags(watched.run) == one_by_one(range(3))
    assert micros_with(watched.run, "map.weight:param_grad") == {step: [-1] for step in range(3)}


@pytest.mark.parametrize("grad", [True, False])
def test_an_evaluation_in_the_loop_is_no_part_of_the_training(model: Tagged, sgd: SGD, grad: bool) -> None:
    with hs.watch(model) as watched:
        for number in range(3):
            sgd.zero_grad()
            loss_of(model, number).backward()
            sgd.step()
            model.eval()
            with torch.set_grad_enabled(grad):
                loss_of(model, 100 + number)
                loss_of(model, 200 + number)
            model.train()
    assert tags(watched.run) == one_by_one(range(3))
    assert micros_with(watched.run, "(root):input") == {step: [0] for step in range(3)}


@pytest.mark.parametrize("where", ["forward", "loss", "backward", "step"])
def test_the_rows_of_a_step_that_fails_are_there(model: Tagged, sgd: SGD, where: str, tmp_path: Path) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError(where)

    def fail_if_last(number: int) -> None:
        if number < 2:
            return
        if where == "forward":
            model.map.register_forward_pre_hook(fail)
        elif where == "backward":
            model.map.weight.register_hook(fail)
        elif where == "step":
            sgd.register_step_pre_hook(fail)

    with pytest.raises(MemoryError, match=where):  # noqa: PT012, SIM117
        with hs.watch(model, to=tmp_path / "run"):
            for number in range(3):
                fail_if_last(number)
                loss = loss_of(model, number)
                if where == "loss" and number == 2:
                    fail()
                sgd.zero_grad()
                loss.backward()
                sgd.step()
    run = hs.Run(tmp_path / "run")
    assert run.meta.status == "failed"
    assert tags(run) == one_by_one(range(3))
    assert sorted(micros_with(run, "map:output")) == ([0, 1] if where == "forward" else [0, 1, 2])
    assert sorted(micros_with(run, "map:output_grad")) == ([0, 1, 2] if where in ("backward", "step") else [0, 1])
    assert sorted(micros_with(run, "map.weight:update")) == [0, 1]


def test_more_micro_batches_than_are_kept_apart_are_merged_exactly(model: Tagged, sgd: SGD) -> None:
    sums = torch.zeros(2, dtype=torch.float64)
    with hs.watch(model) as watched:
        for number in range(150):
            out = model(batch(number))
            sums += torch.stack([out.detach().double().sum(), out.detach().double().square().sum()])
            out.sum().backward()
        sgd.step()
    for site, count in (("tag:output", 900), ("map:output", 900), ("map:output_grad", 900), ("loss", 150)):
        assert at(watched.run, site, "count") == {0: count}
    assert len(set(micros_with(watched.run, "map:output")[0])) <= 64
    assert at(watched.run, "tag:output", "sum") == {0: 6 * 149 * 150 / 2}
    assert watched.run["map:output", "sum"].values[0] == pytest.approx(float(sums[0]), rel=1e-6)
    assert watched.run["map:output", "l2"].values[0] ** 2 == pytest.approx(float(sums[1]), rel=1e-6)
    assert at(watched.run, "map:output_grad", "sum") == {0: 900.0}


def test_more_calls_than_are_kept_apart_are_counted_as_lost(model: Tagged, sgd: SGD) -> None:
    with hs.watch(model) as watched:
        for _ in range(2):
            sum((loss_of(model, number) for number in range(300)), torch.zeros(())).backward()
            sgd.step()
    assert tags(watched.run) == {step: [[float(number) for number in range(256)]] for step in range(2)}
    ((lost,),) = events(watched.run, "lost_calls", "calls")
    assert lost >= 2 * (300 - 256)
    assert events(watched.run, "switched_off") == []


def test_sharpness_aware_minimisation_has_two_micro_batches_a_step(model: Tagged, sgd: SGD) -> None:
    with hs.watch(model, sgd) as watched:
        for step in range(3):
            loss_of(model, 2 * step).backward()
            climbs = {p: 0.05 * p.grad for p in model.parameters() if p.grad is not None}
            with torch.no_grad():
                for p, climb in climbs.items():
                    p.add_(climb)
            sgd.zero_grad()
            loss_of(model, 2 * step + 1).backward()
            with torch.no_grad():
                for p, climb in climbs.items():
                    p.sub_(climb)
            sgd.step()
            sgd.zero_grad()
    assert tags(watched.run) == {step: [[2.0 * step], [2.0 * step + 1]] for step in range(3)}
    assert events(watched.run, "skipped") == []
