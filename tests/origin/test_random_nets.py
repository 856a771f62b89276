"""In random small nets, registered in any order, the operation that was made faulty is the one that is named."""

from __future__ import annotations

import pytest

from ._nets import FORWARD
from ._planting import KINDS, misnamed, plant, train


def wrong(seeds: range) -> list[str]:
    told = {seed: misnamed(planted, train(planted)) for seed in seeds for planted in [plant(seed, KINDS[seed % len(KINDS)])]}
    return [f"net {seed}: {text}" for seed, text in told.items() if text is not None]


@pytest.mark.parametrize("first", range(0, 25, 5))
def test_the_origin_is_named_exactly_in_every_one_of_a_few_random_nets(first: int) -> None:
    assert wrong(range(first, first + 5)) == []


@pytest.mark.slow
def test_the_origin_is_named_exactly_in_at_least_98_of_100_random_nets() -> None:
    found = wrong(range(100, 200))
    assert len(found) <= 2, found


def test_a_net_whose_fault_never_comes_to_life_is_not_accused() -> None:
    planted = plant(4, "forward")
    assert misnamed(planted, train(planted, steps=2)) == "nothing was found"


def test_another_place_than_the_planted_one_would_be_noticed() -> None:
    planted = plant(8, "forward", [fault for fault in FORWARD if fault.op == "exp"])
    run = train(planted)
    assert misnamed(planted, run) is None
    other = plant(8, "forward", [fault for fault in FORWARD if fault.op == "reciprocal"])
    assert "op" in (misnamed(other, run) or "")
