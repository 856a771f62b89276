"""However a watch ends, nothing of it is left on the model or in the process, and nobody else's hook is touched."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import hookscope as hs

from ._traces import in_process, on_model

BATCH = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_process() -> Iterator[None]:
    before = in_process()
    yield
    assert in_process() == before


class Net(nn.Module):
    """Raises `error` in its forward, or in its backward, where one is set."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.last = nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2)
        self.forward_error: BaseException | None = None
        self.backward_error: BaseException | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.act(self.first(x))
        if self.forward_error is not None:
            raise self.forward_error
        if self.backward_error is not None:
            hidden = Fails.apply(hidden, self.backward_error)
        return self.last(hidden)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, error: BaseException) -> torch.Tensor:
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise ctx.error


class Stumbles(torch.optim.SGD):
    """Raises `error` in its step, where one is set."""

    error: BaseException | None = None

    def step(self, closure: Any = None) -> Any:
        if self.error is not None:
            raise self.error
        return super().step(closure)


def trained() -> tuple[Net, Stumbles]:
    model = Net()
    return model, Stumbles(model.parameters(), lr=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(BATCH).square().mean().backward()
    optimizer.step()


def assert_whole(run: hs.Run, steps: list[int]) -> None:
    """These steps are there, with all that belongs to a step, and no part was switched off."""
    assert [event for event in run.events if event["event"] == "switched_off"] == []
    for site in ("first:output", "last:output", "first:output_grad", "last.weight:update", "loss"):
        assert set(steps) <= set(run[site].steps.tolist()), site


def test_a_watch_that_is_closed_leaves_nothing() -> None:
    model, optimizer = trained()
    before = on_model(model)
    with hs.watch(model, optimizer, select=["**", "**:input"]):
        assert on_model(model) != before
        assert in_process() != {}
        step(model, optimizer)
    assert on_model(model) == before


def test_one_that_is_never_used_leaves_nothing_and_closing_twice_does_no_harm() -> None:
    model, _ = trained()
    before = on_model(model)
    w = hs.watch(model)
    w.close()
    assert on_model(model) == before
    w.close()
    assert on_model(model) == before


def test_fifty_watches_in_a_row_leave_nothing() -> None:
    model, optimizer = trained()
    before = on_model(model)
    for _ in range(50):
        with hs.watch(model, optimizer) as w:
            step(model, optimizer)
        assert on_model(model) == before
        assert in_process() == {}
        assert_whole(w.run, [0])


class Refuses(nn.Linear):
    def __init__(self, error: BaseException) -> None:
        super().__init__(2, 2)
        self.error = error

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("no hooks here"), KeyboardInterrupt()])
def test_an_attach_that_fails_halfway_leaves_nothing(error: BaseException) -> None:
    model = nn.Sequential(Net(), nn.Linear(2, 2), Refuses(error), nn.Linear(2, 2))
    before = on_model(model)
    with pytest.raises(hs.AttachError if isinstance(error, Exception) else KeyboardInterrupt):
        hs.watch(model)
    assert on_model(model) == before


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_a_scripted_child_is_left_as_it_was() -> None:
    scripted: Any = torch.jit.script(nn.Linear(2, 2))
    model = nn.Sequential(Net(), scripted)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = on_model(model[0]), list(model.__dict__), list(scripted.__dict__)
    with hs.watch(model):
        step(model, optimizer)
    assert (on_model(model[0]), list(model.__dict__), list(scripted.__dict__)) == before
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def fail_in_forward(model: Net, optimizer: Stumbles, error: BaseException) -> Callable[[], None]:
    model.forward_error = error
    return lambda: setattr(model, "forward_error", None)


def fail_in_backward(model: Net, optimizer: Stumbles, error: BaseException) -> Callable[[], None]:
    model.backward_error = error
    return lambda: setattr(model, "backward_error", None)


def fail_in_step(model: Net, optimizer: Stumbles, error: BaseException) -> Callable[[], None]:
    optimizer.error = error
    return lambda: setattr(optimizer, "error", None)


