"""How sharply attention looks: entropy of its rows and extremes of its logits, a head at a time.

Entropy is -sum p log p over the keys, in nats, averaged over queries and samples (Zhai et al., 2023); the relative one is divided by the
logarithm of the number of keys that a query may see, and skips queries that see one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from ..._stats._backend import load

Floats = NDArray[np.float64]


SOFTMAX_KERNEL = load("_softmax_native")
_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_MASKED = float(torch.finfo(torch.float16).min) / 2


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """Queries and keys of [batch, heads, time, width], heads of keys perhaps shared; a mask that broadcasts to [batch, heads, queries,
    keys], True where a key may be seen or added to the logits; the scale, one over the root of the width where None.
    """

    query: torch.Tensor
    key: torch.Tensor
    mask: torch.Tensor | None = None
    causal: bool = False
    scale: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Per head: `rows` queries with the sum, least and largest of their entropies; `free` queries that see two keys or more, and the sum
    of their relative entropies; the least and largest logit (NaN where only the weights were seen).
    """

    name: str
    rows: Floats
    entropy_sum: Floats
    least: Floats
    most: Floats
    free: Floats
    relative_sum: Floats
    logit_min: Floats
    logit_max: Floats

    @property
    def heads(self) -> int:
        """How many there are."""
        return len(self.rows)

    @property
    def entropy(self) -> Floats:
        """Mean entropy of a head, in nats."""
        return self.entropy_sum / np.where(self.rows > 0, self.rows, np.nan)

    @property
    def relative_entropy(self) -> Floats:
        """Mean entropy over its largest possible value: 0 looks at one key, 1 at all alike."""
        return self.relative_sum / np.where(self.free > 0, self.free, np.nan)

    def merge(self, other: Attention) -> Attention:
        """Both together."""
        names = ("rows", "entropy_sum", "free", "relative_sum")
        added = {name: getattr(self, name) + getattr(other, name) for name in names}
        low, high = np.minimum, np.maximum
        return replace(
            self,
            **added,
            least=low(self.least, other.least),
            most=high(self.most, other.most),
            logit_min=low(self.logit_min, other.logit_min),
            logit_max=high(self.logit_max, other.logit_max),
        )


def from_logits(name: str, logits: torch.Tensor, keep: torch.Tensor | None = None, mask: torch.Tensor | None = None) -> Attention:
    """Of logits [batch, heads, queries, keys], -inf (or a very large negative number) where a key may not be seen.

    `keep` [batch, queries] leaves out padded queries, `mask` [queries, keys] is added to the logits first.
    """
    logits = logits.detach() if logits.dtype is torch.float64 else logits.detach().float()
    if keep is not None and keep.shape != (logits.shape[0], logits.shape[2]):
        keep = None
    if SOFTMAX_KERNEL is not None and logits.device.type == "cpu" and logits.numel() and logits.dtype is torch.float32:
        return Attention(name, *_natively(logits.contiguous(), keep, mask))
    logits = logits if mask is None else logits + mask
    low, high = logits.amin(-1), logits.amax(-1)
    visible = torch.full_like(low, logits.shape[-1])
    if not bool((low > _MASKED).all()):  # masks are written as -inf, as the least number of a format, or as -1e9
        seen = logits > _MASKED
        visible, low = seen.sum(-1, dtype=torch.float32), torch.where(seen, logits, torch.inf).amin(-1)
    # log sum exp - sum p logit, without a logarithm of every weight; exp(-80) adds nothing, and is no slow subnormal.
    below = (logits - high[..., None]).clamp_(min=-80)
    weights = below.exp()
    total = weights.sum(-1)
    entropy = total.log() - weights.mul_(below).sum(-1) / total
    return _summed(name, (entropy, visible), keep, (low, high))


