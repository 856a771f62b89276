"""Sites with a label can be asked for by name, before anything has run."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope import SelectionError


def net() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, *, scale: float = 1.0) -> list[list[torch.Tensor]]:
    """Two steps of two micro-batches, clipped; what each backward alone gives to the first weight, in float64."""
    weight = model[0].weight  # type: ignore[index]
    increments = []
    for _ in range(2):
        optimizer.zero_grad()
        before, found = torch.zeros_like(weight, dtype=torch.float64), []
        for _ in range(2):
            model(torch.randn(5, 2)).pow(2).mean().mul(scale).backward()
            found.append(weight.grad.double() - before)
            before = weight.grad.double()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        increments.append(found)
    return increments


def test_the_gradient_of_each_micro_batch_alone_is_read_where_it_is_asked_for() -> None:
    model, optimizer = net()
    with hs.watch(model, optimizer, select=["**", "0.weight:param_grad/micro"]) as w:
        expected = train(model, optimizer)
    rows, site = w.run.rows(), w.run.sites.select("0.weight:param_grad/micro")[0]
    mine = rows.site == site.id
    assert list(zip(rows.step[mine].tolist(), rows.micro[mine].tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for stats, increment in zip(rows.stats[mine], [g for step in expected for g in step], strict=True):
        assert stats[4] == pytest.approx(float(increment.sum()), rel=1e-5, abs=1e-8)
        assert stats[5] == pytest.approx(float(increment.square().sum()), rel=1e-5)
    assert not w.run.sites.select("*:param_grad/micro")[1:]


def test_nobody_pays_for_micro_batch_gradients_unasked_and_no_hook_is_left() -> None:
    model, optimizer = net()
    with hs.watch(model, optimizer) as w:
        train(model, optimizer)
        assert not any(p._backward_hooks for p in model.parameters())
    assert not [site for site in w.run.sites if site.label == "micro"]
    with hs.watch(model, optimizer, select="**:param_grad/micro"):
        assert all(p._backward_hooks for p in model.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pickle.loads(pickle.dumps(model))
    assert not any(p._backward_hooks for p in model.parameters())


def test_gradients_before_clipping_can_be_all_that_is_recorded() -> None:
    model, optimizer = net()
    with hs.watch(model, optimizer, select="**:param_grad/preclip") as w:
        train(model, optimizer)
    run = w.run
    assert {site.name for site in run.sites if site.kind == "param_grad"} == {
        f"{path}:param_grad/preclip" for path in ("0.weight", "0.bias", "2.weight", "2.bias")
    }
    before = sum(run[f"{path}:param_grad/preclip", "l2"].values ** 2 for path in ("0.weight", "0.bias", "2.weight", "2.bias")) ** 0.5
    assert run["clip"].values == pytest.approx(0.01 / (before + 1e-6), rel=1e-5)  # as torch documents clip_grad_norm_


def test_evaluations_can_be_all_that_is_recorded() -> None:
    model, optimizer = net()
    with hs.watch(model, optimizer, select="*:output/eval") as w:
        train(model, optimizer)
        with torch.no_grad():
            model(torch.ones(7, 2))
    assert w.run["2:output/eval", "count"].values.tolist() == [7.0]


def test_an_unknown_label_is_refused() -> None:
    with pytest.raises(SelectionError, match="no site matches"):
        hs.watch(net()[0], select="**:param_grad/mikro")
