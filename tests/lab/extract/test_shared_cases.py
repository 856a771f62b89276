"""What people wanted from a model's inside, each solved in a few lines, and judged by the case itself."""

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
PROGRAMS = sorted(CASES.glob("*.py"))
absent = pytest.mark.skipif(not PROGRAMS, reason="the cases are not here: they lie in shared/cases, beside the checkout")
pytestmark = absent


def channels(model: nn.Module, x: Any) -> Any:
    return hs.extract(model, x, ["conv", "blocks"], pool="mean")


def output_object(model: nn.Module, x: Any) -> Any:
    return hs.extract(model, x, "encoder", pool=hs.Pool("mean", mask="attention_mask"))["encoder"]


def before_an_in_place_relu(model: nn.Module, x: Any) -> Any:
    return hs.extract(model, x, "conv")["conv"]


def no_further_than_wanted(model: nn.Module, x: Any) -> Any:
    return hs.extract(model, x, "layer2", stop=True)["layer2"]


def with_and_without_graph(model: nn.Module, x: Any) -> Any:
    with hs.capture(model, "mid") as feats:
        for _ in range(5):
            model(x).mean().backward()
    inp = x.clone().requires_grad_()
    return feats.calls("mid"), (hs.extract(model, inp, "mid", grad=True)["mid"], inp)


def wrapped(model: nn.Module, x: Any) -> Any:
    return hs.extract(model, x, "body.0")


def forward_called_directly(model: nn.Module, x: Any) -> Any:
    with pytest.raises(
        hs.SelectionError, match=r"called as encoder\.forward\(\.\.\.\), which passes by all hooks .*'\(root\):output/tanh'"
    ):
        hs.extract(model, x, "encoder")
    return {"encoder": hs.extract(model, x, "(root):output/tanh")["(root):output/tanh"]}


def checkpointed(model: nn.Module, x: Any) -> Any:
    with hs.capture(model, "block.0") as feats:
        for batch in x:
            model(batch).mean().backward()
    return feats.calls("block.0")


SOLUTIONS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "01_channels_last_features": channels,
    "03_model_output_object": output_object,
    "05_inplace_relu_overwrites_capture": before_an_in_place_relu,
    "07_stop_after_wanted_layer": no_further_than_wanted,
    "09_capture_keeps_graph_alive": with_and_without_graph,
    "11_wrapper_prefix_module": wrapped,
    "13_forward_called_directly": forward_called_directly,
    "15_checkpoint_runs_forward_twice": checkpointed,
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_case_is_solved_through_the_public_names(program: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"case_{program.stem}", program)
    assert spec is not None
    assert spec.loader is not None
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    try:
        model, x = case.build()
        assert case.check(SOLUTIONS[program.stem](model, x), model, x) is None
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
