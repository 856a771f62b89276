"""The rules there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .._core._finding import Finding
from ._act_explode_depth import act_explode_depth
from ._act_shrink_depth import act_shrink_depth
from ._blind import blind
from ._exploding_grad import exploding_grad
from ._exploding_grad_depth import exploding_grad_depth
from ._grad_runaway import grad_runaway
from ._leap import leap
from ._lr_too_high import lr_too_high
from ._nonfinite_backward import nonfinite_backward
from ._nonfinite_forward import nonfinite_forward
from ._nonfinite_input import nonfinite_input
from ._nonfinite_loss import nonfinite_loss
from ._nonfinite_weight import nonfinite_weight
from ._optimizer_setting import optimizer_setting
from ._rank_apart import rank_apart
from ._rank_data import rank_data
from ._rank_divergence import rank_divergence
from ._rank_no_gradient import rank_no_gradient
from ._rank_steps import rank_steps
from ._vanishing_grad import vanishing_grad

Rule = Callable[..., Iterator[Finding]]  # rule(run, *, threshold=...)

RULES: tuple[Rule, ...] = (
    nonfinite_input,
    nonfinite_forward,
    nonfinite_loss,
    nonfinite_backward,
    nonfinite_weight,
    optimizer_setting,
    leap,
    act_explode_depth,
    act_shrink_depth,
    vanishing_grad,
    exploding_grad_depth,
    lr_too_high,
    grad_runaway,
    exploding_grad,
    rank_divergence,
    rank_data,
    rank_apart,
    rank_no_gradient,
    rank_steps,
    blind,
)


def rule_id(rule: Rule) -> str:
    """`nonfinite-forward` for the function `nonfinite_forward`."""
    return rule.__name__.strip("_").replace("_", "-")
