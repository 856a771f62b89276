"""Edits of a GPT-2 with random weights: heads, positions, decoding steps, and values from another forward."""

from __future__ import annotations

import pytest
import torch

import hookscope as hs

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow  # the library takes its time to load
IDS = torch.tensor([[5, 9, 2, 7, 1]])


@pytest.fixture(scope="module")
def gpt():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=31, n_positions=16, n_embd=12, n_layer=3, n_head=3, bos_token_id=0, eos_token_id=None, attn_implementation="eager"
    )
    return transformers.GPT2LMHeadModel(config).eval().double()


def test_a_head_that_is_knocked_out_adds_nothing_to_the_output_projection(gpt) -> None:
    attention = gpt.transformer.h[1].attn
    kept = []
    handle = attention.c_proj.register_forward_hook(lambda m, args, out: kept.append((args[0], out)))
    with torch.no_grad():
        gpt(IDS)
        with hs.edit(gpt, {"transformer.h[1].attn.c_proj:input": hs.zero().at(heads=2)}):
            gpt(IDS)
    handle.remove()
    (given, out), (edited, edited_out) = kept
    assert torch.equal(edited[..., :8], given[..., :8])
    assert not edited[..., 8:].any()
    without = out - given[..., 8:] @ attention.c_proj.weight[8:]
    torch.testing.assert_close(edited_out, without, rtol=1e-10, atol=1e-10)


def test_a_block_is_steered_at_the_last_position_only(gpt) -> None:
    vector = torch.arange(12, dtype=torch.float64)
    with torch.no_grad():
        plain = gpt(IDS).logits
        with hs.edit(gpt, {"transformer.h.1": hs.add(vector).at(positions=-1)}):
            steered = gpt(IDS).logits
    assert torch.equal(plain[:, :-1], steered[:, :-1])  # causal
    assert not torch.allclose(plain[:, -1], steered[:, -1])


def test_steps_are_those_of_generation_with_a_cache(gpt) -> None:
    seen = []
    handle = gpt.transformer.h[0].register_forward_hook(lambda m, a, out: seen.append((out[0] if isinstance(out, tuple) else out).clone()))
    with hs.edit(gpt, {"transformer.h.0": hs.zero().at(steps=[0, 2])}):
        gpt.generate(IDS, max_new_tokens=4, do_sample=False, pad_token_id=0)
    handle.remove()
    assert [tuple(value.shape[:2]) for value in seen] == [(1, 5), (1, 1), (1, 1), (1, 1)]
    assert [bool(value.any()) for value in seen] == [False, True, False, True]


def test_the_values_of_the_clean_run_put_into_the_corrupt_one_at_the_last_block_restore_it(gpt) -> None:
    corrupt = torch.tensor([[5, 9, 3, 7, 1]])
    trace = hs.trace_patch(gpt, {"input_ids": IDS}, (corrupt,), "transformer.h.*", lambda output: output.logits[0, -1, 4])
    assert trace.effect.shape == (3, 5)
    assert trace.effect[:, :2].tolist() == [[0, 0]] * 3  # before the token that differs
    assert trace.effect[-1, -1] == pytest.approx(1.0)
    assert trace.effect[-1, :-1].tolist() == pytest.approx([0] * 4)


def test_under_gradient_checkpointing_of_the_library_gradients_are_those_without(gpt) -> None:
    def gradients() -> list[torch.Tensor]:
        gpt.zero_grad()
        ops = {"transformer.h.*": hs.noise(0.1), "transformer.h[1].attn.c_proj:input": hs.zero().at(heads=0)}
        with hs.edit(gpt, ops):
            gpt(IDS, labels=IDS, use_cache=False).loss.backward()
        return [p.grad.clone() for p in gpt.parameters()]

    gpt.train()
    for module in gpt.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    plain = gradients()
    enable = getattr(gpt, "activation_checkpointing_enable", gpt.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
    try:
        again = gradients()
    finally:
        getattr(gpt, "activation_checkpointing_disable", gpt.gradient_checkpointing_disable)()
        gpt.eval()
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
