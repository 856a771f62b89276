"""Models of the transformers library, small and with random weights, in training."""

from __future__ import annotations

import torch

from ._programs import Make, Training, draw


def language_model() -> Training:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_positions=8, n_embd=16, n_layer=2, n_head=2))
    adam = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(number: int) -> torch.Tensor:
        adam.zero_grad()
        tokens = draw(2, 8).abs().mul(100).long() % 31
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        adam.step()
        return loss.detach()

    return Training(model, [adam], step)


def image_model() -> Training:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(num_channels=2, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3)
    model = ResNetForImageClassification(config)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(number: int) -> torch.Tensor:
        sgd.zero_grad()
        loss = model(pixel_values=draw(2, 2, 16, 16), labels=torch.tensor([0, 2])).loss
        loss.backward()
        sgd.step()
        return loss.detach()

    return Training(model, [sgd], step)


TRANSFORMERS: dict[str, Make] = {"gpt2": language_model, "resnet": image_model}
