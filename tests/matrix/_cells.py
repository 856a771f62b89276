"""What a training loop can be made of, and a sample of the combinations in which every possible pair occurs."""

from __future__ import annotations

import dataclasses
import itertools
import random
from dataclasses import dataclass
from typing import Any

FACTORS: dict[str, tuple[Any, ...]] = {
    "optimizer": (
        *("SGD", "momentum", "Adam", "AdamW", "RMSprop", "Adagrad", "Adamax", "NAdam", "RAdam", "Adadelta", "ASGD", "Rprop", "Adafactor"),
        *("Muon", "LBFGS"),
    ),
    "implementation": ("for-loop", "foreach", "fused"),
    "scaler": ("none", "fp16", "bf16"),
    "clip": ("none", "norm", "value", "norm while scaled"),
    "accumulate": (1, 3),
    "zero_grad": ("first", "before backward", "last"),
    "to_none": (True, False),
    "checkpoint": ("none", "re-entrant", "non-reentrant"),
    "named": (True, False),  # whether the watch is told which optimizer it is
}
FUSED = frozenset({"SGD", "momentum", "Adam", "AdamW", "Adagrad"})  # those that torch has a fused CPU kernel for
ONE_WAY = frozenset({"LBFGS", "Muon"})  # have neither foreach nor fused
CELLS = 150
DRAWS = 25


@dataclass(frozen=True)
class Cell:
    """One training loop."""

    optimizer: str
    implementation: str
    scaler: str
    clip: str
    accumulate: int
    zero_grad: str
    to_none: bool
    checkpoint: str
    named: bool

    @property
    def possible(self) -> bool:
        """Whether torch and sense allow it: a closure cannot be scaled, and clears the gradients itself."""
        if self.optimizer == "LBFGS" and (self.scaler != "none" or self.zero_grad == "last"):
            return False
        if self.implementation != "for-loop" and self.optimizer in ONE_WAY:
            return False
        if self.implementation == "fused" and self.optimizer not in FUSED:
            return False
        return self.scaler != "none" or self.clip != "norm while scaled"

    @property
    def pairs(self) -> frozenset[tuple[tuple[str, Any], ...]]:
        """Every two of its choices."""
        return frozenset(itertools.combinations(dataclasses.asdict(self).items(), 2))

    def __str__(self) -> str:
        words = [self.optimizer, self.implementation, f"scaler {self.scaler}", f"clip {self.clip}", f"{self.accumulate} micro"]
        words += [f"zero {self.zero_grad}", "to None" if self.to_none else "to zero", f"checkpoint {self.checkpoint}"]
        return ", ".join([*words, "named" if self.named else "found"])


def every_cell() -> list[Cell]:
    return [cell for choice in itertools.product(*FACTORS.values()) if (cell := Cell(*choice)).possible]


def sample() -> list[Cell]:
    """Always the same cells; the first ones hold the most pairs."""
    seeded, seen = random.Random(0), set[Any]()
    everything, chosen = every_cell(), list[Cell]()
    for _ in range(CELLS):
        best = max(seeded.sample(everything, DRAWS), key=lambda cell: len(cell.pairs - seen))
        chosen.append(best)
        seen |= best.pairs
    return list(dict.fromkeys(chosen))
