"""Step numbers, micro-batches and calls in the loops that people write."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam, Optimizer

import hookscope as hs

from ._tagged import Tagged, at, batch, events, loss_of, micros_with, one_by_one, tags

PARAMETERS = ("map.weight", "map.bias")


@pytest.fixture
def model() -> Tagged:
    torch.manual_seed(0)
    return Tagged()


@pytest.fixture
def sgd(model: Tagged) -> SGD:
    return SGD(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: Optimizer, numbers: Iterator[int] | range) -> None:
    for number in numbers:
        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.step()


@pytest.mark.parametrize("named", [True, False])
def test_each_attempt_of_one_optimizer_is_a_step(model: Tagged, sgd: SGD, named: bool) -> None:
    with hs.watch(model, sgd if named else None) as watched:
        train(model, sgd, range(4))
    assert tags(watched.run) == one_by_one(range(4))
    for name in PARAMETERS:
        for kind in ("param", "param_grad", "update"):
            assert micros_with(watched.run, f"{name}:{kind}") == {step: [-1] for step in range(4)}
    assert micros_with(watched.run, "map:output_grad") == {step: [0] for step in range(4)}
    assert micros_with(watched.run, "loss") == {step: [0] for step in range(4)}
    assert at(watched.run, "lr") == dict.fromkeys(range(4), 0.01)
    assert events(watched.run, "skipped") == []
    assert events(watched.run, "closed", "steps", "optimizer_steps") == [(4, 4)]


def test_the_learning_rate_is_the_one_that_the_step_used(model: Tagged, sgd: SGD) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(sgd, step_size=2, gamma=0.1)
    with hs.watch(model) as watched:
        for number in range(5):
            train(model, sgd, range(number, number + 1))
            scheduler.step()
    assert at(watched.run, "lr") == {0: 0.01, 1: 0.01, 2: 0.001, 3: 0.001, 4: 0.0001}


def test_every_group_of_an_optimizer_has_its_rate(model: Tagged) -> None:
    optimizer = SGD([{"params": [model.map.weight], "lr": 0.5}, {"params": [model.map.bias], "lr": torch.tensor(0.25)}], lr=0.1)
    with hs.watch(model) as watched:
        train(model, optimizer, range(2))
    assert at(watched.run, "lr") == {0: 0.5, 1: 0.5}
    assert at(watched.run, "lr.1") == {0: 0.25, 1: 0.25}


def test_accumulated_micro_batches_belong_to_the_step_that_uses_them(model: Tagged, sgd: SGD) -> None:
    with hs.watch(model) as watched:
        for number in range(8):
            loss_of(model, number).backward()
            if number % 4 == 3:
                sgd.step()
                sgd.zero_grad()
    assert tags(watched.run) == {0: [[0], [1], [2], [3]], 1: [[4], [5], [6], [7]]}
    assert micros_with(watched.run, "map.weight:param_grad") == {0: [-1], 1: [-1]}


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_micro_batch_without_any_gradient_is_no_skipped_step(model: Tagged, sgd: SGD, set_to_none: bool) -> None:
    with hs.watch(model) as watched:
        for number in range(6):
            (loss_of(model, number) * (number != 2)).backward()  # as where all tokens of a micro-batch are masked
            if number % 2:
                sgd.step()
                sgd.zero_grad(set_to_none=set_to_none)
    assert tags(watched.run) == {0: [[0], [1]], 1: [[2], [3]], 2: [[4], [5]]}
    assert events(watched.run, "skipped") == []


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("bad", [0, 1, 3])
def test_a_step_that_the_loop_gives_up_after_backward_counts_and_is_marked(model: Tagged, sgd: SGD, set_to_none: bool, bad: int) -> None:
    with hs.watch(model) as watched:
        for number in range(5):
            loss_of(model, number).backward()
            if number != bad:
                sgd.step()
            sgd.zero_grad(set_to_none=set_to_none)
    assert tags(watched.run) == one_by_one(range(5))
    assert at(watched.run, "skipped") == {bad: 1.0}
    assert events(watched.run, "skipped", "step", "by") == [(bad, "the training loop")]
    assert micros_with(watched.run, "map.weight:update") == {step: [-1] for step in range(5) if step != bad}


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_counts_and_is_marked(model: Tagged, fused: bool) -> None:
    optimizer, scaler = SGD(model.parameters(), lr=0.01, fused=fused), torch.amp.GradScaler("cpu", init_scale=16.0)
    with hs.watch(model, optimizer, on_finding="ignore") as watched:
        for number in range(4):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, number) * (float("inf") if number == 1 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert tags(watched.run) == one_by_one(range(4))
    assert at(watched.run, "skipped") == {1: 1.0}
    assert events(watched.run, "skipped", "step", "by") == [(1, "GradScaler")]
    assert events(watched.run, "closed", "steps", "optimizer_steps") == [(4, 4)]


class Gan(nn.Module):
    """A holder without a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.d = Tagged(), Tagged()