def fail_in_a_forward_hook(model: Net, optimizer: Stumbles, error: BaseException) -> Callable[[], None]:
    def raises(*args: Any) -> None:
        raise error

    return model.last.register_forward_hook(raises).remove


def fail_in_a_gradient_hook(model: Net, optimizer: Stumbles, error: BaseException) -> Callable[[], None]:
    def raises(*args: Any) -> None:
        raise error

    return model.first.weight.register_post_accumulate_grad_hook(raises).remove


def fail_in_an_optimizer_hook(model: Net, optimizer: Stumbles, error: BaseException) -> Callable[[], None]:
    def raises(*args: Any) -> None:
        raise error

    return optimizer.register_step_pre_hook(raises).remove


FAILURES = [fail_in_forward, fail_in_backward, fail_in_step, fail_in_a_forward_hook, fail_in_a_gradient_hook, fail_in_an_optimizer_hook]
ERRORS = [ValueError, KeyboardInterrupt]


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("fail", FAILURES)
def test_an_error_of_the_training_passes_through_and_nothing_is_left(fail: Any, kind: type[BaseException]) -> None:
    model, optimizer = trained()
    before, error = on_model(model), kind("the user's own")
    w = hs.watch(model, optimizer)
    step(model, optimizer)
    mend = fail(model, optimizer, error)
    with pytest.raises(kind) as raised, w:
        step(model, optimizer)
    mend()
    assert raised.value is error
    assert on_model(model) == before
    assert in_process() == {}
    assert_whole(w.run, [0])
    assert w.run.meta.status == ("failed" if kind is ValueError else "interrupted")


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("fail", FAILURES)
def test_a_training_that_survives_its_error_is_watched_on(fail: Any, kind: type[BaseException]) -> None:
    model, optimizer = trained()
    before = on_model(model)
    with hs.watch(model, optimizer) as w:
        step(model, optimizer)
        mend = fail(model, optimizer, kind("the user's own"))
        with pytest.raises(kind):
            step(model, optimizer)
        mend()
        failed = w.step
        for _ in range(4):
            step(model, optimizer)
    assert on_model(model) == before
    assert_whole(w.run, [0, *range(failed + 1, failed + 4)])


def test_an_error_of_our_own_is_told_once_and_the_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*args: Any) -> bool:
        raise ZeroDivisionError("a bug")

    (model, optimizer), (twin, twins) = trained(), trained()
    before = on_model(model)
    for _ in range(3):
        step(twin, twins)
    monkeypatch.setattr("hookscope._watch._filling.reduce_into", raises)
    monkeypatch.setattr("hookscope._watch._returned.NATIVE", None)  # what is in C does not ask it
    with warnings.catch_warnings(record=True) as told, hs.watch(model, optimizer) as w:
        warnings.simplefilter("always")
        for _ in range(3):
            step(model, optimizer)
    (only,) = told
    assert only.category is hs.HookscopeWarning
    assert "activations is switched off at step 0" in str(only.message)
    assert [(e["part"], e["error"]) for e in w.run.events if e["event"] == "switched_off"] == [("activations", "ZeroDivisionError: a bug")]
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    assert w.run["first.weight:param_grad"].steps.tolist() == [0, 1, 2]
    assert on_model(model) == before


@pytest.mark.parametrize("others", [0, 1])
def test_a_watch_may_be_closed_by_its_own_finding(others: int) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = on_model(model)
    found: list[hs.Finding] = []

    def stop(finding: hs.Finding) -> None:
        found.append(finding)
        w.close()

    w = hs.watch(model, optimizer, on_finding=stop)
    seen: list[str] = []
    foreign = [register_optimizer_step_pre_hook(lambda *_: seen.append("pre")) for _ in range(others)]
    foreign += [register_optimizer_step_post_hook(lambda *_: seen.append("post")) for _ in range(others)]
    step(model, optimizer)
    with torch.no_grad():
        model.first.weight[0, 0] = torch.nan
    step(model, optimizer)
    assert found
    assert on_model(model) == before
    step(model, optimizer)
    for handle in foreign:
        handle.remove()
    assert in_process() == {}
    assert seen == ["pre", "post"] * 3 * others
    assert w.run.meta.status == "finished"
