"""Architectures of the transformers library in float64: every module's every tensor is what a forward that notes it down itself gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs

from ._models import SUBJECTS, VOCABULARY

pytestmark = pytest.mark.slow  # importing transformers takes seconds
Seen = dict[tuple[str, int], list[torch.Tensor]]


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.detach().clone()]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def noted(model: nn.Module, batch: dict[str, Any]) -> Seen:
    """What each module returns, call by call, noted down by a forward in place of its own; no hook is involved."""
    seen: Seen = {}

    def noting(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any, **kwargs: Any) -> Any:
            result = forward(*args, **kwargs)
            seen[path, sum(known == path for known, _ in seen)] = tensors(result)
            return result

        return note

    for path, module in model.named_modules():
        module.forward = noting(path, module.forward)
    with torch.no_grad():
        model(**batch)
    for module in model.modules():
        del module.forward
    return {key: found for key, found in seen.items() if found}


def prepared(name: str) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(5)
    subject = SUBJECTS[name]()
    dtype = torch.float32 if name == "mixtral" else torch.float64  # the kernel for its experts knows no double precision
    return subject.model.to(dtype).eval(), cast(subject.batch(), dtype)


def cast(batch: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()}


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_tensor_of_every_call_is_the_one_that_the_module_returned(name: str) -> None:
    model, batch = prepared(name)
    right = noted(model, batch)
    found: Seen = {}
    for key, tensor in hs.extract(model, batch, "**").items():
        found.setdefault((key.site.path, key.call), []).append(tensor)
    assert list(found) == list(right)
    assert all(len(found[key]) == len(right[key]) for key in right)
    assert all(torch.equal(a, b) for key in right for a, b in zip(found[key], right[key], strict=True))


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("gpt2", "transformer.h.*"), ("llama", "model.layers.*"), ("bert", "bert.encoder.layer.*"), ("vit", "vit.layers.*")],
)
def test_blocks_in_single_precision_are_the_hidden_states_in_double_to_rounding(name: str, blocks: str) -> None:
    model, batch = prepared(name)
    with torch.no_grad():
        states = model(**batch, output_hidden_states=True).hidden_states
    feats = hs.extract(model.float(), cast(batch, torch.float32), blocks, dtype="float64")
    firsts = [key for key in feats if key.site.output_path in ("", "[0]") and key.site.path.split(".")[-1].isdecimal()]
    assert len(firsts) == len(states) - 1
    for key, state in zip(firsts[:-1], states[1:-1], strict=True):  # the last state has the final norm behind it
        assert torch.allclose(feats[key], state, atol=1e-5)


@pytest.mark.parametrize(("name", "block"), [("gpt2", "transformer.h.0"), ("llama", "model.layers.0")])
def test_a_generation_with_a_cache_gives_a_call_for_each_step(name: str, block: str) -> None:
    model, batch = prepared(name)
    prompt = batch["input_ids"][:, :3]
    settings = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": VOCABULARY + 1}
    with hs.capture(model, block) as captured:
        tokens = model.generate(prompt, **settings)
    extracted = hs.extract(model, prompt, block, forward=lambda model, ids: model.generate(ids, **settings))
    whole = hs.extract(model, {"input_ids": tokens[:, :-1], "use_cache": False}, block)
    assert [tensor.shape[1] for tensor in captured.calls(block)] == [3, 1, 1, 1]
    assert torch.allclose(torch.cat(captured.calls(block), 1), whole[block], atol=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(captured.values(), extracted.values(), strict=True))


def test_the_decoder_of_a_sequence_to_sequence_model_gives_a_call_for_each_step() -> None:
    model, batch = prepared("t5")
    out = "decoder.final_layer_norm"
    with hs.capture(model, [out, "encoder.final_layer_norm"]) as feats:
        tokens = model.generate(batch["input_ids"], max_new_tokens=4, do_sample=False, eos_token_id=VOCABULARY + 1)
    whole = hs.extract(model, {"input_ids": batch["input_ids"], "decoder_input_ids": tokens[:, :-1]}, out)
    assert torch.allclose(torch.cat(feats.calls(out), 1), whole[out], atol=1e-12)
    assert len(feats.calls("encoder.final_layer_norm")) == 1


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_attention_weights_are_those_that_the_model_returns(name: str) -> None:
    model, batch = prepared(name)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        right = model(**batch, output_attentions=True).attentions
    feats = hs.extract(model, batch, "**:output/softmax")
    weights = [tensor for key, tensor in feats.items() if key.site.label]
    assert len(weights) == len(right)
    assert all(torch.equal(a, b) for a, b in zip(weights, right, strict=True))


class Residual(nn.Module):
    """A block as in the original ResNet: the sum and both activations are written in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.bn1, self.bn2, self.relu = nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x
        return self.relu(y)


def test_a_resnet_that_writes_in_place_gives_what_each_module_returned() -> None:
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    model = nn.Sequential(stem, Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)).double().eval()
    x = torch.randn(2, 3, 12, 12, dtype=torch.float64)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    whole = Whole()
    right, feats = noted(whole, {"x": x}), hs.extract(whole, x, "**")
    assert {(key.site.path, key.call) for key in feats} == set(right)
    assert all(torch.equal(feats[key], right[key.site.path, key.call][0]) for key in feats)
