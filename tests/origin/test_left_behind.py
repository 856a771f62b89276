"""A watch that is closed from another thread leaves its mode on the stack of the one that trains: it does not stay there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import hookscope as hs
from hookscope._origin._region import Region


def modes() -> int:
    return torch._C._len_torch_function_stack()


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    while modes():
        torch._C._pop_torch_function_stack()


def trained(steps: int, bad: int = -1) -> tuple[hs.Watch, torch.Tensor]:
    """A watch after some steps, and a value on the way from its model's output to a loss, so that its mode is on the stack."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watch = hs.watch(model, optimizer, on_finding="ignore")
    for step in range(steps):
        optimizer.zero_grad()
        output = model(torch.randn(16, 4))
        torch.log(output - 1e3 if step == bad else output.square() + 1).mean().backward()
        optimizer.step()
    return watch, model(torch.randn(16, 4)) * 2


def elsewhere(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_it_goes_with_the_backward_that_comes() -> None:
    watch, value = trained(3)
    elsewhere(watch.close)
    assert modes() == 1, "no thread reaches the stack of another"
    value.mean().backward()
    assert modes() == 0


def test_it_goes_with_any_function_that_torch_writes_in_python_and_leaves_its_result_alone() -> None:
    watch, value = trained(3)
    elsewhere(watch.close)
    options = {"p": 0.0}
    assert torch.equal(nn.functional.dropout(value.detach(), **options), value.detach())
    assert options == {"p": 0.0}
    assert modes() == 0


def test_it_goes_where_that_function_fails() -> None:
    watch, value = trained(3)
    elsewhere(watch.close)
    with pytest.raises(RuntimeError, match="scalar outputs"):
        value.backward()
    assert modes() == 0


def test_what_others_have_put_above_it_stays() -> None:
    watch, value = trained(3)
    elsewhere(watch.close)

    class Other(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    with Other() as other:
        value.mean().backward()
        assert torch._C._get_function_stack_at(modes() - 1) is other
    assert modes() == 0


def test_a_later_watch_takes_it_out_and_names_what_goes_bad() -> None:
    first, _value = trained(3)
    elsewhere(first.close)
    assert modes() == 1
    second, _value = trained(5, bad=4)
    assert modes() == 1
    assert type(torch._C._get_function_stack_at(0)) is Region
    second.close()
    assert modes() == 0
    assert [(f.op, f.first_step) for f in hs.diagnose(second.run).findings][:1] == [("log", 4)]
