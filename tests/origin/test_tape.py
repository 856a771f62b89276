"""What is noted of calls, the same in C and in Python, and what is not kept."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, dropout, mse_loss
from torch.overrides import TorchFunctionMode

from hookscope._origin import _forward, _tape
from hookscope._origin._forward import Buffers
from hookscope._origin._region import Region

from ._ways import WAYS, plainly

Pool = list[torch.Tensor]
GENERATOR = torch.Generator()


class Odd(torch.Tensor):
    """A subclass of the program's own."""


def inferred() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(2, 3)


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda a, b: a + b,
    "number": lambda a, _: torch.add(a, 1.5, alpha=2),
    "list": lambda a, b: torch.cat([a, b], dim=1)[:, :3],
    "nested": lambda a, b: torch.stack((a, b)).mean(0),
    "index": lambda a, _: a[..., None, :].squeeze(1),
    "index of tensors": lambda a, _: a[torch.tensor([0, 1])],
    "two results": lambda a, _: a.max(dim=0, keepdim=True),
    "many": lambda a, _: a.chunk(3, dim=1),
    "loss": mse_loss,
    "losses": lambda a, b: cross_entropy(a, b.detach().softmax(1), reduction="none"),
    "drawn": lambda a, _: dropout(a, 0.5),
    "noise": lambda a, _: torch.randn_like(a),
    "generator": lambda a, _: torch.bernoulli(a.detach().sigmoid(), generator=GENERATOR.manual_seed(3)),
    "written": lambda a, _: a.clone().mul_(2),
    "set": lambda a, _: a.clone().__setitem__(0, 1.0),
    "number out": lambda a, _: a.sum().item(),
    "asked": lambda a, _: (a.shape, a.is_leaf, a.requires_grad, a.dim()),
    "no tensor": lambda _, __: torch.zeros(2, 3),
    "dtype": lambda a, _: a.to(torch.float64).to(torch.float32),
    "no grad": torch.no_grad()(torch.mul),
    "inferred": lambda a, _: a + inferred(),
    "subclass": lambda a, _: a.detach().as_subclass(Odd) + 1,
    "parameter": lambda a, _: a * nn.Parameter(torch.ones(3)),
    "keyword": lambda a, b: torch.where(condition=a.detach() > 0, input=a, other=b),
    "error": lambda a, _: torch.reshape(a, (-5, 7)),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        plainly(monkeypatch)
    found: str = request.param
    return found


def played(names: list[str], way: str) -> tuple[Any, ...]:
    """The calls as text, what is known, what is held, and what came out."""
    with pytest.MonkeyPatch.context() as patch:
        if way == "plain":
            plainly(patch)
        torch.manual_seed(0)
        region = Region()
        pool: Pool = [torch.randn(2, 3, requires_grad=True) * 2, torch.randn(2, 3)]
        came: list[str] = []
        region.open(pool[:1])
        for i, name in enumerate(names):
            try:
                out = CALLS[name](pool[i % len(pool)], pool[-1])
            except RuntimeError as error:
                out = str(error)
            came.append(str(out))
            if type(out) is torch.Tensor and out.shape == (2, 3):
                pool.append(out)
        region.leave_it = None  # type: ignore[attr-defined]  # it takes attributes as any mode does
        tape = region.tape
        noted = [(*call[:1], *call[2:4], call.place, call.name, call.grad, len(call.random), call.size) for call in region.calls]
        functions = [call.func for call in region.calls]
        known = sorted(str(made) for ref, made in tape.known.values() if ref() is not None)
        found = str(noted), functions, known, tape.bytes, tape.number, region.noting, came
        region.leave()
        return found


@pytest.mark.skipif(_tape.TAPE_KERNEL is None, reason="it was not built")
@settings(max_examples=60)
@given(st.lists(st.sampled_from(sorted(CALLS)), min_size=1, max_size=12))
def test_any_calls_are_noted_in_c_as_they_are_in_python(names: list[str]) -> None:
    played(names, "native")  # a function that is met for the first time is looked at in Python
    assert played(names, "native") == played(names, "plain")


@pytest.mark.skipif(_tape.TAPE_KERNEL is None, reason="it was not built")
def test_more_calls_than_are_kept_are_noted_in_c_as_they_are_in_python() -> None:
    names = ["add", "number", "nested", "written", "two results"] * 120
    noted = played(names, "plain")
    assert "made=Made(" in noted[0]
    assert len(noted[1]) == _tape.MAX_CALLS
    played(names[:5], "native")
    assert played(names, "native") == noted


@pytest.mark.usefixtures("way")
def test_a_call_is_noted_by_what_it_was_given_and_where_it_stands() -> None:
    region = Region()
    output, target = torch.ones(2, 3, requires_grad=True) * 2, torch.zeros(2, 3)
    for _ in range(2):  # the second time all functions are known
        region.open([output])
        loss = mse_loss(output, target)
        twice = loss * 2
        region.pause()
    line = sys._getframe().f_lineno
    first, second = region.calls
    assert (first.name, second.name) == ("mse_loss", "mul")
    assert (first.func, first.grad, first.size) == (mse_loss, True, 24)
    assert (first.args[0].root, first.args[0].version, first.args[0].tensor.grad_fn) == (True, 0, None)
    assert first.args[1].tensor is target
    assert second.args == (_tape.Made(first.number, 0), 2)
    assert (first.place, second.place) == ((__file__, line - 3), (__file__, line - 2))
    known = region.known(twice)
    assert known is not None
    assert known[1] == _tape.Made(second.number, 0)
    region.leave()


