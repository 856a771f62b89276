"""Llama written again under other names, with faults that can be planted."""

from __future__ import annotations

import math

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, HEADS, GROUPS, INNER, LAYERS, EPS = 32, 4, 2, 48, 2, 1e-5


class Norm(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.fault = fault
        self.eps = 1e-6 if fault == "eps" else EPS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return x if self.fault == "scale of the norm forgotten" else x * self.weight


class Rotary(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(x.shape[1]) + (self.fault == "rotary off by one")
        base = 1000.0 if self.fault == "rotary base" else 10000.0
        size = WIDTH // HEADS
        angles = places[:, None].float() * base ** -(torch.arange(0, size, 2).float() / size)
        angles = torch.cat([angles, angles], -1)[None]
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Attention(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.fault = fault
        self.query, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = (nn.Linear(WIDTH, GROUPS * size, bias=False) for _ in range(2))

    def turn(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        if self.fault == "rotary interleaved":
            half = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        else:
            low, high = x.chunk(2, -1)
            half = torch.cat([-high, low], -1)
        return x * cos[:, None] + half * sin[:, None]

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (layer(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for layer in (self.query, self.key, self.value))
        q, k = self.turn(q, *turns), self.turn(k, *turns)
        times = HEADS // GROUPS
        k, v = (t.repeat(1, times, 1, 1) if self.fault == "groups repeated wrongly" else t.repeat_interleave(times, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        weights = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.act = nn.GELU() if fault == "other activation" else nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "gate and up swapped":
            return self.down(self.act(self.up(x)) * self.gate(x))
        return self.down(self.act(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(fault), Norm()
        self.attn, self.mlp = Attention(fault), FeedForward(fault)

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), turns)
        return x + self.mlp(self.norm2(x))


class Port(nn.Module):
    def __init__(self, fault: str, layer: int) -> None:
        super().__init__()
        self.tokens, self.rotary = nn.Embedding(64, WIDTH), Rotary(fault)
        self.layers = nn.ModuleList(Layer(fault if i == layer else "") for i in range(LAYERS))
        self.final, self.head = Norm(), nn.Linear(WIDTH, 64, bias=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids)
        turns = self.rotary(x)
        for layer in self.layers:
            x = layer(x, turns)
        out: torch.Tensor = self.head(self.final(x))
        return out


def original(attention: str = "eager") -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=GROUPS,
        vocab_size=64, max_position_embeddings=64, rms_norm_eps=EPS, attn_implementation=attention,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


def port(model: LlamaForCausalLM, fault: str = "", *, layer: int = 1) -> Port:
    """The port with the weights of the original."""
    other, body = Port(fault, layer).eval(), model.model
    pairs = [(other.tokens, body.embed_tokens), (other.final, body.norm), (other.head, model.lm_head)]
    for mine, theirs in zip(other.layers, body.layers, strict=True):
        attention, mlp = theirs.self_attn, theirs.mlp
        pairs += [(mine.norm1, theirs.input_layernorm), (mine.norm2, theirs.post_attention_layernorm)]
        pairs += [(mine.attn.query, attention.q_proj), (mine.attn.key, attention.k_proj), (mine.attn.value, attention.v_proj)]
        pairs += [
            (mine.attn.out, attention.o_proj),
            (mine.mlp.gate, mlp.gate_proj),
            (mine.mlp.up, mlp.up_proj),
            (mine.mlp.down, mlp.down_proj),
        ]
    with torch.no_grad():
        for mine, theirs in pairs:
            mine.weight.copy_(theirs.weight)
    return other


FAULTS = {
    "eps": "model.layers.1.input_layernorm",
    "scale of the norm forgotten": "model.layers.1.input_layernorm",
    "rotary off by one": "model.rotary_emb",
    "rotary base": "model.rotary_emb",
    "rotary interleaved": "model.layers.1.self_attn",
    "groups repeated wrongly": "model.layers.1.self_attn",
    "other activation": "model.layers.1.mlp.act_fn",
    "gate and up swapped": "model.layers.1.mlp",
}
