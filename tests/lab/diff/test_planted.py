"""Ports of real architectures with one planted fault each: named at the module that has it."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import hookscope as hs

pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
PORTS = ("_gpt2", "_llama", "_bert")
CAUSES = {
    "eps": "eps",
    "other activation": "b computes GELU",
    "bias forgotten": "bias is missing in b",
    "weight not transposed": "has to be transposed",
    "dropout left on": "b in training mode",
    "final norm forgotten": "a runs transformer.ln_f (LayerNorm), which has no partner in b",
    "head not tied": "parameter lm_head.weight",
    "softmax in float16": "float16 rounding",
    "rotary off by one": "one position",
    "scale of the norm forgotten": "factor of its own for each feature",
    "token type forgotten": "embeddings.token_type_embeddings (Embedding), which has no partner in b",
    "GELU by tanh": "b computes GELU by tanh",
    "activation forgotten": "pooler.activation (Tanh), which has no partner",
}


def load(name: str) -> ModuleType:
    """A file beside this one: test folders are not packages."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOADED = {name: load(name) for name in PORTS}
PLANTED = [(name, fault) for name in PORTS for fault in LOADED[name].FAULTS]


def batch(name: str) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 64, (2, 11), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    return {"input_ids": ids, "attention_mask": mask} if name == "_bert" else {"input_ids": ids}


@cache
def original(name: str) -> Any:
    return LOADED[name].original()


@pytest.mark.parametrize(("name", "fault"), PLANTED)
def test_a_planted_fault_is_named_at_its_module(name: str, fault: str) -> None:
    model = original(name)
    found = hs.diff(model, LOADED[name].port(model, fault), batch(name))
    assert not found
    assert found.first is not None
    assert found.first.a == LOADED[name].FAULTS[fault]
    assert any(CAUSES.get(fault, "") in cause for cause in (*found.first.likely, ""))


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("fault", ["eps", "residual forgotten"])
def test_the_fault_is_named_in_whatever_layer_it_is(fault: str, layer: int) -> None:
    gpt2 = LOADED["_gpt2"]
    model = original("_gpt2")
    found = hs.diff(model, gpt2.port(model, fault, layer=layer), batch("_gpt2"))
    assert found.first is not None
    assert found.first.a == gpt2.FAULTS[fault].replace("h.1", f"h.{layer}")


def test_a_position_that_is_off_is_told_by_how_much() -> None:
    gpt2 = LOADED["_gpt2"]
    model = original("_gpt2")
    found = hs.diff(model, gpt2.port(model, "positions off by one"), batch("_gpt2"))
    assert "it shows first in what goes into `transformer.wpe = positions`, b's are a's plus 1" in found.verdict


@pytest.mark.parametrize("name", PORTS)
def test_an_honest_port_under_other_names_is_equal_within_tolerance(name: str) -> None:
    model = original(name)
    found = hs.diff(model, LOADED[name].port(model), batch(name))
    assert found, found.verdict
    assert found.verdict.startswith("equal within tolerance")
    assert all(row.agrees for row in found.parameters)


@pytest.mark.parametrize("name", PORTS)
@pytest.mark.parametrize("other", ["sdpa", "bfloat16", "float64", "port in bfloat16"])
def test_another_attention_or_dtype_is_equal_within_its_tolerance(name: str, other: str) -> None:
    module = LOADED[name]
    model = original(name)
    makers = {
        "sdpa": lambda: module.original("sdpa"),
        "bfloat16": lambda: module.original().bfloat16(),
        "float64": lambda: module.original().double(),
        "port in bfloat16": lambda: module.port(model).bfloat16(),
    }
    found = hs.diff(model, makers[other](), batch(name))
    assert found, found.verdict
    root = found.sites[-1]
    assert root.added is not None
    assert root.added.relative < (0.03 if "bfloat16" in other else 2e-6)


@pytest.mark.parametrize("fault", ["bias forgotten", "residual forgotten", "mask forgotten", "head count"])
def test_a_fault_is_found_through_the_rounding_of_bfloat16(fault: str) -> None:
    gpt2 = LOADED["_gpt2"]
    model = original("_gpt2")
    found = hs.diff(model, gpt2.port(model, fault).bfloat16(), batch("_gpt2"))
    assert found.first is not None
    assert found.first.a == gpt2.FAULTS[fault]


def test_a_fused_projection_is_matched_with_its_three_parts() -> None:
    gpt2 = LOADED["_gpt2"]
    model = original("_gpt2")
    found = hs.diff(model, gpt2.port(model, fused=False), batch("_gpt2"))
    assert found, found.verdict
    parts = tuple(f"blocks.2.attn.{part}" for part in ("query", "key", "value"))
    assert found.map["transformer.h.2.attn.c_attn"] == parts
    back = hs.diff(gpt2.port(model, fused=False), model, batch("_gpt2"))
    assert back, back.verdict
    assert back.map[parts] == "transformer.h.2.attn.c_attn"


def test_a_proposed_map_can_be_passed_back() -> None:
    gpt2 = LOADED["_gpt2"]
    model = original("_gpt2")
    other = gpt2.port(model, "eps", fused=False)
    found = hs.diff(model, other, batch("_gpt2"))
    again = hs.diff(model, other, batch("_gpt2"), map=found.map)
    assert again.map == found.map
    assert again.verdict == found.verdict
