"""Any composition of edits is that of a model edited by hand, outputs and gradients, and leaves nothing once it is undone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import reduce

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hookscope as hs

from ._hand import Chain, assert_same, batch, run

Hand = Callable[[torch.Tensor], torch.Tensor]
BIAS = batch(6, seed=3)


def only(units: list[int], hand: Hand) -> Hand:
    chosen = torch.zeros(6, dtype=torch.bool)
    chosen[units] = True
    return lambda h: torch.where(chosen, hand(h), h)


WHOLE: dict[str, tuple[hs.Op, Hand]] = {
    "zero": (hs.zero(), torch.zeros_like),
    "scale": (hs.scale(-1.5), lambda h: h * -1.5),
    "add": (hs.add(0.3), lambda h: h + 0.3),
    "add a vector": (hs.add(BIAS), lambda h: h + BIAS),
    "clamp": (hs.clamp(-0.4, 0.7), lambda h: h.clamp(-0.4, 0.7)),
    "replace": (hs.replace(torch.sin), torch.sin),
}
OPS = st.builds(
    lambda name, units: WHOLE[name] if units is None else (WHOLE[name][0].at(units=units), only(units, WHOLE[name][1])),
    st.sampled_from(sorted(WHOLE)),
    st.sampled_from([None, None, [0], [1, 4], [5, 2]]),
)


def composed(ops: list[tuple[hs.Op, Hand]]) -> Hand:
    return lambda h: reduce(lambda value, op: op[1](value), ops, h)


def together(chosen: list[tuple[str, hs.Op]]) -> dict[str, list[hs.Op]]:
    found: dict[str, list[hs.Op]] = {}
    for site, op in chosen:
        found.setdefault(site, []).append(op)
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(OPS, max_size=4), st.lists(OPS, max_size=3), st.booleans())
def test_any_composition_equals_the_model_edited_by_hand_and_is_undone(
    first: list[tuple[hs.Op, Hand]], second: list[tuple[hs.Op, Hand]], nested: bool
) -> None:
    """In one edit, or each in an edit of its own inside the one before."""
    model, by_hand, x = Chain(), Chain(), batch()
    plain = run(model, x)
    by_hand.hand, by_hand.before = composed(first), composed(second)
    chosen = [("first", op) for op, _ in first] + [("second:input", op) for op, _ in second]
    with ExitStack() as undo:
        for edits in [{site: op} for site, op in chosen] if nested else [together(chosen)] if chosen else []:
            undo.enter_context(hs.edit(model, edits))
        assert_same(run(model, x), run(by_hand, x))
    assert_same(run(model, x), plain, exact=True)