@pytest.mark.parametrize("named", [True, False])
def test_two_optimizers_that_alternate_share_a_step(named: bool) -> None:
    gan = Gan()
    d_opt, g_opt = (SGD(net.parameters(), lr=rate) for net, rate in ((gan.d, 0.01), (gan.g, 0.02)))
    with hs.watch(gan, [d_opt, g_opt] if named else None) as watched:
        for number in range(3):
            d_opt.zero_grad()
            (loss_of(gan.d, 10 + number) + (gan.d(gan.g(batch(number)).detach()) - 1).square().mean()).backward()
            d_opt.step()
            g_opt.zero_grad()
            gan.d(gan.g(batch(20 + number))).square().mean().backward()
            g_opt.step()
    assert tags(watched.run, "g.tag:output") == {step: [[step], [20 + step]] for step in range(3)}
    assert [[len(micro) for micro in micros] for micros in tags(watched.run, "d.tag:output").values()] == [[2, 1]] * 3
    for name in ("g.map.weight", "d.map.weight"):
        assert micros_with(watched.run, f"{name}:update") == {step: [-1] for step in range(3)}
    assert at(watched.run, "lr") == dict.fromkeys(range(3), 0.01)
    assert at(watched.run, "lr.1") == dict.fromkeys(range(3), 0.02)


@pytest.mark.parametrize("every", [1, 3])
def test_five_critic_steps_are_five_steps_and_the_generators_shares_one(every: int) -> None:
    gan, number = Gan(), count()
    c_opt, g_opt = (SGD(net.parameters(), lr=0.01) for net in (gan.d, gan.g))
    with hs.watch(gan, every=every) as watched:
        for _ in range(3):
            for _ in range(5):
                c_opt.zero_grad()
                loss_of(gan.d, next(number)).backward()
                c_opt.step()
            g_opt.zero_grad()
            gan.d(gan.g(batch(next(number)))).mean().backward()
            g_opt.step()
    generator = {5: 5.0, 10: 11.0, 15: 17.0}
    critic = dict(zip(range(15), [n for n in range(18) if n % 6 != 5], strict=True))
    recorded = [step for step in range(16) if step % every == 0]
    assert tags(watched.run, "g.tag:output") == {step: [[generator[step]]] for step in recorded if step in generator}
    found = tags(watched.run, "d.tag:output")
    assert sorted(found) == recorded
    assert {step: micros[-1] for step, micros in found.items() if step in critic} == {
        s: [float(critic[s])] for s in recorded if s in critic
    }
    assert micros_with(watched.run, "g.map.weight:update") == {step: [-1] for step in recorded if step in generator}
    assert micros_with(watched.run, "d.map.weight:update") == {step: [-1] for step in recorded if step in critic}


