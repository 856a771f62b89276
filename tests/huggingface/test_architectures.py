"""Architectures of the transformers library, watched: nothing is changed, nothing is overlooked, nothing is wrong."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import hookscope as hs

from ._bits import Bits, differing, left_behind
from ._models import SUBJECTS

STEPS = 3
pytestmark = pytest.mark.slow  # importing transformers takes seconds


def start(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = SUBJECTS[name]().model.train()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(name: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    batch = SUBJECTS[name]().batch
    torch.manual_seed(6)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(**batch()).loss.backward()
        optimizer.step()


@cache
def watched(name: str) -> tuple[Bits, hs.Run]:
    model, optimizer = start(name)
    with hs.watch(model, optimizer) as w:
        train(name, model, optimizer)
    return left_behind(model, optimizer), w.run


@cache
def unwatched(name: str) -> tuple[Bits, set[str], set[str]]:
    """What it leaves; its parameters that have got a gradient; its leaf modules that have returned a tensor."""
    model, optimizer = start(name)
    ran = set[str]()
    for path, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _m, _args, output, path=path: ran.update([path] if _tensors(output) else []))
    train(name, model, optimizer)
    return left_behind(model, optimizer), {path for path, p in model.named_parameters() if p.grad is not None}, ran


def _tensors(output: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def steps_of(run: hs.Run, kind: str) -> dict[str, list[int]]:
    """Path -> the steps in which it has rows of a kind."""
    return {site.path: run[site, "count"].steps.tolist() for site in run.sites if site.kind == kind and not site.label}


@pytest.mark.parametrize("name", SUBJECTS)
def test_it_ends_with_the_bits_of_an_unwatched_training(name: str) -> None:
    bits, run = watched(name)
    assert differing(bits, unwatched(name)[0]) == []
    assert [event for event in run.events if event["event"] == "switched_off"] == []


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_trained_parameter_has_its_gradient_and_its_update_recorded_in_every_step(name: str) -> None:
    _, run = watched(name)
    _, trained, _ = unwatched(name)
    for kind in ("param_grad", "update"):
        got = steps_of(run, kind)
        assert {path: got.get(path) for path in trained} == {path: [*range(STEPS)] for path in trained}


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_last_gradients_have_the_norms_that_torch_finds(name: str) -> None:
    model, optimizer = start(name)
    train(name, model, optimizer)
    found = {path: torch.linalg.vector_norm(p.grad.double()).item() for path, p in model.named_parameters() if p.grad is not None}
    _, run = watched(name)
    assert {path: run[f"{path}:param_grad", "l2"].values[-1] for path in found} == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_leaf_module_that_ran_has_its_output_recorded_in_every_step(name: str) -> None:
    _, run = watched(name)
    _, _, ran = unwatched(name)
    got = steps_of(run, "output")
    assert ran
    assert {path: got.get(path) for path in ran} == {path: [*range(STEPS)] for path in ran}


@pytest.mark.parametrize("name", SUBJECTS)
def test_nothing_is_found_in_a_model_that_is_well(name: str) -> None:
    _, run = watched(name)
    assert [(found.rule, found.message) for found in hs.diagnose(run) if found.severity != "info"] == []


CHECKPOINTED = [(name, reentrant) for name in SUBJECTS for reentrant in (True, False) if name != "resnet"]
CHECKPOINTED.remove(("mixtral", True))  # its loss for the router is made from logits that have no graph then: another training


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")  # its new name is younger than the releases we support
@pytest.mark.parametrize(("name", "reentrant"), CHECKPOINTED)
def test_gradient_checkpointing_changes_no_number_that_is_recorded(name: str, reentrant: bool) -> None:
    model, optimizer = start(name)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    with hs.watch(model, optimizer) as w:
        train(name, model, optimizer)
    assert norms(w.run) == pytest.approx(norms(watched(name)[1]), rel=1e-5, abs=1e-12)


def norms(run: hs.Run) -> dict[tuple[str, int], float]:
    """Those of hidden states, their gradients, and parameters' gradients.

    Of what T5's blocks return besides, the bias of its positions, a re-entrant checkpoint gives each block's share of the gradient alone.
    """
    sites = [s for s in run.sites if s.kind in ("output", "param_grad") or (s.kind == "output_grad" and s.output_path in ("", "[0]"))]
    return {(site.name, step): value for site in sites for step, value in zip(*run[site, "l2"], strict=True)}
