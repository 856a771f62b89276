"""Sees each call of `scaled_dot_product_attention` while it is on, whoever makes it, and changes none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ._attention import scaled_logits


class AttentionMode(TorchFunctionMode):
    """Hands the logits to `told`. Calls from within other functions that torch itself dispatches on are not seen."""

    def __init__(self, told: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self.told = told

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function; look at it if it is attention."""
        result = func(*args, **(kwargs or {}))
        if func is functional.scaled_dot_product_attention:
            self._look(*args, **(kwargs or {}))
        return result

    def _look(self, query: torch.Tensor, key: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        names = ("value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if query.dim() == 4 and not query.is_nested:
            scale = given.get("scale")
            self.told(scaled_logits(query, key, given.get("attn_mask"), causal=bool(given.get("is_causal")), scale=scale))