@pytest.mark.usefixtures("way")
def test_nothing_of_many_calls_is_left_behind() -> None:
    target, region = torch.zeros(2, 3), Region()

    def rounds(n: int, region: Region) -> weakref.ref[torch.Tensor]:
        for _ in range(n):
            output = torch.ones(2, 3, requires_grad=True) * 2
            region.open([output])
            for call in CALLS.values():
                with suppress(RuntimeError):
                    call(output, target)
            region.pause()
        return weakref.ref(output)

    rounds(3, region)
    region.clear()
    gc.collect()
    held, objects = sys.getrefcount(target), len(gc.get_objects())
    last = rounds(30, region)
    region.clear()
    gc.collect()
    assert last() is None
    assert sys.getrefcount(target) == held
    assert abs(len(gc.get_objects()) - objects) < 20
    there = weakref.ref(region)
    region.leave()
    del region
    gc.collect()
    assert there() is None


@pytest.mark.usefixtures("way")
def test_a_result_is_held_by_nobody_but_the_program() -> None:
    region = Region()
    x = torch.ones(3, requires_grad=True)
    region.open()
    refs = [weakref.ref(y := x.exp() * i) for i in range(4)]
    del y
    assert [ref() for ref in refs] == [None] * 4
    assert len(region.calls) == 8
    region.leave()


class Asking(TorchFunctionMode):
    """A mode of the program's own that has something done within its handler."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self.then, self.found = then, []  # type: ignore[var-annotated]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.append(self.then())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("within", [_tape._plainly_within, _tape.within])
def test_whether_a_mode_is_at_work_is_seen_from_any_depth_below_it(within: Callable[[], bool]) -> None:
    def deeply(n: int) -> bool:
        return within() if n == 0 else deeply(n - 1)

    assert not within()
    with Asking(lambda: deeply(5)) as asking:
        torch.ones(2).add(1)
    assert asking.found == [True, True]
    assert not deeply(5)


class Kept(nn.Module):
    """Buffers of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in {
            "weights": torch.randn(3, 2),
            "count": torch.tensor(5),
            "flag": torch.tensor(False),
            "decay": torch.tensor(0.9),
            "narrow": torch.tensor(0.5, dtype=torch.float16),
            "big": torch.tensor(2**62 + 1),
            "turned": torch.randn(2, 3).T,
            "no elements": torch.zeros(0),
        }.items():
            self.register_buffer(name, value)


def written(model: Kept, name: str) -> None:
    buffer = model._buffers[name]
    assert buffer is not None
    buffer.logical_not_() if name == "flag" else buffer.add_(1)


def written_elsewhere(model: Kept, name: str) -> None:
    """The same tensor gets other memory, of another size."""
    buffer = model._buffers[name]
    assert buffer is not None
    buffer.data = torch.ones(5, dtype=buffer.dtype)
    written(model, name)


CHANGES: dict[str, Callable[[Kept, str], object]] = {
    "nothing": lambda _, __: None,
    "in place": written,
    "elsewhere": written_elsewhere,
    "another tensor": lambda model, name: model._buffers.update({name: torch.full((4,), 7.0)}),
    "none": lambda model, name: model._buffers.update({name: None}),
}


@settings(max_examples=50)
@given(st.data())
@pytest.mark.parametrize("name", ["plain", "native"])
def test_buffers_become_again_what_they_were_when_they_were_taken_last(name: str, data: st.DataObject) -> None:
    if name == "native" and _tape.TAPE_KERNEL is None:
        pytest.skip("it was not built")
    with pytest.MonkeyPatch.context() as patch:
        if name == "plain":
            plainly(patch)
        model = Kept()
        buffers = Buffers(model)
        change = st.tuples(st.sampled_from(sorted(CHANGES)), st.sampled_from(sorted(model._buffers)))
        for _ in range(data.draw(st.integers(1, 4))):
            for what, where in data.draw(st.lists(change, max_size=4)):
                if model._buffers[where] is not None:
                    CHANGES[what](model, where)
            buffers.take()
        then = {key: None if b is None else b.clone() for key, b in model._buffers.items()}
        for what, where in data.draw(st.lists(change, max_size=4)):
            if model._buffers[where] is not None and what in ("in place", "another tensor", "nothing"):
                CHANGES[what](model, where)
        now = {key: (b, None if b is None else b.clone()) for key, b in model._buffers.items()}
        undo = buffers.put()
        assert all(same(model._buffers[key], value) for key, value in then.items() if value is not None)
        undo()
        assert all(model._buffers[key] is b and same(b, value) for key, (b, value) in now.items())


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b))


@pytest.mark.usefixtures("way")
def test_a_gradient_that_is_none_does_not_count_as_one() -> None:
    gradients: dict[int, torch.Tensor] = {}
    keep = _forward.keeper(gradients, 2)
    assert keep(None) is None
    assert gradients == {}
    grad = torch.ones(3)
    assert keep(grad) is None
    assert gradients[2] is grad
