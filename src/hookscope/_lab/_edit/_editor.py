"""Does the ops of a plan in the hooks, and counts what acted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import TracebackType
from typing import Any

import torch
from torch import nn

from ..._taps._leaves import call_leaves, leaves
from ._layout import Layout
from ._moments import Moment, Moments, is_stop
from ._op import applied
from ._place import Place
from ._plan import Act, Target
from ._rebuild import rebuilt

Leaves = list[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Spot:
    """A module, or a parameter, with what is done at its sites; a target is None where nothing is."""

    layout: Layout
    input: Target | None = None
    output: Target | None = None
    gradient: Target | None = None

    @cached_property
    def timed(self) -> tuple[bool, bool]:
        """Whether calls are counted before the forward, and after it."""
        return self.input is not None and self.input.timed, any(t is not None and t.timed for t in (self.output, self.gradient))


@dataclass(frozen=True, slots=True)
class Guard:
    """What fails within it takes the whole edit off, by `discard`, before the program sees it."""

    discard: Callable[[], None]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not is_stop(error):
            self.discard()


class Editor:
    """Its methods are the actions of the hooks; all that they do is within `guard`."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.moments = Moments()
        self.acted: Counter[int] = Counter()  # by number of the entry in the plan
        self.counts: Counter[str] = Counter()  # by name of the site

    def before(self, spot: Spot, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments as edited; None where nothing has changed."""
        assert spot.input is not None
        with self.guard:
            moment = self.moments.now((id(spot), "input"), counted=spot.timed[0])
            new = self._edited(spot.input, spot.layout, call_leaves(args, kwargs), moment)
            return _arguments(args, kwargs, new) if new else None

    def after(self, spot: Spot, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """The output as edited, its gradients hooked; None where nothing has changed."""
        with self.guard:
            moment = self.moments.now((id(spot), "output"), counted=spot.timed[1])
            new = {} if spot.output is None else self._edited(spot.output, spot.layout, leaves(output), moment)
            output = rebuilt(output, new) if new else output
            if spot.gradient is not None and torch.is_grad_enabled():
                aliases = self._hook_gradients(spot, call_leaves(args, kwargs), leaves(output), moment)
                output, new = rebuilt(output, aliases) if aliases else output, {**new, **aliases}
            return output if new else None

    def parameter_gradient(self, target: Target, backwards: Iterator[int], grad: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient of a parameter as edited: its steps are the backwards that have brought it one."""
        if grad is None:
            return None
        acts = [act for one in target.planned for act in one.acts(target.site, [("", grad)])]
        return self._gradient(acts, Layout("first"), Moment(next(backwards)), grad)

    def _gradient(self, acts: Sequence[Act], layout: Layout, moment: Moment, grad: torch.Tensor | None) -> torch.Tensor | None:
        """A gradient as edited; None leaves it as it is, and is what comes of an output that the loss does not use."""
        changed = None
        if grad is not None:
            with self.guard:
                for act in acts:
                    result = self._done(act, layout, moment, grad)
                    if result is not None:
                        changed = grad = result
        return changed

    def _edited(self, target: Target, layout: Layout, found: Leaves, moment: Moment) -> dict[str, torch.Tensor]:
        """The new tensors by path."""
        tensors, new = dict(found), dict[str, torch.Tensor]()
        for one in target.planned:
            for act in one.acts(target.site, found):
                result = self._done(act, layout, moment, tensors[act.path])
                if result is not None:
                    tensors[act.path] = new[act.path] = result
        return new

    def _done(self, act: Act, layout: Layout, moment: Moment, value: torch.Tensor) -> torch.Tensor | None:
        if not act.now(call=moment.call, step=moment.step):
            return None
        result = applied(act.op, value, Place(act.site, layout, moment.call, moment.step, act.op.where.axis))
        if result is not None:
            self.acted[act.number] += 1
            self.counts[act.name] += 1
        return result

    def _hook_gradients(self, spot: Spot, given: Leaves, found: Leaves, moment: Moment) -> dict[str, torch.Tensor]:
        """Hook the tensors that are meant; returns those that had to become tensors of their own for it, by path."""
        target, aliases = spot.gradient, dict[str, torch.Tensor]()
        assert target is not None
        acts = [act for one in target.planned for act in one.acts(target.site, found)]
        for path, tensor in found:
            of_path = [act for act in acts if act.path == path]
            if not of_path or not tensor.requires_grad:
                continue
            if tensor.grad_fn is None or any(tensor is other for _, other in given):
                # A leaf would keep the hook for ever, and an argument that is handed on has a gradient by other ways, too.
                tensor = aliases[path] = tensor.view_as(tensor)  # noqa: PLW2901  # the hook goes on the new one
            tensor.register_hook(partial(self._gradient, of_path, spot.layout, moment))  # type: ignore[no-untyped-call]  # torch's
        return aliases


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any], new: dict[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if len(args) == 1 and not kwargs:
        return (rebuilt(args[0], new),), kwargs
    return rebuilt(args, new), {key: rebuilt(value, new, f".{key}") for key, value in kwargs.items()}
