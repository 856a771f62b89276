"""Attention during a pass: from `nn.MultiheadAttention`, from `scaled_dot_product_attention`, or from weights that a module returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from ..._taps._modes import unseen
from .._turn import Turn
from ._attention import Attended, Attention, from_products, from_weights, of_module
from ._attention_calls import listening


class Attending:
    """What was found, by the path of the module within which it happened; `wanted` says which paths count, `turn` which calls."""

    def __init__(self, wanted: Callable[[str], bool], turn: Turn) -> None:
        self.found: dict[str, Attention] = {}
        self.mask: torch.Tensor | None = None
        self._wanted, self._turn = wanted, turn
        self._entered: list[str] = []
        self._by_logits: set[str] = set()
        self._told = False  # whether the module that runs has made a call since it was entered

    def clear(self) -> None:
        """A new forward begins."""
        self._entered.clear()

    def enter(self, path: str) -> None:
        """A module begins."""
        self._entered.append(path)
        self._told = False

    def leave(self, path: str) -> None:
        """It ends; one inside it that has raised, and whose error was caught, never says so itself."""
        while self._entered and self._entered.pop() != path:
            pass

    def watching(self) -> AbstractContextManager[None]:
        """While this lasts, calls of `scaled_dot_product_attention` are seen."""
        return listening(self._called)

    def returned(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A module has returned."""
        if isinstance(module, nn.MultiheadAttention):
            if self._wanted(path) and not self._told:
                self._add(of_module(path, module, args, kwargs))
        elif isinstance(output, tuple) and path not in self._by_logits and self._wanted(path) and looks_like_weights(output):
            self._add(from_weights(path, output[1], self.mask))

    def _called(self, given: Mapping[str, Any]) -> None:
        path = self._entered[-1] if self._entered else ""
        query, key = given["query"], given["key"]
        if not self._turn.is_on() or not self._wanted(path) or query.dim() != 4 or query.is_nested:
            return
        self._by_logits.add(path)
        self._told = True
        with torch.no_grad(), unseen(), torch._C.DisableTorchFunction():
            causal, mask, scale = bool(given.get("is_causal")), given.get("attn_mask"), given.get("scale")
            self._add(from_products(path, Attended(query, key, mask, causal, scale), self.mask))

    def _add(self, found: Attention | None) -> None:
        if found is not None:
            known = self.found.get(found.name)
            self.found[found.name] = found if known is None or known.heads != found.heads else known.merge(found)


def looks_like_weights(output: tuple[Any, ...]) -> bool:
    """Whether the second thing a module returned is attention weights: four dimensions, rows that sum to 1."""
    second = output[1] if len(output) > 1 else None
    if not isinstance(second, torch.Tensor) or second.dim() != 4 or not second.is_floating_point() or not second.numel():
        return False
    rows = second[0, 0].float()
    return bool(((rows.sum(-1) - 1).abs() < 1e-2).all()) and bool((rows >= 0).all())