def _natively(logits: torch.Tensor, keep: torch.Tensor | None, mask: torch.Tensor | None) -> Floats:
    """What `Attention` holds, a row each; the logits lie in one stretch of memory."""
    assert SOFTMAX_KERNEL is not None
    batch, heads, queries, keys = logits.shape
    sums = _nothing(heads)
    added = None if mask is None else mask.to(torch.float32).contiguous()
    kept = None if keep is None else keep.to("cpu", torch.bool).contiguous()
    addresses = (0 if tensor is None else tensor.data_ptr() for tensor in (added, kept))
    SOFTMAX_KERNEL.add(logits.data_ptr(), *addresses, batch, heads, queries, keys, sums.ctypes.data)
    return sums


def _nothing(heads: int) -> Floats:
    sums = np.zeros((8, heads))
    sums[[2, 6]], sums[[3, 7]] = np.inf, -np.inf
    return sums


def from_products(name: str, attended: Attended, keep: torch.Tensor | None = None) -> Attention:
    """Of what `scaled_dot_product_attention` is given, of [batch, heads, time, width]; in double precision on a CPU.

    `keep` [batch, queries] leaves out padded queries.
    """
    query, key = attended.query.detach(), attended.key.detach()
    if keep is not None and keep.shape != (query.shape[0], query.shape[2]):
        keep = None
    is_narrow = query.dtype in _NARROW and key.dtype in _NARROW and query.shape[0] == key.shape[0]
    if SOFTMAX_KERNEL is None or query.device.type != "cpu" or not query.numel() or not key.numel() or not is_narrow:
        logits, mask = scaled_logits(attended)
        return from_logits(name, logits, keep, mask)
    return Attention(name, *_multiplied(replace(attended, query=_in_rows(query), key=_in_rows(key)), keep))


def _multiplied(attended: Attended, keep: torch.Tensor | None) -> Floats:
    """What `Attention` holds, a row each."""
    assert SOFTMAX_KERNEL is not None
    query, key, mask, scale = attended.query, attended.key, attended.mask, attended.scale
    batch, heads, queries, width = query.shape
    sums, keys = _nothing(heads), key.shape[2]
    if mask is not None:
        mask = (mask if mask.dtype is torch.bool else mask.detach().float()).expand(batch, heads, queries, keys)
    kept = None if keep is None else keep.to("cpu", torch.bool).contiguous()
    SOFTMAX_KERNEL.attend(
        query.data_ptr(), key.data_ptr(), *(0 if tensor is None else tensor.data_ptr() for tensor in (mask, kept)), sums.ctypes.data,
        batch, heads, key.shape[1], queries, keys, width, attended.causal, mask is not None and mask.dtype is torch.bool,
        *query.stride()[:3], *key.stride()[:3], *((0,) * 4 if mask is None else mask.stride()),
        1 / math.sqrt(width) if scale is None else scale,
    )  # fmt: skip
    return sums


def _in_rows(x: torch.Tensor) -> torch.Tensor:
    """In float32, the numbers of each vector side by side."""
    x = x.float().resolve_neg()
    return x if x.stride(-1) == 1 else x.contiguous()


def from_weights(name: str, weights: torch.Tensor, keep: torch.Tensor | None = None) -> Attention:
    """Of weights [batch, heads, queries, keys] after the softmax; a key is taken to be seen where its weight is not 0."""
    weights = weights.detach().float()
    return _summed(name, (torch.special.entr(weights).sum(-1), (weights > 0).sum(-1, dtype=torch.float32)), keep, None)


