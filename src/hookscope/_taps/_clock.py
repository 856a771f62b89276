"""The clock: which step an optimizer's attempt belongs to. Knows no torch, so that it can be tested by saying what happens.

A step is one round of attempts: it holds at most one attempt of each optimizer, and begins anew when an optimizer comes round again.
So a program with one optimizer has a step for each attempt, and a GAN with two has one step for each pair.
"""

from __future__ import annotations

from collections.abc import Iterable


class Clock:
    """`step` is the number of the step that is open; optimizers are known by any hashable key."""

    def __init__(self, first: int = 0, expected: Iterable[int] = ()) -> None:
        self.step = first
        self.expected = frozenset(expected)
        self.attempted: set[int] = set()

    def is_new_round(self, optimizer: int) -> bool:
        """True where an attempt by `optimizer` belongs to the next step: the open one already holds one of its attempts."""
        return optimizer in self.attempted

    def attempt(self, optimizer: int) -> None:
        """Count an attempt into the open step."""
        self.attempted.add(optimizer)

    @property
    def complete(self) -> bool:
        """True once every optimizer of the previous round has made its attempt; never in the first round, unless all were named."""
        return bool(self.expected) and self.expected <= self.attempted

    @property
    def under_way(self) -> int:
        """The step that what runs now belongs to. In the first round nobody knows yet whether it is over; after an attempt it likely is."""
        return self.step + (1 if self.attempted and not self.expected else 0)

    def advance(self) -> None:
        """Close the open step and open the next."""
        self.expected = frozenset(self.attempted)
        self.attempted = set()
        self.step += 1
