"""What happens in the process is told once, in order, and everything is undone when nobody listens."""

import functools
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim import SGD, optimizer
from torch.utils.checkpoint import checkpoint

from hookscope._taps import _events
from hookscope._taps._events import subscribe

from ._heard import BACKWARD, STEP, Heard, leaf


def globals_of_torch() -> list[Any]:
    """Everything that a subscription may touch."""
    hooks = [dict(optimizer._global_optimizer_pre_hooks), dict(optimizer._global_optimizer_post_hooks)]
    return [torch.autograd.backward, torch.amp.GradScaler.step, torch.amp.GradScaler.scale, *hooks]


@pytest.fixture
def heard() -> Iterator[Heard]:
    before = globals_of_torch()
    listener = Heard()
    leave = subscribe(listener)
    yield listener
    leave()
    assert globals_of_torch() == before


def test_a_training_step_is_told_in_order(heard: Heard) -> None:
    p = leaf()
    opt = SGD([p], lr=0.1)
    loss = p.sum()
    loss.backward()
    opt.step()
    assert heard.said == BACKWARD + STEP
    assert heard.backwards[0].roots == (loss,)
    assert heard.optimizers == [opt]


def test_backward_from_several_roots_is_one(heard: Heard) -> None:
    p = leaf()
    a, b = p * 2, p * 3
    torch.autograd.backward([a, b], [torch.ones(1), torch.ones(1)])
    torch.autograd.backward(tensors=(p * 4,), grad_tensors=(torch.ones(1),))
    assert heard.said == BACKWARD * 2
    assert heard.backwards[0].roots[0] is a
    assert heard.backwards[0].roots[1] is b
    assert len(heard.backwards[1].roots) == 1
    assert p.grad == 9