def _summed(
    name: str, found: tuple[torch.Tensor, torch.Tensor], keep: torch.Tensor | None, logits: tuple[torch.Tensor, torch.Tensor] | None
) -> Attention:
    """Sums over samples and queries of [batch, heads, queries]: entropy and number of visible keys, least and largest logit."""
    entropy, visible = found
    valid = visible > 0
    if keep is not None and keep.shape == (entropy.shape[0], entropy.shape[2]):
        valid = valid & keep.to(valid.device)[:, None]
    free = valid & (visible > 1)
    relative = entropy / visible.clamp(min=2).log()

    def over(values: torch.Tensor, where: torch.Tensor) -> Floats:
        summed: Floats = torch.where(where, values.double(), 0.0).sum((0, 2)).cpu().numpy()
        return summed

    def extreme(values: torch.Tensor, sign: int) -> Floats:
        most: Floats = (torch.where(valid, values.double(), math.inf * sign) * sign).amin((0, 2)).cpu().numpy() * sign
        return most

    ones = torch.ones_like(entropy)
    unknown = np.full(entropy.shape[1], np.nan)
    low, high = (unknown, unknown) if logits is None else (extreme(logits[0], 1), extreme(logits[1], -1))
    sums = over(ones, valid), over(entropy, valid), extreme(entropy, 1), extreme(entropy, -1), over(ones, free), over(relative, free)
    return Attention(name, *sums, low, high)


def scaled_logits(attended: Attended) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What goes through the softmax; grouped keys are repeated.

    The second tensor is a mask [queries, keys] that is still to be added, if all samples and heads have the same.
    """
    query, key, mask, scale = attended.query, attended.key, attended.mask, attended.scale
    if key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    wide = torch.float64 if query.device.type == "cpu" else torch.float32
    logits = query.detach().to(wide) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale) @ key.detach().to(wide).mT
    if attended.causal:
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if mask is None:
        return logits, None
    if mask.dim() < 2 or mask.numel() != logits.shape[-2] * logits.shape[-1] or mask.shape[-2:] != logits.shape[-2:]:
        return (logits.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else logits + mask), None
    mask = mask.reshape(logits.shape[-2:])
    return logits, torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, -torch.inf) if mask.dtype is torch.bool else mask


def of_module(name: str, module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attention | None:
    """Of one call of `nn.MultiheadAttention`, its queries and keys projected once more; None where it adds keys of its own."""
    names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    query, key = given["query"], given["key"]
    if module.bias_k is not None or module.add_zero_attn or query.is_nested:
        return None
    if query.dim() == 2:
        query, key = (query[None],) * 2 if query is key else (query[None], key[None])
    elif not module.batch_first:
        query, key = (query.transpose(0, 1),) * 2 if query is key else (query.transpose(0, 1), key.transpose(0, 1))
    q, k = (_heads(part, module.num_heads) for part in _projected(module, query, key))
    mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
    hidden = [_added(part) for part in (_spread(mask, q.shape[1]), None if padding is None else padding[:, None, None]) if part is not None]
    added = sum(hidden[1:], hidden[0]) if hidden else None
    return from_products(name, Attended(q, k, added))


def _added(mask: torch.Tensor) -> torch.Tensor:
    """As floats to add; True is what may not be seen: the other way round than in `scaled_dot_product_attention`."""
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill_(mask, -torch.inf) if mask.dtype is torch.bool else mask


def _projected(module: nn.MultiheadAttention, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    d = module.embed_dim
    bq, bk = (None, None) if module.in_proj_bias is None else (module.in_proj_bias[:d], module.in_proj_bias[d : 2 * d])
    packed: torch.Tensor | None = module._parameters["in_proj_weight"]
    if packed is not None and query is key:
        both = functional.linear(query, packed[: 2 * d], None if module.in_proj_bias is None else module.in_proj_bias[: 2 * d])
        return both[..., :d], both[..., d:]
    if packed is not None:
        return functional.linear(query, packed[:d], bq), functional.linear(key, packed[d : 2 * d], bk)
    wq, wk = module.q_proj_weight, module.k_proj_weight
    assert wq is not None
    assert wk is not None
    return functional.linear(query, wq, bq), functional.linear(key, wk, bk)


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)


def _spread(mask: torch.Tensor | None, heads: int) -> torch.Tensor | None:
    """A mask of three dimensions has samples and heads in one."""
    return mask.reshape(-1, heads, *mask.shape[1:]) if mask is not None and mask.dim() == 3 else mask
