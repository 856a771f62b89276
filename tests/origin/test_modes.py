"""The tape's function mode stays out of the way of the program's own modes, of compilers, threads and workers."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, IterableDataset

import hookscope as hs
from hookscope._origin._region import Region
from hookscope._origin._tape import MAX_BYTES, MAX_CALLS


class Counting(TorchFunctionMode):
    """A mode of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def depth() -> int:
    return torch._C._len_torch_function_stack()


def trained(
    before: Callable[[], object] = lambda: None, loss: Callable[[torch.Tensor], torch.Tensor] = lambda y: y.square().sum()
) -> hs.Run:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    with hs.watch(model, sgd, on_finding="ignore") as w:
        for _ in range(2):
            before()
            loss(model(torch.ones(2, 4))).backward()
            sgd.step()
    return w.run


def named(run: hs.Run) -> str | None:
    return next((finding.op for finding in hs.diagnose(run)), None)


def ill(y: torch.Tensor) -> torch.Tensor:
    return (y * 0 - 1).log().sum()


@pytest.fixture(autouse=True)
def no_mode_is_left() -> Iterator[None]:
    yield
    assert depth() == 0


def test_a_mode_entered_around_the_training_sees_it_all_and_is_the_one_that_is_left() -> None:
    with Counting() as mine:
        run = trained(loss=ill)
        with hs.watch(model := nn.Linear(4, 3), on_finding="ignore"):
            model(torch.ones(2, 4)).sum().backward()
            assert depth() == 1  # also behind a backward, during which this mode is off the stack
        assert torch._C._get_function_stack_at(0) is mine
        assert depth() == 1
    assert {"linear", "log", "sum"} <= set(mine.seen)
    assert [finding.where for finding in hs.diagnose(run)][:1] == ["loss"]  # without the line


def test_modes_entered_and_left_inside_the_training_are_the_ones_that_are_popped() -> None:
    def loss(y: torch.Tensor) -> torch.Tensor:
        with Counting() as mine:
            z = y * 2
        assert mine.seen == ["mul"]
        w = z + 1
        assert mine.seen == ["mul"]
        return w.square().sum()

    trained(loss=loss)


def test_a_mode_held_open_over_forward_and_backward_keeps_its_place() -> None:
    model, mine = nn.Linear(4, 3), Counting()
    with hs.watch(model, on_finding="ignore"):
        model(torch.ones(2, 4)).sum().backward()
        mine.__enter__()  # type: ignore[no-untyped-call]
        y = model(torch.ones(2, 4))
        y.sum().backward()
        mine.__exit__(None, None, None)
        assert all(torch._C._get_function_stack_at(i) is not mine for i in range(depth()))
        seen = len(mine.seen)
        model(torch.ones(2, 4)).sum().backward()
        assert len(mine.seen) == seen
    assert {"linear", "sum"} <= set(mine.seen)


def test_a_default_device_does_not_stop_the_tape_nor_is_it_disturbed() -> None:
    torch.set_default_device("cpu")
    try:
        assert named(trained(loss=ill)) == "log"
        assert depth() == 1
        with torch.device("meta"):
            assert torch.ones(1).is_meta
        assert not torch.ones(1).is_meta
    finally:
        torch.set_default_device(None)


def test_a_device_entered_while_the_tape_runs_is_left_rightly() -> None:
    def before() -> None:
        with torch.device("meta"):
            assert torch.ones(1).is_meta
        assert not torch.ones(1).is_meta

    assert named(trained(before, ill)) == "log"


