"""Compiled autograd beside an eager model: gradients are read as ever, and torch has nothing to say about our hooks."""

from __future__ import annotations

import warnings

import torch
from torch import nn

import hookscope as hs


def train(*, compiled: bool) -> tuple[list[torch.Tensor], hs.Watch]:
    torch.compiler.reset()
    torch._dynamo.utils.warn_once_cache.clear()
    if compiled:  # what is compiled for the first time under a watch, torch warns of once
        torch.compile(torch.sin, backend="eager")(torch.ones(2))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with hs.watch(model, optimizer, every=1, on_finding="ignore") as watch:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 4).double()).square().mean()
            if compiled:
                with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
                    loss.backward()
            else:
                loss.backward()
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()], watch


def test_an_eager_model_under_it_is_read_as_ever_and_where_something_was_compiled_without_a_warning() -> None:
    weights, plain = train(compiled=False)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        same, watch = train(compiled=True)
    assert [str(each.message) for each in heard if "trace the builtin" in str(each.message)] == []
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))
    assert not [event for event in watch.run.events if event["event"] == "switched_off"]
    for site in ("0:output_grad", "1:output_grad", "2:output_grad", "0.weight:param_grad"):
        for quantity in ("count", "mean", "l2"):
            assert watch.run[site, quantity].values.tolist() == plain.run[site, quantity].values.tolist()
