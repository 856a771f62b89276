"""Ops that put something else in place of the value: means, other activations, other samples, what a function makes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..._core._errors import UsageError
from ..._core._site import Site
from ._op import Op
from ._operand import Source, by_site, found, is_mapping, of_call, spread, tensor_of
from ._place import Place
from ._where import is_truth


@dataclass(frozen=True, repr=False, eq=False)
class Mean(Op):
    """`hookscope.mean`."""

    values: Source

    @property
    def timed(self) -> bool:
        return self.where.timed or (is_mapping(self.values) and any(isinstance(self.values[key], dict) for key in self.values))

    def check(self, site: Site) -> None:
        if is_mapping(self.values):
            found(self.values, site, "mean(...)")

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        given = found(self.values, place.site, "mean(...)") if is_mapping(self.values) else self.values
        return spread(tensor_of(of_call(given, place, "mean(...)"), "the mean"), value, place, "the mean")


@dataclass(frozen=True, repr=False, eq=False)
class Patch(Op):
    """`hookscope.patch`."""

    source: Source

    @property
    def timed(self) -> bool:
        return self.where.timed or isinstance(self.source, list | tuple) or is_mapping(self.source)

    def check(self, site: Site) -> None:
        if is_mapping(self.source):
            found(self.source, site, "patch(...)")

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        given = found(self.source, place.site, "patch(...)") if is_mapping(self.source) else self.source
        return spread(tensor_of(of_call(given, place, "patch(...)"), "the patch"), value, place, "the patch")


@dataclass(frozen=True, repr=False)
class Swap(Op):
    """`hookscope.swap`."""

    order: tuple[int, ...]
    dim: int = 0

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        if not -value.dim() <= self.dim < value.dim() or value.shape[self.dim] != len(self.order):
            raise UsageError(
                f"swap of {len(self.order)} along dim {self.dim} does not fit {place.site.name} of shape {tuple(value.shape)}: "
                "name each index of that dim once"
            )
        return value.index_select(self.dim, torch.tensor(self.order, device=value.device))


@dataclass(frozen=True, repr=False)
class Replace(Op):
    """`hookscope.replace`."""

    fn: Callable[[torch.Tensor], torch.Tensor]

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        return self.fn(value)


def mean(values: Source) -> Op:
    """The mean of each unit in place of its value (mean ablation); no gradient flows to what it replaces.

    `values` is one number per unit, or a mapping from sites to such: keys are names (`h.3:output`), paths (`h.3`) or `Site`s; or what
    `hookscope.analyze` returned. Raises
    `UsageError` where a mapping lacks an edited site, when the edit is made, or where the shape does not fit, in the forward.

    >>> import torch
    >>> import hookscope as hs
    >>> model = torch.nn.Sequential(torch.nn.Identity())
    >>> with hs.edit(model, {"0": hs.mean({"0:output": torch.tensor([1.0, 2.0])})}):
    ...     model(torch.zeros(1, 2))
    tensor([[1., 2.]])
    """
    values = by_site(values)
    return Mean(values if is_mapping(values) else tensor_of(values, "the mean"))


def patch(source: Source) -> Op:
    """Another activation in place of the value (activation patching); gradients flow to the source, if it wants any, not to the value.

    `source` is a tensor of the value's shape, or one that broadcasts to it, or a list with a tensor for each call, or a mapping from sites
    to such: what `hookscope.extract` or `capture` gave for another batch, or a dict whose keys are names (`h.3:output`), paths (`h.3`) or
    `Site`s. Narrowed by `at(positions=...)`, it takes the same positions from the source. Raises `UsageError` where a mapping lacks an
    edited site, when the edit is made, or where a shape does not fit, in the forward.

    >>> import torch
    >>> import hookscope as hs
    >>> with hs.edit(torch.nn.Identity(), {"(root)": hs.patch(torch.full((1, 3), 7.0)).at(units=-1)}) as e:
    ...     e.model(torch.zeros(1, 3))
    tensor([[0., 0., 7.]])
    """
    source = by_site(source)
    if is_mapping(source):
        return Patch(source)
    if isinstance(source, list | tuple) and source and isinstance(source[0], torch.Tensor):
        return Patch(tuple(source))
    return Patch(tensor_of(source, "the patch"))


def swap(order: Sequence[int], *, dim: int = 0) -> Op:
    """The value with its parts in another order: along `dim`, by default the samples of the batch, place `i` takes what was at `order[i]`.

    `hs.swap([1, 0])` exchanges the two samples of a batch at that site; `order` names each index once. Gradients flow to where the values
    came from. Raises `UsageError` for what is no such order, and in the forward for one of another length than that dimension.

    >>> import torch
    >>> import hookscope as hs
    >>> with hs.edit(torch.nn.Identity(), {"(root)": hs.swap([1, 0])}) as e:
    ...     e.model(torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    tensor([[2., 2.],
            [1., 1.]])
    """
    try:
        numbers = tuple(operator.index(i) for i in order if not is_truth(i))
    except TypeError:
        numbers = ()
    if not numbers or len(numbers) < len(order) or sorted(numbers) != list(range(len(numbers))):
        raise UsageError(f"swap({order!r}) is no order: name each index from 0 to one less than their count once")
    return Swap(numbers, dim)


def replace(fn: Callable[[torch.Tensor], Any]) -> Op:
    """What `fn(value)` returns: a tensor of the same shape; gradients flow as autograd takes them through `fn`.

    `fn` gets the whole value also where the op is narrowed by `at`, and must not write into it. The op pickles if `fn` does. Under
    activation checkpointing `fn` runs again in the backward and has to return the same.

    >>> import torch
    >>> import hookscope as hs
    >>> with hs.edit(torch.nn.Identity(), {"(root)": hs.replace(torch.sign)}) as e:
    ...     e.model(torch.tensor([-3.0, 5.0]))
    tensor([-1.,  1.])
    """
    if not callable(fn):
        raise UsageError(f"replace({fn!r}) has no function: give one that takes a tensor and returns a tensor")
    return Replace(fn)