def test_two_optimizers_after_one_backward_make_one_step(model: Tagged) -> None:
    first, second = SGD([model.map.weight], lr=0.01), Adam([model.map.bias], lr=0.01)
    with hs.watch(model) as watched:
        for number in range(3):
            loss_of(model, number).backward()
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()
    assert tags(watched.run) == one_by_one(range(3))
    for name in PARAMETERS:
        for kind in ("param", "param_grad", "update"):
            assert micros_with(watched.run, f"{name}:{kind}") == {step: [-1] for step in range(3)}
    assert events(watched.run, "closed", "steps", "optimizer_steps") == [(3, 6)]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_fine_tuning_with_another_optimizer_goes_on_counting(model: Tagged, sgd: SGD, every: int) -> None:
    with hs.watch(model, every=every) as watched:
        train(model, sgd, range(4))
        train(model, Adam(model.parameters(), lr=0.001), range(4, 9))
    recorded = range(0, 9, every)
    assert tags(watched.run) == one_by_one(recorded)
    assert micros_with(watched.run, "map.weight:update") == {step: [-1] for step in recorded}
    assert at(watched.run, "lr") == {step: 0.01 for step in recorded if step < 4}
    assert at(watched.run, "lr.1") == {step: 0.001 for step in recorded if step >= 4}


@pytest.mark.parametrize("make", [SGD, LBFGS])
def test_what_a_closure_runs_belongs_to_its_step(model: Tagged, make: Callable[..., Optimizer]) -> None:
    optimizer, numbers, ran = make(model.parameters(), lr=0.01), count(), []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, number := next(numbers))
        loss.backward()
        ran[-1].append([float(number)])
        return loss

    with hs.watch(model, optimizer) as watched:
        for _ in range(3):
            ran.append([])
            optimizer.step(closure)  # type: ignore[arg-type]  # torch asks for floats and takes tensors
    assert tags(watched.run) == dict(enumerate(ran))
    assert (make is LBFGS) == (max(map(len, ran)) > 1)
    for kind in ("param", "param_grad", "update"):
        assert micros_with(watched.run, f"map.weight:{kind}") == {step: [-1] for step in range(3)}


@pytest.mark.parametrize("every", [1, 2, 3])
def test_only_each_nth_step_is_recorded_and_numbers_stay_true(model: Tagged, sgd: SGD, every: int) -> None:
    with hs.watch(model, every=every) as watched:
        train(model, sgd, range(7))
    recorded = range(0, 7, every)
    assert watched.run.steps.tolist() == list(recorded)
    assert tags(watched.run) == one_by_one(recorded)
    for site in ("map.weight:param", "map.weight:param_grad", "map.weight:update", "map:output_grad", "loss"):
        assert list(micros_with(watched.run, site)) == list(recorded)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_resumed_run_goes_on_with_step_numbers_and_sites(model: Tagged, sgd: SGD, every: int, tmp_path: Path) -> None:
    with hs.watch(model, to=tmp_path / "run", every=every):
        train(model, sgd, range(4))
    ids = {site.name: site.id for site in hs.Run(tmp_path / "run").sites}
    follower = Tagged()
    with hs.watch(follower, to=tmp_path / "run", every=every, resume=True) as watched:
        first = watched.step
        train(follower, SGD(follower.parameters(), lr=0.02), range(first, first + 5))
    run = hs.Run(tmp_path / "run")
    assert first == (4 if every == 1 else run.steps[run.steps < first][-1] + 1)
    assert tags(run) == one_by_one(range(0, first + 5, every))
    assert {site.name: site.id for site in run.sites} == ids
    assert run.meta.status == "finished"


@pytest.mark.parametrize("set_to_none", [True, False])
def test_how_gradients_are_zeroed_changes_nothing(model: Tagged, sgd: SGD, set_to_none: bool) -> None:
    with hs.watch(model) as watched:
        for number in range(3):
            sgd.zero_grad(set_to_none=set_to_none)
            loss_of(model, number).backward()
            sgd.step()
    assert tags(watched.run) == one_by_one(range(3))
    assert events(watched.run, "skipped") == []
