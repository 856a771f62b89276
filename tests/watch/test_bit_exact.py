"""A watched training and an unwatched one end with the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._core._select import select
from hookscope._record import Meta, RunWriter
from hookscope._watch import Settings, discover

from ._bits import STEPS, Bits, differing, train
from ._programs import PROGRAMS, Make, Training
from ._transformers import TRANSFORMERS

pytestmark = pytest.mark.filterwarnings("ignore::hookscope.FindingWarning")  # some of the programs are unwell, as they may be

QUICK = 3  # programs that the quick tests run, too
WAYS: dict[str, dict[str, Any]] = {"default": {}, "every element": {"updates": "full"}, "every third step": {"every": 3}}


@cache
def unwatched(name: str) -> Bits:
    return train((PROGRAMS | TRANSFORMERS)[name])


def watched(make: Make, **settings: Any) -> tuple[Bits, hs.Run]:
    runs = []

    @contextmanager
    def observer(training: Training) -> Iterator[None]:
        with hs.watch(training.model, training.optimizers, **settings) as w:
            yield
        runs.append(w.run)

    bits = train(make, observer)
    (run,) = runs
    return bits, run


def assert_it_watched(run: hs.Run, every: int = 1) -> None:
    """A part that was switched off would change nothing, too."""
    assert run.steps.tolist() == list(range(0, STEPS, every))
    assert [event for event in run.events if event["event"] == "switched_off"] == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [name if i < QUICK else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(PROGRAMS)])
def test_a_watched_training_ends_with_the_bits_of_an_unwatched_one(name: str, way: str) -> None:
    bits, run = watched(PROGRAMS[name], **WAYS[way])
    assert differing(bits, unwatched(name)) == []
    assert_it_watched(run, WAYS[way].get("every", 1))
    assert {"output", "output_grad", "param", "param_grad", "update", "loss"} <= {site.kind for site in run.sites}


@pytest.mark.slow  # importing transformers takes seconds
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_watched_transformers_model_ends_with_the_bits_of_an_unwatched_one(name: str, way: str) -> None:
    bits, run = watched(TRANSFORMERS[name], **WAYS[way])
    assert differing(bits, unwatched(name)) == []
    assert_it_watched(run, WAYS[way].get("every", 1))


@pytest.mark.parametrize("name", ["post-norm", "fp16 scaler"])
def test_writing_to_disk_changes_no_bit(name: str, tmp_path: Path) -> None:
    bits, run = watched(PROGRAMS[name], to=tmp_path / "run")
    assert differing(bits, unwatched(name)) == []
    assert_it_watched(run)


@pytest.mark.parametrize("name", ["cnn", "post-norm", "re-entrant checkpoint", "parametrized"])
def test_reading_every_input_changes_no_bit(name: str) -> None:
    bits, run = watched(PROGRAMS[name], select=["**:input", "**:output_grad"])
    assert differing(bits, unwatched(name)) == []
    assert_it_watched(run)
    assert sum(site.kind == "input" for site in run.sites) > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_reading_by_torch_operations_changes_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, or where the kernel was not built."""
    monkeypatch.setattr("hookscope._stats._reduce._CODES", {})
    bits, run = watched(PROGRAMS[name])
    assert differing(bits, unwatched(name)) == []
    assert_it_watched(run)


@pytest.mark.parametrize("name", ["post-norm", "gan in one holder", "checkpoint"])
def test_two_watches_at_once_change_no_bit(name: str) -> None:
    @contextmanager
    def observer(training: Training) -> Iterator[None]:
        with hs.watch(training.model), hs.watch(training.model, updates="full"):
            yield

    assert differing(train(PROGRAMS[name], observer), unwatched(name)) == []


def test_the_tutorial_monitor_changes_no_bit() -> None:
    def observer(training: Training) -> hs.GradientMonitor:
        return hs.GradientMonitor(training.model, grad_norm_threshold=1e9)

    assert differing(train(PROGRAMS["post-norm"], observer), unwatched("post-norm")) == []


@pytest.mark.parametrize("name", ["cnn", "gan of two models", "checkpoint", "accumulation"])
def test_discovering_the_models_changes_no_bit(name: str, tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, Meta())

    @contextmanager
    def observer(training: Training) -> Iterator[None]:
        found = discover(Settings(select("**")), writer)
        yield
        found.close()

    assert differing(train(PROGRAMS[name], observer), unwatched(name)) == []
    assert_it_watched(hs.Run(tmp_path))


def test_a_training_runs_twice_to_the_same_bits() -> None:
    """Otherwise equality above would be luck."""
    assert [name for name in PROGRAMS if differing(train(PROGRAMS[name]), unwatched(name))] == []


def test_the_scaler_skips_a_step_in_the_program_that_is_to_show_it() -> None:
    _, run = watched(PROGRAMS["fp16 scaler"])
    assert [event["step"] for event in run.events if event["event"] == "skipped"] == [2]


def test_full_backward_hooks_would_be_noticed() -> None:
    """They sum the gradients of q, k and v before they add the residual's."""

    @contextmanager
    def observer(training: Training) -> Iterator[None]:
        for block in training.model[1:]:
            block.attention.register_full_backward_hook(lambda *_: None)
        yield

    assert differing(train(PROGRAMS["post-norm"], observer), unwatched("post-norm")) != []


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_random_number_drawn_in_a_forward_would_be_noticed(name: str) -> None:
    @contextmanager
    def observer(training: Training) -> Iterator[None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            torch.rand(())

        for model in training.models:
            for module in model.modules():
                module.register_forward_hook(hook)
        yield

    assert "rng of torch" in differing(train(PROGRAMS[name], observer), unwatched(name))
