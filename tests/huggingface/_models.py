"""Models of the transformers library, of every kind that is built differently: tiny, with random weights, and a batch each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

VOCABULARY, LENGTH = 31, 8


@dataclass(frozen=True)
class Subject:
    """`batch` gives the keyword arguments of the forward, labels among them; it draws from torch's global generator."""

    model: nn.Module
    batch: Callable[[], dict[str, torch.Tensor]]


def tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, length))


def text() -> dict[str, torch.Tensor]:
    drawn = tokens()
    return {"input_ids": drawn, "labels": drawn}


def gpt2() -> Subject:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
    return Subject(GPT2LMHeadModel(config), text)


def llama_size() -> dict[str, Any]:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": LENGTH}
    return sizes | {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}


def llama() -> Subject:
    from transformers import LlamaConfig, LlamaForCausalLM

    return Subject(LlamaForCausalLM(LlamaConfig(**llama_size())), text)


def mixtral() -> Subject:
    """A mixture of experts, each a slice of one parameter, through which a router sends the tokens."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**llama_size(), num_local_experts=4, num_experts_per_tok=2, output_router_logits=True)
    return Subject(MixtralForCausalLM(config), text)


def bert() -> Subject:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = BertConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, **sizes)
    return Subject(BertForMaskedLM(config), lambda: text() | {"attention_mask": torch.tensor([[1] * 8, [1] * 5 + [0] * 3])})


def t5() -> Subject:
    """Its embedding is shared by encoder, decoder and head."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    config = T5Config(vocab_size=VOCABULARY, **sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    return Subject(T5ForConditionalGeneration(config), lambda: {"input_ids": tokens(), "labels": tokens(5)})


def vit() -> Subject:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = ViTConfig(image_size=8, patch_size=4, num_channels=2, num_labels=3, **sizes)
    return Subject(ViTForImageClassification(config), pictures(8))


def resnet() -> Subject:
    """Its batch normalisation keeps buffers that every forward changes."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(num_channels=2, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3)
    return Subject(ResNetForImageClassification(config), pictures(16))


def pictures(size: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"pixel_values": torch.randn(4, 2, size, size), "labels": torch.randint(0, 3, (4,))}


def whisper() -> Subject:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    sizes = {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "num_mel_bins": 4,
        "max_source_positions": 6,
        "max_target_positions": 8,
    }
    ends = {"decoder_start_token_id": 0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = WhisperForConditionalGeneration(WhisperConfig(vocab_size=VOCABULARY, **sizes, **heads, **ends))
    return Subject(model, lambda: {"input_features": torch.randn(2, 4, 12), "labels": tokens(5)})


def mamba() -> Subject:
    """A state-space model: its recurrence is written out in torch operations, and its parameters do not lie in leaf modules alone."""
    from transformers import MambaConfig, MambaForCausalLM

    sizes = {"hidden_size": 8, "state_size": 4, "num_hidden_layers": 2, "expand": 2, "conv_kernel": 3, "time_step_rank": 2}
    return Subject(MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, **sizes, use_mambapy=False)), text)


SUBJECTS: dict[str, Callable[[], Subject]] = {made.__name__: made for made in (gpt2, llama, mixtral, bert, t5, vit, resnet, whisper, mamba)}
