"""The second run of a checkpointed segment finds the calls of its first."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from hookscope._taps._segments import UNKNOWN, Segments


class Called:
    """A stand-in for a hooked module: notes the calls of its first runs, and which of them run again within a backward."""

    def __init__(self) -> None:
        self.segments = Segments()
        self.calls = 0
        self.again: list[int | None] = []
        self.noting = True

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if torch._C._current_graph_task_id() != -1:
            self.again.append(self.segments.again("module"))
        else:
            if self.noting and not torch.is_grad_enabled():
                self.segments.ran("module", self.calls)
            self.calls += 1
        return x.tanh()


def run(segment: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, *, reentrant: bool = True) -> torch.Tensor:
    out: torch.Tensor = checkpoint(segment, x, use_reentrant=reentrant)
    return out


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def test_segments_come_back_last_first_and_the_calls_within_one_in_their_order(x: torch.Tensor) -> None:
    called = Called()
    run(called, run(lambda x: called(called(x)), called(run(called, x)))).sum().backward()
    # calls: 0 | 1, without a checkpoint | 2 and 3 in one segment | 4
    assert called.again == [4, 2, 3, 0]


def test_a_retained_graph_is_run_again_from_the_first_call(x: torch.Tensor) -> None:
    called = Called()
    loss = run(lambda x: called(called(x)), x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert called.again == [0, 1, 0, 1]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_segment_within_a_segment_comes_back_without_a_graph_and_then_with_one(x: torch.Tensor) -> None:
    called = Called()
    run(lambda x: run(lambda y: called(called(y)), called(x)), x).sum().backward()
    assert called.again == [0, 1, 2, 1, 2]


@pytest.mark.parametrize("outer", [True, False])
def test_what_runs_while_a_saved_tensor_is_unpacked_is_no_call(x: torch.Tensor, outer: bool) -> None:
    called = Called()
    segment = lambda x: run(called, x * 2, reentrant=False)  # noqa: E731
    (run(segment, x) if outer else segment(x)).sum().backward()
    # The re-entrant one runs its segment again for a graph, and within that the other one unpacks.
    assert called.again == ([0, None] if outer else [None])


def test_a_segment_whose_first_run_was_not_noted_is_unknown(x: torch.Tensor) -> None:
    called = Called()
    called.noting = False
    run(called, x).sum().backward()
    assert called.again == [UNKNOWN]


def test_a_module_that_the_first_run_did_not_call_is_no_call(x: torch.Tensor) -> None:
    called, other = Called(), Called()
    other.segments = called.segments

    def segment(x: torch.Tensor) -> torch.Tensor:
        if torch._C._current_graph_task_id() != -1:
            other.again.append(called.segments.again("another"))
        return called(x)

    run(segment, x).sum().backward()
    assert (called.again, other.again) == ([0], [None])


def test_a_forward_in_a_backward_hook_is_no_call(x: torch.Tensor) -> None:
    called = Called()
    y = x * 2

    def hook(grad: torch.Tensor) -> None:
        called(grad)

    y.register_hook(hook)
    y.sum().backward()
    assert called.again == [None]


def test_a_checkpoint_of_ones_own_is_recognised_by_what_it_is(x: torch.Tensor) -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(mine: Any, run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            mine.run = run
            mine.save_for_backward(x)
            return run(x)

        @staticmethod
        def backward(mine: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor | None]:
            x = mine.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                y = mine.run(x)
            torch.autograd.backward(y, grad)
            return None, x.grad

    called = Called()
    out = x
    for _ in range(3):
        out = Own.apply(called, out)
    out.sum().backward()
    assert called.again == [2, 1, 0]
    assert x.grad is not None


def test_nothing_is_kept_when_the_graph_is_gone(x: torch.Tensor) -> None:
    called = Called()
    loss = run(called, x).sum()
    assert len(called.segments._calls) == 1
    del loss
    assert len(called.segments._calls) == 0
