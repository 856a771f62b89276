"""The kernel that reads attention, against float64; and the function that is put in place of torch's, and taken out again."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import hookscope as hs
from hookscope._lab._analyze import _attention, _attention_calls


def by_hand(logits: torch.Tensor, keep: torch.Tensor) -> dict[str, np.ndarray]:
    x = logits.double()
    p = x.softmax(-1)
    entropy = torch.special.entr(p).sum(-1)
    visible = (x > -torch.inf).sum(-1)
    keep = keep[:, None] & (visible > 0)
    many = keep & (visible > 1)
    relative = torch.where(many, entropy / visible.clamp(min=2).double().log(), 0)
    low = torch.where(x == -torch.inf, torch.inf, x)

    def over(values: torch.Tensor) -> np.ndarray:
        return torch.where(keep, values, 0).sum((0, 2)).numpy()

    return {
        "rows": over(torch.ones_like(entropy)),
        "entropy_sum": over(entropy),
        "free": many.sum((0, 2)).numpy(),
        "relative_sum": relative.sum((0, 2)).numpy(),
        "logit_min": torch.where(keep, low.amin(-1), torch.inf).amin((0, 2)).numpy(),
        "logit_max": torch.where(keep, x.amax(-1), -torch.inf).amax((0, 2)).numpy(),
        "most": torch.where(keep, entropy, -torch.inf).amax((0, 2)).numpy(),
    }


@pytest.mark.skipif(_attention.SOFTMAX_KERNEL is None, reason="the kernel was not built")
@settings(max_examples=60, deadline=None)
@given(
    keys=st.integers(1, 70),
    queries=st.integers(1, 9),
    scale=st.sampled_from([0.01, 1.0, 30.0, 1e3]),
    hidden=st.sampled_from([0.0, 0.3, 0.9]),
    seed=st.integers(0, 999),
)
def test_entropies_and_extremes_are_those_of_float64(keys: int, queries: int, scale: float, hidden: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 2, queries, keys, generator=generator) * scale
    mask = torch.where(torch.rand(queries, keys, generator=generator) < hidden, -torch.inf, 0.0)
    keep = torch.rand(3, queries, generator=generator) < 0.8
    found = _attention.from_logits("", logits, keep, mask)
    for name, wanted in by_hand(logits + mask, keep).items():
        np.testing.assert_allclose(getattr(found, name), wanted, rtol=1e-6, atol=1e-6, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(
        st.integers(1, 3), st.sampled_from([(1, 1), (4, 2), (6, 2)]), st.integers(1, 9), st.integers(1, 40), st.integers(1, 20)
    ),
    scale=st.sampled_from([0.1, 1.0, 8.0, 30.0]),
    masking=st.sampled_from(["none", "causal", "floats", "bools", "padding", "by head"]),
    native=st.booleans(),
    seed=st.integers(0, 999),
)
def test_what_queries_and_keys_make_is_that_of_numpy_in_float64(
    sizes: tuple[int, tuple[int, int], int, int, int], scale: float, masking: str, native: bool, seed: int
) -> None:
    """Logits up to some thousand, whose products float32 would round by more than is asked for here."""
    generator = torch.Generator().manual_seed(seed)
    batch, (heads, groups), queries, keys, width = sizes
    query = (torch.randn(batch, queries, heads, width, generator=generator) * scale).transpose(1, 2)
    key = (torch.randn(batch, keys, groups, width, generator=generator) * scale).transpose(1, 2)
    mask, causal = (
        {
            "none": None,
            "causal": None,
            "floats": torch.where(torch.rand(queries, keys, generator=generator) < 0.3, -torch.inf, 0.25),
            "bools": torch.rand(queries, keys, generator=generator) < 0.7,
            "padding": torch.rand(batch, 1, 1, keys, generator=generator) < 0.7,
            "by head": torch.randn(batch, heads, queries, keys, generator=generator),
        }[masking],
        masking == "causal",
    )
    keep = torch.rand(batch, queries, generator=generator) < 0.8
    with pytest.MonkeyPatch.context() as patch:
        if not native:
            patch.setattr(_attention, "SOFTMAX_KERNEL", None)
        found = _attention.from_products("", _attention.Attended(query, key, mask, causal=causal), keep)
    logits = query.double().numpy() @ np.repeat(key.double().numpy(), heads // groups, 1).swapaxes(-1, -2) / np.sqrt(width)
    added = np.zeros((1, 1, 1, 1)) if mask is None else np.where(mask, 0, -np.inf) if mask.dtype is torch.bool else mask.double().numpy()
    logits = logits + added + (np.where(np.tri(queries, keys), 0, -np.inf) if causal else 0)
    for name, wanted in by_hand(torch.from_numpy(logits), keep).items():
        np.testing.assert_allclose(getattr(found, name), wanted, rtol=1e-6, atol=1e-6, err_msg=name)


def test_the_kernel_and_torch_operations_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(2, 3, 7, 21).masked_fill(torch.rand(2, 3, 7, 21) < 0.2, -1e9)
    native = _attention.from_logits("", logits)
    monkeypatch.setattr(_attention, "SOFTMAX_KERNEL", None)
    plain = _attention.from_logits("", logits)
    for name in ("rows", "entropy_sum", "least", "most", "free", "relative_sum", "logit_min", "logit_max"):
        np.testing.assert_allclose(getattr(native, name), getattr(plain, name), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.skipif(_attention.SOFTMAX_KERNEL is None, reason="the kernel was not built")
def test_the_kernel_refuses_what_cannot_be() -> None:
    kernel = _attention.SOFTMAX_KERNEL
    assert kernel is not None
    with pytest.raises(TypeError, match="takes 8 arguments"):
        kernel.add(1)
    with pytest.raises(ValueError, match="size below 1"):
        kernel.add(0, 0, 0, 1, 1, 1, 0, 0)
    with pytest.raises(TypeError, match="takes 24 arguments"):
        kernel.attend(1)
    with pytest.raises(ValueError, match="size below 1"):
        kernel.attend(*(0,) * 24)


def test_the_function_is_put_back_whatever_happens_and_kept_while_one_listens() -> None:
    original = functional.scaled_dot_product_attention
    held = ModuleType("held_by_name")
    held.scaled_dot_product_attention = original  # as `from torch.nn.functional import scaled_dot_product_attention` does
    sys.modules["held_by_name"] = held

    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert held.scaled_dot_product_attention is functional.scaled_dot_product_attention is not original
            raise RuntimeError("on purpose")

    try:
        with _attention_calls.listening(lambda _: None):
            with pytest.raises(RuntimeError, match="on purpose"):
                hs.analyze(Fails(), [torch.ones(1, 1, 2, 2)])
            assert functional.scaled_dot_product_attention is not original
        assert functional.scaled_dot_product_attention is held.scaled_dot_product_attention is original
    finally:
        del sys.modules["held_by_name"]


@pytest.mark.parametrize("weights", [True, False])
def test_multi_head_attention_is_the_same_by_either_way(weights: bool) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.full((5, 5), -torch.inf).triu(1)
            return self.attention(x, x, x, attn_mask=mask, need_weights=weights)[0]

    x = torch.randn(3, 5, 8)
    found = hs.analyze(Model(), [x]).attention["attention"]
    wanted = attention(x, x, x, attn_mask=torch.full((5, 5), -torch.inf).triu(1), average_attn_weights=False)[1].double()
    entropy = torch.special.entr(wanted).sum(-1).mean((0, 2))
    np.testing.assert_allclose(found.entropy, entropy.detach().numpy(), rtol=1e-5)
    assert found.rows.tolist() == [15, 15]
