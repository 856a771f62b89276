"""A watched model can still be copied, pickled, saved, traced and exported, and none of its copies reports to the run."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim.swa_utils import AveragedModel

import hookscope as hs

BATCH = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)
LOAD_WITHOUT_HOOKSCOPE = """
import sys
sys.modules["hookscope"] = None
import torch
batch = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)
for file in sys.argv[1:]:
    model = torch.load(file, weights_only=False)
    output = model(batch)
    output.sum().backward()
    print(output.detach().double().sum().item().hex())
    assert all(p.grad is not None for p in model.parameters())
"""


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.LayerNorm(8), nn.Linear(8, 2))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(BATCH).square().mean().backward()
    optimizer.step()


def pickled(model: nn.Module) -> nn.Module:
    copied = pickle.loads(pickle.dumps(model))
    assert isinstance(copied, nn.Module)
    return copied


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": pickled,
    "deepcopy of a deepcopy": lambda model: copy.deepcopy(copy.deepcopy(model)),
    "pickled deepcopy": lambda model: pickled(copy.deepcopy(model)),
    "weight average": AveragedModel,
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_computes_the_same_and_reports_nothing_into_the_run(way: str) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, select=["**", "**:input"]) as w:
        step(model, optimizer)
        copied = COPIES[way](model)
        output = model(BATCH)
        assert torch.equal(copied(BATCH), output)
        assert torch.equal(copied(BATCH + 1), copied(BATCH + 1))
        output.sum().backward()
        optimizer.step()
    rows = [row for row in w.run.arrow().to_pylist() if row["kind"] in ("input", "output", "output_grad") and row["path"] == "0"]
    assert sorted((row["step"], row["micro"], row["call"], row["kind"]) for row in rows) == [
        (step, 0, 0, kind) for step in (0, 1) for kind in ("input", "output", "output_grad")
    ]


def test_a_model_kept_from_a_watch_can_be_copied_after_it() -> None:
    model = small_model()
    with hs.watch(model):
        kept = copy.deepcopy(model)
    assert torch.equal(pickled(model)(BATCH), model(BATCH))
    with hs.watch(kept) as w:  # a copy with the dead hooks of its original is watched like any model
        step(kept, torch.optim.SGD(kept.parameters(), lr=0.1))
    assert w.run.steps.tolist() == [0]


@pytest.mark.slow  # a process of its own, which imports torch
def test_a_model_saved_during_or_after_a_watch_loads_where_hookscope_is_not_installed(tmp_path: Path) -> None:
    model, files = small_model(), [str(tmp_path / "during.pt"), str(tmp_path / "after.pt")]
    with hs.watch(model):
        torch.save(model, files[0])
    torch.save(model, files[1])
    loaded = subprocess.run([sys.executable, "-c", LOAD_WITHOUT_HOOKSCOPE, *files], capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.split() == [model(BATCH).detach().double().sum().item().hex()] * 2


def test_the_state_dict_of_a_watched_model_is_the_same_and_loads() -> None:
    model, twin = small_model(), small_model()
    with hs.watch(model):
        assert list(model.state_dict()) == list(twin.state_dict())
        assert twin.load_state_dict(model.state_dict()) == model.load_state_dict(twin.state_dict())
        assert list(model.state_dict(keep_vars=True).values()) == list(model.parameters())


def test_an_optimizer_of_a_watched_model_is_pickled_and_copied_whole() -> None:
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters())
    with hs.watch(model, optimizer):
        step(model, optimizer)
        assert b"hookscope" not in pickle.dumps(optimizer)
        for twin in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
            assert str(twin.state_dict()) == str(optimizer.state_dict())


def test_a_copied_pair_of_model_and_optimizer_trains_outside_the_run() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer) as w:
        step(model, optimizer)
        twins = copy.deepcopy((model, optimizer))
        for _ in range(3):
            step(*twins)
        step(model, optimizer)
    assert w.run.steps.tolist() == [0, 1]
    assert [event for event in w.run.events if event["event"] == "skipped"] == []
    assert [row["micro"] for row in w.run.arrow().to_pylist() if row["kind"] == "loss"] == [0, 0]


def jit_nodes(model: nn.Module) -> list[str]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*deprecated.*", DeprecationWarning)
        traced: Any = torch.jit.trace(model, BATCH)  # type: ignore[no-untyped-call]
    return [node.kind() for node in traced.inlined_graph.nodes()]


def fx_nodes(model: nn.Module) -> list[str]:
    return [f"{node.op} {node.target}" for node in fx.symbolic_trace(nn.Sequential(model, nn.ReLU())).graph.nodes]


def export_nodes(model: nn.Module, *, strict: bool) -> list[str]:
    return [f"{node.op} {node.target}" for node in torch.export.export(model, (BATCH,), strict=strict).graph.nodes]


def operation_nodes(model: nn.Module) -> list[str]:
    return [f"{node.op} {node.target}" for node in make_fx(model)(BATCH).graph.nodes]


TRACERS: dict[str, Callable[[nn.Module], list[str]]] = {
    "jit.trace": jit_nodes,
    "fx.symbolic_trace": fx_nodes,
    "export": lambda model: export_nodes(model, strict=False),
    "make_fx": operation_nodes,
    "strict export": lambda model: export_nodes(model, strict=True),
}
SLOW = pytest.mark.slow  # torch imports its compiler


@pytest.mark.parametrize("tracer", [pytest.param(name, marks=SLOW if name == "strict export" else ()) for name in TRACERS])
def test_a_watched_model_is_traced_to_the_graph_of_an_unwatched_one(tracer: str) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unwatched = TRACERS[tracer](small_model())
    with hs.watch(model, optimizer, select=["**", "**:input"]) as w:
        first = TRACERS[tracer](model)
        step(model, optimizer)
        second = TRACERS[tracer](model)
        optimizer.zero_grad()
        step(model, optimizer)
    assert first == second == unwatched
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    assert w.run["3:output_grad"].steps.tolist() == [0, 1]
    assert all(isinstance(size, int) for site in w.run.sites for size in site.shape or ())


def test_a_traced_copy_reports_nothing() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer) as w:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*deprecated.*", DeprecationWarning)
            traced: Any = torch.jit.trace(model, BATCH)  # type: ignore[no-untyped-call]
        traced(BATCH)
        step(model, optimizer)
    assert w.run["0:output", "count"].values.tolist() == [24.0]
