"""What a gradient that arrives now belongs to: a backward, a backward through the graph of another one, or neither."""

from __future__ import annotations

INNER = "inner"  # label of a gradient taken by torch.autograd.grad
SECOND = "second"  # label of one that a backward through the graph of another backward brings


class Passing:
    """`label`: that of the gradients that arrive now, "" for an ordinary backward. `fresh`: a forward has been read before it."""

    def __init__(self) -> None:
        self.label = INNER
        self._differentiable = False  # the last backward kept its graph to be differentiated

    @property
    def plain(self) -> bool:
        """Whether no graph of a backward is kept that another one may go through."""
        return not self._differentiable

    def begin_backward(self, *, fresh: bool) -> None:
        """A backward begins."""
        self.label = SECOND if self._differentiable and not fresh else ""

    def end_backward(self, *, create_graph: bool, fresh: bool) -> None:
        """It is over: what arrives from now on is of something else, `torch.autograd.grad` for one."""
        self.label = INNER
        self._differentiable = create_graph or (self._differentiable and not fresh)
