"""Hooks in C do what hooks in Python do: each training is watched both ways, with the same rows to the bit."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hookscope as hs
from hookscope._core._site import Site
from hookscope._stats import Cells
from hookscope._watch import _returned, _slot
from hookscope._watch._activations import Activations
from hookscope._watch._fields import NATIVE
from hookscope._watch._returned import returned
from hookscope._watch._slot import Slot
from hookscope._watch._store import Store
from hookscope._watch._table import SiteTable
from hookscope._watch._tap import Tap

from ._odd import KINDS, Odd

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the hooks in C were not built, or are not wanted")


def watched(parts: list[str], monkeypatch: pytest.MonkeyPatch, *, native: bool, steps: int = 3) -> tuple[Any, list[torch.Tensor]]:
    with monkeypatch.context() as patched:
        if not native:
            patched.setattr(_returned, "NATIVE", None)
        torch.manual_seed(0)
        model = Odd(parts)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hs.FindingWarning)
            with hs.watch(model, optimizer, every=1, select=["**", "**:input"]) as w:
                for _ in range(steps):
                    optimizer.zero_grad()
                    model(torch.randn(3, 4, 6)).square().mean().backward()
                    optimizer.step()
    return w.run, list(model.parameters())


def rows(run: Any) -> list[tuple[Any, ...]]:
    found, names = run.rows(), {site.id: site.name for site in run.sites}
    kept = [i for i, site in enumerate(found.site.tolist()) if names[site] != "seconds"]
    numbers = zip(*(getattr(found, name)[kept].tolist() for name in ("step", "micro", "call", "seq")), strict=True)
    stats = found.stats[kept]
    return sorted((names[found.site[i]], *n, stats[j].tobytes()) for j, (i, n) in enumerate(zip(kept, numbers, strict=True)))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
def test_whatever_modules_return_the_rows_are_those_of_hooks_in_python(parts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        (native, weights), (plain, others) = (watched(parts, monkeypatch, native=way) for way in (True, False))
    assert rows(native) == rows(plain)
    assert [e for e in native.events if e["event"] == "switched_off"] == []
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(weights, others, strict=True))


def fake_watch() -> tuple[Activations, Tap, Slot, Cells, list[Exception]]:
    """As in the first forward of a training, with one module whose first call is known."""
    errors: list[Exception] = []
    owner, cells = Activations(SiteTable(), Store(), errors.append), Cells("cpu")
    tap = Tap(Site(-1, "layer", "output"))
    tap.first = slot = Slot(owner, 0, (0, cells.row()), (1, cells.row()))
    owner.lane = threading.get_ident()
    owner.plain, owner.passing.label = True, ""
    return owner, tap, slot, cells, errors


def refused(*_: Any) -> None:
    raise AssertionError("not the usual case")


def test_an_output_and_its_gradient_are_read_without_python() -> None:
    owner, tap, slot, cells, errors = fake_watch()
    hook = returned(tap, owner, refused)
    x = torch.tensor([1.0, -2.0, 4.0], requires_grad=True)
    y = x * 2
    hook(nn.Identity(), (x,), {}, y)
    (y * torch.tensor([3.0, 0.0, -4.0])).sum().backward()
    found = cells.read([slot.output_row, slot.grad_row])  # type: ignore[list-item]
    assert found[0].tolist() == [3.0, 0.0, 0.0, 0.0, 6.0, 84.0, -4.0, 8.0]
    assert found[1].tolist() == [3.0, 0.0, 0.0, 1.0, -1.0, 25.0, -4.0, 3.0]
    assert (owner.touched, owner.outputs, owner.gradients, tap.calls, errors) == ([tap], [slot], [slot], 1, [])
    assert owner.spent > 0


UNUSUAL: dict[str, Callable[[Activations, Tap], Any]] = {
    "the gate is shut": lambda owner, tap: setattr(owner, "on", False),
    "another call": lambda owner, tap: setattr(tap, "calls", 1),
    "nothing is known": lambda owner, tap: setattr(tap, "first", None),
    "another thread": lambda owner, tap: setattr(owner, "lane", 7),
}
OUTPUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a list": lambda y: [y],
    "a parameter": lambda y: nn.Parameter(y.detach()),
    "integers": lambda y: y.long(),
    "complex numbers": lambda y: torch.complex(y, y),
    "a negated view": lambda y: torch.complex(y, y).conj().imag,
    "every second element": lambda y: y[::2],
    "one number expanded": lambda y: y[:1].expand(3),
    "a sparse tensor": lambda y: y.to_sparse(),
    "a nested tensor": lambda y: torch.nested.nested_tensor([y.detach(), y.detach()], layout=torch.jagged),
    "a strided nested tensor": lambda y: torch.nested.nested_tensor([y.detach(), y.detach()], layout=torch.strided),
    "memory that was freed": lambda y: (z := y.detach().clone(), z.untyped_storage().resize_(0))[0],
    "a zero without memory": lambda y: torch._efficientzerotensor(3),
    "eight bits": lambda y: y.detach().to(torch.float8_e4m3fn),
    "no element": lambda y: y[:0],
    "a tuple": lambda y: (y,),
    "None": lambda y: None,
    "a meta tensor": lambda y: y.to("meta"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("why", [*UNUSUAL, *OUTPUTS])
def test_what_is_unusual_is_left_to_python_before_anything_is_done(why: str) -> None:
    owner, tap, slot, cells, _ = fake_watch()
    called: list[tuple[Any, ...]] = []
    hook = returned(tap, owner, lambda *given: called.append(given))
    y = torch.tensor([1.0, -2.0, 4.0], requires_grad=True) * 2
    output, module = OUTPUTS[why](y) if why in OUTPUTS else y, nn.Identity()
    UNUSUAL.get(why, lambda *_: None)(owner, tap)
    before = tap.calls, slot.forwards, cells.read([slot.output_row]).tobytes()  # type: ignore[list-item]
    hook(module, (y,), {}, output)
    assert [given[:3] for given in called] == [(module, (y,), {})]
    assert called[0][3] is output
    assert (tap.calls, slot.forwards, cells.read([slot.output_row]).tobytes()) == before  # type: ignore[list-item]
    assert (owner.touched, owner.outputs) == ([], [])
    assert not getattr(y, "_backward_hooks", None)


AROUND: dict[str, Callable[[], Any]] = {
    "no grad": torch.no_grad,
    "a function mode": torch.overrides.BaseTorchFunctionMode,
    "a dispatch mode": torch.utils._python_dispatch.TorchDispatchMode,
}


@pytest.mark.parametrize("why", AROUND)
def test_under_modes_and_without_gradients_python_is_asked(why: str) -> None:
    owner, tap, _, _, _ = fake_watch()
    called: list[Any] = []
    hook, y = returned(tap, owner, lambda *given: called.append(given)), torch.ones(3, requires_grad=True) * 2
    with AROUND[why]():
        hook(nn.Identity(), (y,), {}, y)
    assert len(called) == 1
    assert tap.calls == 0


def test_within_a_backward_and_a_transform_python_is_asked() -> None:
    owner, tap, _, _, _ = fake_watch()
    called: list[Any] = []
    hook, y = returned(tap, owner, lambda *given: called.append(given)), torch.ones(3, requires_grad=True) * 2
    (z := y * 1).register_hook(lambda grad: hook(nn.Identity(), (y,), {}, y))
    z.sum().backward()
    torch.func.vmap(lambda x: (hook(nn.Identity(), (y,), {}, y), x)[1])(torch.ones(2))
    assert (len(called), tap.calls) == (2, 0)


def test_a_gradient_of_an_earlier_graph_is_not_read() -> None:
    owner, tap, slot, cells, _ = fake_watch()
    hook, x = returned(tap, owner, refused), torch.ones(3, requires_grad=True)
    first, second = x * 2, x * 3
    for y in (first, second):
        owner.forget()
        hook(nn.Identity(), (x,), {}, y)
    (second * 7).sum().backward()
    (first * 5).sum().backward()
    assert cells.read([slot.grad_row])[0, 6:].tolist() == [7.0, 7.0]  # type: ignore[list-item]
    assert owner.gradients == [slot]


def test_gradients_of_a_replay_are_not_read() -> None:
    owner, tap, slot, cells, _ = fake_watch()
    before = cells.read([slot.grad_row]).tobytes()  # type: ignore[list-item]
    owner.locator = type("Busy", (), {"busy": True})()
    y = torch.ones(3, requires_grad=True) * 2
    returned(tap, owner, refused)(nn.Identity(), (y,), {}, y)
    y.sum().backward()
    assert owner.gradients == []
    assert cells.read([slot.grad_row]).tobytes() == before  # type: ignore[list-item]


def test_hooks_of_others_on_the_same_tensor_stay_and_theirs_may_follow() -> None:
    owner, tap, slot, _, _ = fake_watch()
    order: list[str] = []
    y = torch.ones(3, requires_grad=True) * 2
    y.register_hook(lambda grad: order.append("before"))
    returned(tap, owner, refused)(nn.Identity(), (y,), {}, y)
    handle = y.register_hook(lambda grad: order.append("after"))
    assert isinstance(y._backward_hooks, OrderedDict)
    y.sum().backward(retain_graph=True)
    handle.remove()
    y.sum().backward()
    assert order == ["before", "after", "before"]
    assert owner.gradients == [slot]


def test_a_failure_behind_the_hook_is_told_and_does_not_reach_the_program() -> None:
    owner, tap, _, _, errors = fake_watch()
    owner.outputs = None  # type: ignore[assignment]  # a bug
    y = torch.ones(3, requires_grad=True) * 2
    returned(tap, owner, refused)(nn.Identity(), (y,), {}, y)
    assert [type(error) for error in errors] == [SystemError]


def test_an_interrupt_reaches_the_program() -> None:
    owner, tap, _, _, errors = fake_watch()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    owner.tapped = interrupted  # type: ignore[method-assign]
    y = (torch.ones(2, 3, requires_grad=True) * 2).t()
    with pytest.raises(KeyboardInterrupt):
        returned(tap, owner, refused)(nn.Identity(), (y,), {}, y)
    assert errors == []


def test_nothing_is_kept_alive_and_references_are_counted_right() -> None:
    owner, tap, slot, _, _ = fake_watch()
    hook, module = returned(tap, owner, refused), nn.Identity()
    x = torch.ones(3, requires_grad=True)

    def step() -> weakref.ref[torch.Tensor]:
        owner.forget()
        y = x * 2
        hook(module, (x,), {}, y)
        y.sum().backward()
        return weakref.ref(y)

    step()
    counted = [tap, slot, owner, slot.output_row, slot.grad_row, torch.float32, torch.Tensor, x, module]
    before = [sys.getrefcount(thing) for thing in counted]
    gc.disable()
    try:
        dead = [step() for _ in range(50)]
    finally:
        gc.enable()
    assert [ref() for ref in dead] == [None] * 50
    after = [sys.getrefcount(thing) for thing in counted]
    assert np.abs(np.array(after) - np.array(before)).max() <= 2


def test_a_watch_that_is_gone_takes_all_of_it_along() -> None:
    owner, tap, slot, _, _ = fake_watch()
    around: list[Any] = []
    around.append(returned(tap, owner, lambda *given: around))  # noqa: F821  # a ring through everything
    gone = weakref.ref(owner)
    del owner, tap, slot, around
    gc.collect()
    assert gone() is None
    assert _slot.Slot.__mro__[1].__module__ == "hookscope._watch._native"
