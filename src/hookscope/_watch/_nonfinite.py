"""What happens to a step whose loss or gradients are not finite: reported, raised, or left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from .._core._errors import NonFiniteError, UsageError
from .._core._finding import Finding

OnNonfinite = Literal["report", "raise", "skip"] | Callable[[tuple[Finding, ...]], Any]
ANSWERS = ("report", "raise", "skip")


class Nonfinite:
    """`act` is asked before the optimizer uses the gradients; `put_back` after its step, whether it was left out or not."""

    def __init__(self, how: OnNonfinite) -> None:
        self.how = how
        self._withheld: list[tuple[nn.Parameter, torch.Tensor]] = []

    @property
    def watches(self) -> bool:
        """Whether anything but a report was asked for, so that every step must be looked at."""
        return self.how != "report"

    def act(self, parameters: Sequence[nn.Parameter], findings: tuple[Finding, ...]) -> bool:
        """Raise `NonFiniteError`, or withhold the gradients from the step; True if it will have no effect, for which, of steps that can be
        undone (no `parameters`), the caller sees.
        """
        how = self._decided(findings) if callable(self.how) else self.how
        if how == "raise":
            raise NonFiniteError(findings)
        if how != "skip":
            return False
        # An optimizer passes over a parameter without a gradient: no update, no decay, no change of its state.
        self._withheld = [(p, p.grad) for p in parameters if p.grad is not None]
        for parameter, _ in self._withheld:
            parameter.grad = None
        return True

    def _decided(self, findings: tuple[Finding, ...]) -> str:
        assert callable(self.how)
        answer = self.how(findings)
        if answer is not None and answer not in ANSWERS:
            valid = ", ".join(map(repr, ANSWERS))
            raise UsageError(f"on_nonfinite's function returned {answer!r}: return one of {valid}, or nothing for 'report'")
        return answer or "report"

    def put_back(self) -> None:
        """Give the gradients back, so that the loop finds what it left."""
        for parameter, grad in self._withheld:
            parameter.grad = grad
        self._withheld = []


def all_finite(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether every gradient is. Waits for the device once."""
    plain = [p.grad.coalesce().values() if p.grad.is_sparse else p.grad for p in parameters if p.grad is not None]
    norms = torch._foreach_norm([g.detach() for g in plain if g.is_floating_point() or g.is_complex()])
    return bool(torch.isfinite(torch.stack([n.float() for n in norms])).all()) if norms else True
