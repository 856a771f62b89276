"""Parameters and gradients asked in one call: what they are, and what all gradients hold."""

from __future__ import annotations

import math
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from hookscope._core._stats import EMPTY
from hookscope._stats import Batch, glance, marks_of, place_for_marks, read_gradients
from hookscope._stats import _gradients as module
from hookscope._stats._backend import KERNEL


def parameters() -> list[nn.Parameter]:
    made = [nn.Parameter(torch.randn(n, generator=torch.Generator().manual_seed(n))) for n in (3, 1000, 70_000)]
    for p in made[:2]:
        p.grad = p.detach() * 2
    return made


@pytest.fixture(params=["native", "torch"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr(module, "KERNEL", None)
    elif KERNEL is None:
        pytest.skip("the native kernel was not built")


@pytest.mark.usefixtures("_way")
def test_marks_change_with_whatever_becomes_of_a_gradient_or_a_parameter() -> None:
    p, q, none = parameters()
    before = marks_of([p, q, none])
    assert before[:, 0].tolist() == [id(p.grad), id(q.grad), 0]
    assert before[2, 1] == -1
    assert (marks_of([p, q, none]) == before).all()
    assert p.grad is not None
    p.grad.mul_(2)
    q.grad = torch.zeros_like(q)
    with torch.no_grad():
        none.add_(1)
    changed = marks_of([p, q, none]) != before
    assert changed.tolist() == [[False, True, False, False], [True, False, False, False], [False, False, True, False]]
    p.data = p.data.clone()
    assert (marks_of([p]) != before[:1])[0, 3]


@pytest.mark.usefixtures("_way")
def test_marks_of_an_odd_parameter_are_no_error() -> None:
    sparse = nn.Parameter(torch.ones(3).to_sparse(), requires_grad=False)
    with torch.inference_mode():
        frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    marks = marks_of([sparse, frozen, nn.parameter.UninitializedParameter()])
    assert marks.shape == (3, 4)
    assert marks[1, 2] == -1


@pytest.mark.skipif(KERNEL is None, reason="the native kernel was not built")
def test_gradients_read_at_once_equal_those_read_one_by_one() -> None:
    made = parameters()
    found = read_gradients(made)
    assert found.refused == []
    for parameter, row in zip(made[:2], found.rows[:2], strict=True):
        batch = Batch()
        assert parameter.grad is not None
        batch.add(parameter.grad)
        assert batch.read()[0].tolist() == row.tolist()
    assert found.rows[2].tolist() == list(EMPTY)
    assert (found.bad, found.squares) == (0, pytest.approx(found.rows[:, 5].sum(), rel=1e-15))


@pytest.mark.skipif(KERNEL is None, reason="the native kernel was not built")
def test_gradients_that_the_kernel_cannot_read_are_named_and_bad_ones_counted() -> None:
    class Own(torch.Tensor):
        pass

    made = [nn.Parameter(torch.ones(4, 4)) for _ in range(4)]
    made[0].grad = torch.ones(4, 4).t().contiguous().t()  # dense, in another order
    made[1].grad = torch.full((4, 4), float("nan"))
    made[2].grad = torch.ones(4, 4).as_subclass(Own)
    made[3].grad = torch.ones(4, 4)
    found = read_gradients(made)
    assert found.refused == [0, 2]
    assert (found.bad, found.squares) == (16, 16)
    assert found.rows[1, 1] == 16
    assert np.isfinite(found.rows[3]).all()


@pytest.mark.skipif(KERNEL is None, reason="the native kernel was not built")
def test_an_error_of_a_parameter_comes_out_and_leaves_nothing() -> None:
    class Odd:
        @property
        def grad(self) -> torch.Tensor:
            raise RuntimeError("not to be asked")

    for _ in range(50):
        with pytest.raises(RuntimeError, match="not to be asked"):
            read_gradients([parameters()[0], Odd()])  # type: ignore[list-item]
        with pytest.raises(RuntimeError, match="not to be asked"):
            marks_of([Odd()])  # type: ignore[list-item]


@pytest.mark.skipif(KERNEL is None, reason="the native kernel was not built")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_glance_tells_the_marks_and_the_squares_of_all_gradients(dtype: torch.dtype) -> None:
    made = [nn.Parameter(p.detach().to(dtype)) for p in parameters()]
    for p in (made[0], made[2]):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(7)).to(dtype)
    place = place_for_marks(3)
    marks, seen = place.marks, glance([weakref.ref(p) for p in made], place)
    squares = sum(float(p.grad.double().square().sum()) for p in made if p.grad is not None)
    assert seen == (0, pytest.approx(squares, rel=1e-6), 0)
    assert (marks == marks_of(made)).all()


@pytest.mark.skipif(KERNEL is None, reason="the native kernel was not built")
@pytest.mark.parametrize("length", [1, 63, 64, 8191, 8192, 8193, 20_000])
@pytest.mark.parametrize("level", KERNEL.levels() if KERNEL else ())
def test_a_glance_counts_what_is_not_finite_wherever_it_is(length: int, level: str) -> None:
    assert KERNEL is not None
    before = KERNEL.level()
    KERNEL.use(level)
    try:
        p = nn.Parameter(torch.zeros(length))
        for place in {0, length // 2, length - 1}:
            for value in (math.nan, math.inf, -math.inf):
                p.grad = torch.full((length,), 2.0)
                p.grad[place] = value
                assert glance([weakref.ref(p)], place_for_marks(1)) == (1, 4.0 * (length - 1), 0)
    finally:
        KERNEL.use(before)


@pytest.mark.skipif(KERNEL is None, reason="the native kernel was not built")
def test_a_glance_at_squares_too_large_for_float32_is_exact_and_leaves_the_rounding_of_the_program_alone() -> None:
    p = nn.Parameter(torch.zeros(10_000))
    p.grad = torch.full((10_000,), 1e25)
    seen = glance([weakref.ref(p)], place_for_marks(1))
    assert seen == (0, pytest.approx(1e54, rel=1e-6), 0)
    p.grad = torch.full((10_000,), 1e-25)  # its squares are below what float32 holds
    glance([weakref.ref(p)], place_for_marks(1))
    assert float(torch.tensor(1e-40) * 1) > 0  # subnormal numbers are what they were


@pytest.mark.skipif(KERNEL is None, reason="the native kernel was not built")
def test_a_glance_says_what_it_cannot_see() -> None:
    p, q = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(3))
    p.grad = torch.ones(4, 4).t().contiguous().t()
    q.grad = torch.ones(3)
    refs = [weakref.ref(p), weakref.ref(q)]
    assert glance(refs, place_for_marks(2)) == (0, 3, 1)
    del q
    assert glance(refs, place_for_marks(2)) is None
