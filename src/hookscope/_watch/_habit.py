"""Whether something that happened at the first looks need be looked for at each of the next ones."""

from __future__ import annotations

FIRST = 4  # looks in a row at which nothing happened, after which it is looked for only now and then
AGAIN = 64


class Habit:
    """`entered` tells what was seen, once a round; `idle` whether the round that runs can go by without a look.

    >>> habit = Habit()
    >>> for _ in range(FIRST):
    ...     habit.entered(False)
    >>> habit.idle
    True
    >>> habit.entered(True)
    >>> habit.idle
    False
    """

    def __init__(self) -> None:
        self._quiet = 0

    @property
    def idle(self) -> bool:
        """Nothing has happened for a while, and the next look is not due."""
        return self._quiet >= FIRST and self._quiet % AGAIN != 0

    def entered(self, happened: bool) -> None:
        """A round begins, before which, or in the last of which, it has happened or not."""
        self._quiet = 0 if happened else self._quiet + 1

    def goes_on(self) -> bool:
        """Whether the round that begins can go by without a look, nor need be told of then."""
        quiet = self._quiet
        if quiet < FIRST or quiet % AGAIN == 0:
            return False
        self._quiet = quiet + 1
        return True
