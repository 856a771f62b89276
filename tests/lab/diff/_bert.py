"""BERT written again under other names, with faults that can be planted."""

from __future__ import annotations

import math

import torch
from torch import nn
from transformers import BertConfig, BertModel

WIDTH, HEADS, INNER, LAYERS, EPS = 32, 4, 64, 2, 1e-12


class Embeddings(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.words, self.kinds, self.places = nn.Embedding(64, WIDTH), nn.Embedding(2, WIDTH), nn.Embedding(32, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=EPS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        if self.fault != "token type forgotten":
            x = x + self.kinds(torch.zeros_like(ids))
        out: torch.Tensor = self.norm(x)
        return out


class Attention(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (layer(x).view(batch, length, HEADS, -1).transpose(1, 2) for layer in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        if self.fault != "padding not masked":
            scores = scores.masked_fill(mask[:, None, None] == 0, torch.finfo(scores.dtype).min)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)


class Layer(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.attn, self.out = Attention(fault), nn.Linear(WIDTH, WIDTH)
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, eps=1e-5 if fault == "eps" else EPS) for _ in range(2))
        self.up, self.act, self.down = (
            nn.Linear(WIDTH, INNER),
            nn.GELU("tanh" if fault == "GELU by tanh" else "none"),
            nn.Linear(INNER, WIDTH),
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.out(self.attn(x, mask)))
        out: torch.Tensor = self.norm2(x + self.down(self.act(self.up(x))))
        return out


class Port(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.embed = Embeddings(fault)
        self.layers = nn.ModuleList(Layer(fault if i == 1 else "") for i in range(LAYERS))
        self.pool, self.tanh = nn.Linear(WIDTH, WIDTH), nn.Tanh()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, attention_mask)
        first = self.pool(x[:, -1 if self.fault == "last token pooled" else 0])
        return x, first if self.fault == "activation forgotten" else self.tanh(first)


def original(attention: str = "eager") -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=INNER, vocab_size=64,
        max_position_embeddings=32, layer_norm_eps=EPS, attn_implementation=attention,
    )  # fmt: skip
    model = BertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


def port(model: BertModel, fault: str = "") -> Port:
    """The port with the weights of the original."""
    other, embeddings = Port(fault).eval(), model.embeddings
    pairs: list[tuple[nn.Module, nn.Module]] = [(other.embed.words, embeddings.word_embeddings), (other.embed.norm, embeddings.LayerNorm)]
    pairs += [(other.embed.kinds, embeddings.token_type_embeddings), (other.embed.places, embeddings.position_embeddings)]
    pairs += [(other.pool, model.pooler.dense)]
    for mine, theirs in zip(other.layers, model.encoder.layer, strict=True):
        inner, after = theirs.attention.self, theirs.attention.output
        pairs += [(mine.attn.query, inner.query), (mine.attn.key, inner.key), (mine.attn.value, inner.value), (mine.out, after.dense)]
        pairs += [(mine.norm1, after.LayerNorm), (mine.norm2, theirs.output.LayerNorm)]
        pairs += [(mine.up, theirs.intermediate.dense), (mine.down, theirs.output.dense)]
    for mine, theirs in pairs:
        mine.load_state_dict(theirs.state_dict())
    return other


FAULTS = {
    "token type forgotten": "embeddings",
    "padding not masked": "encoder.layer.1.attention.self",
    "eps": "encoder.layer.1.attention.output.LayerNorm",
    "GELU by tanh": "encoder.layer.1.intermediate.intermediate_act_fn",
    "last token pooled": "(root)",
    "activation forgotten": "(root)",
}