def test_metrics_and_evaluation_without_gradients_change_nothing() -> None:
    def loss(y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            (y * 0 / (y * 0)).mean()
        with torch.inference_mode():
            y.detach().sum()
        return ill(y)

    run = trained(loss=loss)
    assert named(run) == "log"


def test_the_tape_of_a_long_pipeline_is_bounded_and_the_loss_is_still_on_it() -> None:
    region = Region()
    held: list[weakref.ref[torch.Tensor]] = []

    def before() -> None:
        x = torch.zeros(64)
        for _ in range(3 * MAX_CALLS):
            x = x + torch.ones(64)
            held.append(weakref.ref(x))

    assert named(trained(before, ill)) == "log"
    region.open()
    before()
    big = [torch.zeros(1 << 20) for _ in range(20)]
    for tensor in big:
        tensor.sum()
    assert len(region.calls) <= MAX_CALLS
    assert len(region.tape.known) <= 4 * MAX_CALLS
    assert region.tape.bytes == sum(call.size for call in region.calls) <= MAX_BYTES
    assert 0 < sum(call.name == "sum" for call in region.calls) < 20
    torch.zeros(MAX_BYTES // 4 + 1).sum()  # too large to be held at all
    assert region.tape.bytes <= MAX_BYTES
    region.pause()
    region.clear()
    assert region.calls == type(region.calls)()
    gc.collect()
    assert [ref for ref in held if ref() is not None] == []


def test_an_exception_between_forward_and_backward_leaves_all_in_order() -> None:
    model = nn.Linear(4, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    with hs.watch(model, sgd, on_finding="ignore") as w:
        with pytest.raises(RuntimeError, match="size of tensor"):
            (model(torch.ones(2, 4)) + torch.ones(5)).sum()
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(torch.ones(2, 5))
        ill(model(torch.ones(2, 4))).backward()
        sgd.step()
    assert named(w.run) == "log"


def test_a_watch_that_a_hook_closes_within_a_backward_leaves_no_mode() -> None:
    model = nn.Linear(4, 3)
    w = hs.watch(model, on_finding="ignore")
    model(torch.ones(2, 4)).sum().backward()  # the tape is on from here
    y = model(torch.ones(2, 4))
    y.register_hook(lambda grad: w.close())
    y.sum().backward()
    assert depth() == 0


def test_warnings_of_torch_are_those_of_an_unwatched_loss() -> None:
    def given(train: Callable[[Callable[[torch.Tensor], torch.Tensor]], object]) -> list[tuple[str, str, int]]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            train(lambda y: nn.functional.mse_loss(y, torch.zeros(2, 1)))
        return [(str(w.message).split("\n")[0], w.filename, w.lineno) for w in seen]

    def bare(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
        for _ in range(2):
            loss(nn.Linear(4, 3)(torch.ones(2, 4))).backward()

    plain, watched = given(bare), given(lambda loss: trained(loss=loss))
    assert [text for text, _, _ in watched] == [text for text, _, _ in plain] != []


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for i in range(4):
            yield torch.full((4,), float(i)) * 2 + 1


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_workers_that_are_forked_while_the_tape_runs_load_the_same_data(workers: int) -> None:
    model = nn.Linear(4, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    seen = []
    with hs.watch(model, sgd, on_finding="ignore"):
        for _ in range(2):  # the second time the tape is in place when the workers start
            for x in DataLoader(Stream(), batch_size=2, num_workers=workers):
                seen.append(x[:, 0].tolist())
                model(x).sum().backward()
                sgd.step()
    assert seen == [[1.0, 3.0], [5.0, 7.0]] * 2


def test_a_training_in_another_thread_has_the_tape_there_and_leaves_no_mode_here() -> None:
    model = nn.Linear(4, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    depths: list[int] = []

    def step(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
        loss(model(torch.ones(2, 4))).backward()
        sgd.step()
        depths.append(depth())

    with hs.watch(model, sgd, on_finding="ignore") as w:
        for loss in (lambda y: y.square().sum(), lambda y: y.square().sum(), ill):  # each thread ends with the tape in place
            thread = threading.Thread(target=step, args=(loss,))
            thread.start()
            thread.join()
        assert depth() == 0
    assert depths == [1, 1, 1]
    assert named(w.run) == "log"


def test_a_copy_of_what_the_loss_holds_and_a_graph_that_is_kept_hold_nothing_of_the_tape() -> None:
    model = nn.Linear(4, 3)
    kept = []
    with hs.watch(model, on_finding="ignore") as w:
        y = model(torch.ones(2, 4))
        kept.append(y)
        copy.deepcopy(model)
        y.square().sum().backward(retain_graph=True)
        assert w._session.locator._forwards == []
        assert [len(region.calls) for region in [w._session.locator.region]] == [0]
