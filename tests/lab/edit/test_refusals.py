"""What is wrong with an op is said when it is made, or in the first forward that shows it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hookscope as hs

from ._hand import Chain, batch

WRONG = {
    "clamp() holds nothing: give lo, hi or both": hs.clamp,
    "clamp(lo=2, hi=1) leaves no value: lo has to be at most hi": lambda: hs.clamp(2, 1),
    "max_norm=0 leaves nothing: give a number above 0, or use hs.zero()": lambda: hs.clip_norm(0),
    "std=-1 is no standard deviation: give a number from 0 up": lambda: hs.noise(-1),
    "directions are all zero: they span nothing to project out": lambda: hs.project(torch.zeros(3)),
    "directions hold NaN or Inf: give finite vectors": lambda: hs.project(torch.tensor([np.nan])),
    "directions of shape (2, 2, 2): give one vector over the units, or a matrix with one in each row": lambda: hs.project(
        torch.ones(2, 2, 2)
    ),
    "swap([0, 2]) is no order: name each index from 0 to one less than their count once": lambda: hs.swap([0, 2]),
    "swap([0, 0, 1, 2]) is no order: name each index from 0 to one less than their count once": lambda: hs.swap([0, 0, 1, 2]),
    "swap([1.0, 0.0]) is no order: name each index from 0 to one less than their count once": lambda: hs.swap([1.0, 0.0]),  # type: ignore[list-item]
    "swap([True, False]) is no order: name each index from 0 to one less than their count once": lambda: hs.swap([True, False]),
    "replace(3) has no function: give one that takes a tensor and returns a tensor": lambda: hs.replace(3),
    "the vector is a str, which is no tensor: give a number, an array or a tensor": lambda: hs.add("x"),
    "units=[] picks nothing: leave it out to mean all": lambda: hs.zero().at(units=[]),
    "units=1.5 picks nothing: give a whole number, a slice or several whole numbers": lambda: hs.zero().at(units=1.5),
    "calls=-1: calls are counted from 0, since nobody knows yet how many there will be": lambda: hs.zero().at(calls=-1),
    "steps=slice(-2, None, None): steps are counted from 0, since nobody knows yet how many there will be": lambda: hs.zero().at(
        steps=slice(-2, None)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_numbers_are_refused_when_the_op_is_made(message: str) -> None:
    with pytest.raises(hs.UsageError) as error:
        WRONG[message]()
    assert str(error.value) == message


MASKS = {
    "Python": [False, True, False],
    "numpy": np.array([False, True, False]),
    "torch": torch.tensor([False, True, False]),
    "one of numpy": [np.bool_(True)],
    "one": True,
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", ["units", "positions", "heads", "calls"])
def test_truth_values_are_never_taken_for_0_and_1(mask: object, name: str) -> None:
    with pytest.raises(hs.UsageError, match=rf"{name}= was given truth values: give the numbers of what is meant, such as mask\.nonzero"):
        hs.zero().at(**{name: mask})


LATE = {
    "the vector of shape (5,) does not fit first:output of shape (2, 6): give that shape, one that broadcasts to it, "
    "or 6 numbers, one for each unit": hs.add(torch.ones(5)),
    "the patch of shape (3, 6) does not fit first:output of shape (2, 6): give that shape, one that broadcasts to it, "
    "or 6 numbers, one for each unit": hs.patch(torch.ones(3, 6)),
    "directions of 5 numbers do not fit first:output, which has 6 units": hs.project(torch.ones(5)),
    "swap of 3 along dim 0 does not fit first:output of shape (2, 6): name each index of that dim once": hs.swap([0, 1, 2]),
    "first:output has no unit 6: there are 6, numbered from 0 to 5": hs.zero().at(units=6),
    "no module around first:output says how its 6 units divide into heads: name units instead, as in units=range(64)": hs.zero().at(
        heads=0
    ),
    "first:output of shape (2, 6) has no positions: those are an axis of (batch, position, unit)": hs.zero().at(positions=0),
    "axis=2 is none of the 2 axes of first:output, whose shape is (2, 6)": hs.zero().at(units=0, axis=2),
    "hs.replace(sum) made shape () of first:output: give back a tensor of its shape, (2, 6)": hs.replace(torch.sum),
    "hs.replace(len) made a int of first:output: give back a tensor of its shape, (2, 6)": hs.replace(len),
}


@pytest.mark.parametrize("message", LATE)
def test_what_does_not_fit_raises_in_the_forward_and_takes_the_edit_off(message: str) -> None:
    model, x = Chain(), batch(2, 4)
    plain = model(x)
    e = hs.edit(model, {"first": LATE[message]})
    with pytest.raises(hs.UsageError) as error:
        model(x)
    assert str(error.value) == message
    assert e.closed
    assert torch.equal(model(x), plain)
    assert not model.first._forward_hooks
