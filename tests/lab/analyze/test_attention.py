"""Entropy and logits of attention, against the softmax written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import hookscope as hs
from hookscope._lab._analyze._attention import from_logits, from_weights


def entropies(weights: torch.Tensor) -> np.ndarray:
    """Mean entropy per head of weights [batch, heads, queries, keys]."""
    w = weights.detach().double()
    return torch.where(w > 0, -w * w.log(), 0.0).sum(-1).mean((0, 2)).numpy()


def test_uniform_attention_has_the_entropy_of_its_keys_and_a_single_key_none() -> None:
    """log(8) for eight alike keys; causal rows see 1 to 8 keys, whose mean is sum(log k) / 8, and all that can be: 1."""
    even = from_logits("a", torch.zeros(2, 3, 8, 8))
    np.testing.assert_allclose(even.entropy, math.log(8), rtol=1e-6)
    causal = from_logits("a", torch.zeros(1, 1, 8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf))
    np.testing.assert_allclose(causal.entropy, sum(math.log(k) for k in range(1, 9)) / 8, rtol=1e-6)
    np.testing.assert_allclose(causal.relative_entropy, 1.0, rtol=1e-6)
    one = from_weights("a", torch.eye(5)[None, None])
    assert one.entropy.tolist() == [0.0]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masks", [True, False])
def test_multihead_attention_is_seen_by_head(batch_first: bool, need_weights: bool, masks: bool) -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(12, 3, batch_first=batch_first).eval()
    x = torch.randn(2, 5, 12) if batch_first else torch.randn(5, 2, 12)
    kwargs = {"need_weights": need_weights}
    if masks:
        padding = torch.zeros(2, 5).bool()
        padding[1, 3:] = True
        kwargs |= {"attn_mask": torch.ones(5, 5).triu(1).bool(), "key_padding_mask": padding}
    analysis = hs.analyze(model, [0], forward=lambda model, _: model(query=x * 2, key=x * 2, value=x, **kwargs))
    weights = model(x * 2, x * 2, x, **{**kwargs, "need_weights": True, "average_attn_weights": False})[1]
    found = analysis.attention[""]
    np.testing.assert_allclose(found.entropy, entropies(weights), rtol=1e-5)
    w = (x if batch_first else x.transpose(0, 1)) * 2
    q, k = (functional.linear(w, model.in_proj_weight[i * 12 : i * 12 + 12]).reshape(2, 5, 3, 4).transpose(1, 2) for i in (0, 1))
    logits = (q @ k.mT / 2).masked_fill(weights == 0, float("nan")).detach().numpy()
    np.testing.assert_allclose(found.logit_max, np.nanmax(logits, (0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(found.logit_min, np.nanmin(logits, (0, 2, 3)), rtol=1e-5)


class Attending(nn.Module):
    """Calls the fused function."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7).transpose(1, 2).flatten(2)


def test_the_fused_function_is_seen_with_its_mask_and_scale() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Attending()), torch.randn(3, 6, 8) * 3
    analysis = hs.analyze(model, list(x.split(1)))
    q, k, _ = model[0].qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    weights = (q @ k.mT * 0.7).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf).softmax(-1)
    np.testing.assert_allclose(analysis.attention["0"].entropy, entropies(weights), rtol=1e-5)
    assert not hs.analyze(model, x, attention=False).attention


def test_transformers_are_seen_with_either_implementation_and_padding_left_out() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}
    ids = torch.randint(50, (2, 6))
    mask = torch.ones(2, 6).long()
    mask[1, 4:] = 0
    found = []
    for implementation in ("eager", "sdpa"):
        torch.manual_seed(1)
        model = transformers.BertModel(transformers.BertConfig(**sizes, attn_implementation=implementation))
        analysis = hs.analyze(model, {"input_ids": ids, "attention_mask": mask})
        assert analysis["encoder.layer.0.output"].positions == 10
        assert len(analysis.attention) >= 2
        found.append(np.concatenate([a.entropy for name, a in sorted(analysis.attention.items()) if name.endswith("attention.self")]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    assert len(found[0]) == 4
