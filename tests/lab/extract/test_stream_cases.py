"""What people wanted from a model's inside, for a whole dataset: to disk in a few lines, and judged by the case itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs

CASES = Path(__file__).parents[4] / "shared" / "cases" / "extract"
absent = pytest.mark.skipif(not CASES.exists(), reason="the cases are not here: they lie in shared/cases, beside the checkout")


def halves(batch: Any) -> list[Any]:
    """A batch as a dataset of two."""
    if isinstance(batch, dict):
        return [{name: value.chunk(2)[i] for name, value in batch.items()} for i in range(2)]
    return list(batch.chunk(2))


def channels(model: nn.Module, x: Any, to: Path) -> Any:
    features = hs.extract(model, halves(x), ["conv", "blocks"], to=to, pool="mean")
    return {name: feature.torch() for name, feature in features.items()}


def real_tokens(model: nn.Module, x: Any, to: Path) -> Any:
    features = hs.extract(model, halves(x), "encoder", to=to, pool=hs.Pool("mean", mask="attention_mask"))
    return features["encoder"].torch()


def real_tokens_from_ragged_files(model: nn.Module, x: Any, to: Path) -> Any:
    features = hs.extract(model, halves(x), "encoder", to=hs.Store(to, mask="attention_mask"))
    return torch.stack([tokens.mean(0) for tokens in features["encoder"].torch()])


def before_an_in_place_relu(model: nn.Module, x: Any, to: Path) -> Any:
    return hs.extract(model, halves(x), "conv", to=to)["conv"].torch()


def no_further_than_wanted(model: nn.Module, x: Any, to: Path) -> Any:
    return hs.extract(model, halves(x), "layer2", to=to, stop=True)["layer2"].torch()


def wrapped(model: nn.Module, x: Any, to: Path) -> Any:
    return {"body.0": hs.extract(model, halves(x), "body.0", to=to)["body.0"].torch()}


SOLUTIONS: list[tuple[str, Callable[[nn.Module, Any, Path], Any]]] = [
    ("01_channels_last_features", channels),
    ("03_model_output_object", real_tokens),
    ("03_model_output_object", real_tokens_from_ragged_files),
    ("05_inplace_relu_overwrites_capture", before_an_in_place_relu),
    ("07_stop_after_wanted_layer", no_further_than_wanted),
    ("11_wrapper_prefix_module", wrapped),
]


@absent
@pytest.mark.parametrize(("name", "solve"), SOLUTIONS, ids=lambda value: getattr(value, "__name__", value))
def test_a_case_is_solved_on_disk(name: str, solve: Callable[[nn.Module, Any, Path], Any], tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"stream_case_{name}", CASES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    try:
        model, x = case.build()
        problem = case.check(solve(model, x, tmp_path / "f"), model, x)
    finally:
        if torch.distributed.is_initialized():  # by the case of a wrapped model
            torch.distributed.destroy_process_group()
    assert problem is None, problem