@pytest.mark.parametrize(("kwargs", "kept"), [({}, False), ({"create_graph": True}, True), ({"retain_graph": True}, False)])
def test_a_backward_says_whether_its_graph_can_be_differentiated(heard: Heard, kwargs: dict[str, bool], kept: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that create_graph may leak
        p = leaf()
        (p**2).sum().backward(**kwargs)
        torch.autograd.backward((p**2).sum(), None, None, kept)
    assert [b.create_graph for b in heard.backwards] == [kept, kept]
    p.grad = None


def test_a_backward_within_a_backward_is_part_of_it(heard: Heard) -> None:
    p = leaf(3)

    def again(grad: torch.Tensor) -> None:
        with torch.enable_grad():
            (leaf() * 2).sum().backward()

    y = p * 2
    y.register_hook(again)
    y.sum().backward()
    assert heard.said == BACKWARD


def test_a_backward_that_a_mode_of_the_users_had_first_is_one(heard: Heard) -> None:
    with torch.device("cpu"):
        torch.autograd.backward((leaf() ** 2).sum())
        (leaf() ** 2).sum().backward()
    assert heard.said == BACKWARD * 2


def test_reentrant_checkpointing_is_one_backward(heard: Heard) -> None:
    p = leaf(3)
    checkpoint(lambda x: (x * p).tanh(), torch.ones(1, requires_grad=True), use_reentrant=True).sum().backward()
    assert heard.said == BACKWARD


def test_a_backward_that_raises_is_over_and_failed(heard: Heard) -> None:
    p = leaf()
    loss = (p * p).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    p.sum().backward()
    assert heard.said == [*BACKWARD, "backward", "backward failed", *BACKWARD]


def test_autograd_grad_is_no_backward(heard: Heard) -> None:
    p = leaf()
    torch.autograd.grad((p * p).sum(), p)
    assert heard.said == []


@pytest.mark.parametrize("by_keyword", [False, True])
def test_a_step_says_that_it_has_a_closure(heard: Heard, by_keyword: bool) -> None:
    p = leaf()
    opt = SGD([p], lr=0.1)

    def closure() -> float:
        opt.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss.item()

    opt.step(closure=closure) if by_keyword else opt.step(closure)
    opt.step(None)
    assert heard.said == ["step with closure", *BACKWARD, "step over", *STEP]


class Careful(SGD):
    """As many optimizers on PyPI: a step of its own around its parent's."""

    fails = False

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        if self.fails:
            raise ValueError("out of luck")
        return super().step(closure)


def test_a_subclass_that_calls_its_parents_step_makes_one_attempt(heard: Heard) -> None:
    opt = Careful([leaf()], lr=0.1)
    opt.step()
    opt.step()
    assert heard.said == STEP * 2


def test_an_optimizer_that_steps_another_one_makes_two(heard: Heard) -> None:
    inner = SGD([leaf()], lr=0.1)

    class Outer(SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            inner.step()

    Outer([leaf()], lr=0.1).step()
    assert heard.said == ["step", "step", "step over", "step over"]


def test_a_step_that_raises_leaves_the_next_one_whole(heard: Heard) -> None:
    opt = Careful([leaf()], lr=0.1)
    opt.fails = True
    with pytest.raises(ValueError, match="out of luck"):
        opt.step()
    opt.fails = False
    opt.step()
    opt.step()
    assert heard.said == ["step", *STEP, *STEP]


def test_a_step_whose_closure_raises_leaves_the_next_one_whole(heard: Heard) -> None:
    opt = Careful([leaf()], lr=0.1)
    with pytest.raises(ZeroDivisionError):
        opt.step(lambda: 1 / 0)
    opt.step()
    assert heard.said == ["step with closure", *STEP]


def test_a_scaler_that_finds_inf_skips_an_attempt(heard: Heard) -> None:
    p = leaf()
    opt, scaler = SGD([p], lr=0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 1.0):
        opt.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(opt)
        scaler.update()
    assert heard.said == [*BACKWARD, *STEP, *BACKWARD, "skipped", *BACKWARD, *STEP]
    assert heard.optimizers == [opt] * 3
    # Hand arithmetic: no growth within so few steps, and an Inf halves the scale.
    assert heard.scales == [4.0, 4.0, 2.0]


def test_a_loss_that_no_scaler_has_scaled_has_no_scale(heard: Heard) -> None:
    leaf().sum().backward()
    assert heard.scales == [None]


def test_a_switched_off_scaler_only_passes_on(heard: Heard) -> None:
    p = leaf()
    opt, scaler = SGD([p], lr=0.1), torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(p.sum()).backward()
    scaler.step(opt)
    scaler.update()
    assert heard.said == BACKWARD + STEP


@pytest.mark.parametrize("by_name", [False, True])
def test_each_call_of_a_closure_is_told_to_one_who_hears_them(heard: Heard, by_name: bool) -> None:
    opt, calls = SGD([leaf()], lr=0.1), []

    def closure() -> float:
        calls.append(1)
        return 7.0

    heard.hears_closures = True
    assert (opt.step(closure=closure) if by_name else opt.step(closure)) == 7.0
    assert (len(calls), heard.said) == (1, ["step with closure", "closure over", "step over"])


def test_what_a_step_returns_reaches_the_program(heard: Heard) -> None:
    opt, scaler = SGD([leaf()], lr=0.1), torch.amp.GradScaler("cpu", enabled=False)
    assert opt.step(lambda: 7.0) == 7.0
    assert scaler.step(opt, lambda: 8.0) == 8.0


def test_an_error_of_a_listener_reaches_the_program(heard: Heard) -> None:
    def refuse(backward: Any) -> None:
        raise LookupError("enough")

    heard.backward_begins = refuse  # type: ignore[method-assign]
    with pytest.raises(LookupError, match="enough"):
        leaf().sum().backward()


def test_listeners_are_held_weakly() -> None:
    before = globals_of_torch()
    listener = Heard()
    leave, ref = subscribe(listener), weakref.ref(listener)
    del listener
    gc.collect()
    assert ref() is None
    leaf().sum().backward()
    leave()
    assert globals_of_torch() == before


def test_all_is_undone_when_the_last_of_several_leaves_whatever_the_order() -> None:
    before = globals_of_torch()
    first, second = Heard(), Heard()
    leave_first, leave_second = subscribe(first), subscribe(second)
    leave_first()
    leaf().sum().backward()
    assert (first.said, second.said) == ([], BACKWARD)
    assert globals_of_torch() != before
    leave_second()
    leave_second()
    assert globals_of_torch() == before


def test_a_listener_may_leave_while_it_is_being_told() -> None:
    before = globals_of_torch()
    listener = Heard()
    leave = subscribe(listener)
    listener.attempt_begins = lambda *_: leave()  # type: ignore[method-assign]
    opt = SGD([leaf()], lr=0.1)
    opt.step()  # torch would raise if its hooks went away under it
    opt.step()
    late = Heard()
    subscribe(late)()
    assert listener.said == []
    assert globals_of_torch() == before


def test_someone_elses_wrapper_over_ours_stays_and_works() -> None:
    original = torch.autograd.backward
    listener = Heard()
    leave = subscribe(listener)
    ours, calls = torch.autograd.backward, []

    @functools.wraps(ours)
    def theirs(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        ours(*args, **kwargs)

    torch.autograd.backward = theirs
    try:
        leaf().sum().backward()
        leave()
        assert torch.autograd.backward is theirs
        leaf().sum().backward()  # ours is still inside theirs, and does nothing
        assert (len(calls), listener.said) == (2, BACKWARD)
        again = Heard()
        leave = subscribe(again)
        leaf().sum().backward()
        leave()
        assert again.said == BACKWARD
    finally:
        torch.autograd.backward = original
    assert _events._wiring.undo == []
