"""GPT-2 written again under other names, with faults that can be planted."""

from __future__ import annotations

import math

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

WIDTH, HEADS, LAYERS = 32, 4, 3


class Attention(nn.Module):
    def __init__(self, fault: str, *, fused: bool = True) -> None:
        super().__init__()
        self.fault, self.fused = fault, fused
        if fused:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).chunk(3, -1) if self.fused else (self.query(x), self.key(x), self.value(x))
        if self.fault == "query and key swapped":
            q, k = k, q
        heads = 2 if self.fault == "head count" else HEADS
        q, k, v = (t.view(batch, length, heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-1, -2)
        if self.fault != "scale forgotten":
            scores = scores / math.sqrt(WIDTH / heads)
        if self.fault != "mask forgotten":
            future = 2 if self.fault == "mask off by one" else 1
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(future), -math.inf)
        weights = scores.half().softmax(-1).float() if self.fault == "softmax in float16" else scores.softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=fault != "bias forgotten"), nn.Linear(4 * WIDTH, WIDTH)
        self.act = nn.GELU(approximate="none" if fault == "other activation" else "tanh")
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(self.act(self.up(x))))


class Block(nn.Module):
    def __init__(self, fault: str, *, fused: bool = True) -> None:
        super().__init__()
        self.fault = fault
        self.norm1 = nn.LayerNorm(WIDTH, eps=1e-12 if fault == "eps" else 1e-5)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.attn, self.mlp = Attention(fault, fused=fused), FeedForward(fault)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "norm after instead of before":
            x = x + self.norm1(self.attn(x))
        elif self.fault == "residual forgotten":
            x = self.attn(self.norm1(x))
        else:
            x = x + self.attn(self.norm1(x))
        if self.fault == "residual of the normed":
            y = self.norm2(x)
            return y + self.mlp(y)
        return x + self.mlp(self.norm2(x))


class Port(nn.Module):
    def __init__(self, fault: str = "", *, layer: int = 1, fused: bool = True) -> None:
        super().__init__()
        self.fault = fault
        self.tokens, self.positions = nn.Embedding(64, WIDTH), nn.Embedding(32, WIDTH)
        self.blocks = nn.ModuleList(Block(fault if i == layer else "", fused=fused) for i in range(LAYERS))
        self.final = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 64, bias=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1]) + (self.fault == "positions off by one")
        x = self.tokens(input_ids) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x if self.fault == "final norm forgotten" else self.final(x))
        return out


def original(attention: str = "eager") -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS, vocab_size=64, n_positions=32, attn_implementation=attention, use_cache=False
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # at the start all norms are alike, and activations so small that GELU is straight
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


def port(model: GPT2LMHeadModel, fault: str = "", *, fused: bool = True, layer: int = 1) -> Port:
    """The port with the weights of the original."""
    other = Port(fault, fused=fused, layer=layer).eval()
    body = model.transformer
    with torch.no_grad():
        other.tokens.weight.copy_(body.wte.weight)
        other.positions.weight.copy_(body.wpe.weight)
        _norm(other.final, body.ln_f)
        other.head.weight.copy_(model.lm_head.weight)
        for mine, theirs in zip(other.blocks, body.h, strict=True):
            _norm(mine.norm1, theirs.ln_1)
            _norm(mine.norm2, theirs.ln_2)
            if fused:
                _linear(mine.attn.qkv, theirs.attn.c_attn)
            else:
                parts = zip(theirs.attn.c_attn.weight.t().chunk(3), theirs.attn.c_attn.bias.chunk(3), strict=True)
                for part, (weight, bias) in zip((mine.attn.query, mine.attn.key, mine.attn.value), parts, strict=True):
                    part.weight.copy_(weight)
                    part.bias.copy_(bias)
            _linear(mine.attn.out, theirs.attn.c_proj)
            _linear(mine.mlp.up, theirs.mlp.c_fc)
            _linear(mine.mlp.down, theirs.mlp.c_proj)
        if fault == "weight not transposed":
            other.blocks[layer].attn.out.weight.copy_(body.h[layer].attn.c_proj.weight)
        if fault == "head not tied":
            nn.init.normal_(other.head.weight, std=0.1)
        if fault == "dropout left on":
            other.blocks[layer].mlp.drop.train()
    return other


def _norm(mine: nn.LayerNorm, theirs: nn.LayerNorm) -> None:
    mine.weight.copy_(theirs.weight)
    mine.bias.copy_(theirs.bias)


def _linear(mine: nn.Linear, theirs: nn.Module) -> None:
    mine.weight.copy_(theirs.weight.t())
    if mine.bias is not None:
        mine.bias.copy_(theirs.bias)


# fault -> the module of the original in which it shows
FAULTS = {
    "eps": "transformer.h.1.ln_1",
    "other activation": "transformer.h.1.mlp.act",
    "scale forgotten": "transformer.h.1.attn",
    "mask forgotten": "transformer.h.1.attn",
    "mask off by one": "transformer.h.1.attn",
    "softmax in float16": "transformer.h.1.attn",
    "head count": "transformer.h.1.attn",
    "query and key swapped": "transformer.h.1.attn",
    "bias forgotten": "transformer.h.1.mlp.c_fc",
    "weight not transposed": "transformer.h.1.attn.c_proj",
    "residual forgotten": "transformer.h.1",
    "residual of the normed": "transformer.h.1",
    "norm after instead of before": "transformer.h.1",
    "dropout left on": "transformer.h.1.mlp.dropout",
    "positions off by one": "(root)",
    "final norm forgotten": "(root)",
    "head not tied": "lm_head",
}
