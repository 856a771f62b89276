"""Numbers of a step of which there may be several: each optimizer and each scaler has its own."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

import hookscope as hs

from ._small import batch, mlp

STEPS = 3


def norm(*tensors: torch.Tensor | None) -> float:
    return float(torch.cat([t.detach().double().flatten() for t in tensors if t is not None]).norm())


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def names(run: hs.Run) -> set[str]:
    return {site.name for site in run.sites if site.kind == "scalar"}


def scaler(scale: float) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def test_of_two_optimizers_each_has_its_own_clipping() -> None:
    models, scaling, factors = (mlp(), mlp()), scaler(512.0), []
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    with hs.watch(list(models), optimizers) as w:
        for number in range(STEPS):
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaling.scale(sum(model(batch(number)).square().mean() for model in models)).backward()
            scaling.unscale_(optimizers[0])
            before = norm(*gradients(models[0]))
            nn.utils.clip_grad_norm_(models[0].parameters(), 0.05)
            factors.append(norm(*gradients(models[0])) / before)
            for optimizer in optimizers:
                scaling.step(optimizer)
            scaling.update()
    assert max(factors) < 0.9
    assert w.run["clip"].values.tolist() == pytest.approx(factors, rel=1e-5)
    assert w.run["clip.1"].values.tolist() == [1.0] * STEPS


def test_of_two_scalers_in_one_step_each_is_told_and_taken_out_of_its_own_gradients() -> None:
    models, scalers = (mlp(), mlp()), (scaler(64.0), scaler(1024.0))
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    used: list[list[float]] = [[], []]
    with hs.watch(list(models), optimizers) as w:
        for number in range(STEPS):
            for model, optimizer, scaling in zip(models, optimizers, scalers, strict=True):
                optimizer.zero_grad()
                scaling.scale(model(batch(number)).square().mean()).backward()
            for optimizer, scaling, norms in zip(optimizers, scalers, used, strict=True):
                scaling.unscale_(optimizer)
                norms.append(norm(optimizer.param_groups[0]["params"][0].grad))
                scaling.step(optimizer)
                scaling.update()
    assert w.run["loss_scale"].values.tolist() == [64.0] * STEPS
    assert w.run["loss_scale.1"].values.tolist() == [1024.0] * STEPS
    assert [w.run[name].values.tolist() for name in ("clip", "clip.1")] == [[1.0] * STEPS] * 2
    assert not any("preclip" in site.name for site in w.run.sites)
    for name, norms in zip(("Sequential", "Sequential2"), used, strict=True):
        assert w.run[f"{name}.0.weight:param_grad", "l2"].values.tolist() == pytest.approx(norms, rel=1e-6)


def noise(model: nn.Module) -> None:
    for grad in gradients(model):
        grad.add_(torch.linspace(-0.3, 0.2, grad.numel()).reshape(grad.shape))


def first_layer(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(list(model.parameters())[:2], 0.01)


@pytest.mark.parametrize("change", [noise, first_layer])
def test_gradients_that_were_changed_otherwise_than_by_value_have_no_limit(change: object) -> None:
    assert callable(change)
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer) as w:
        model(batch(0)).square().mean().backward()
        before = norm(*gradients(model))
        change(model)
        after = norm(*gradients(model))
        optimizer.step()
    assert w.run["clip"].values.tolist() == pytest.approx([after / before], rel=1e-5)
    assert "clip_value" not in names(w.run)


def test_gradients_clipped_by_value_have_the_limit() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer) as w:
        model(batch(0)).square().mean().backward()
        assert min(grad.abs().max() for grad in gradients(model)) < 0.2 < max(grad.abs().max() for grad in gradients(model))
        nn.utils.clip_grad_value_(model.parameters(), 0.2)
        optimizer.step()
    assert w.run["clip_value"].values.tolist() == pytest.approx([0.2])


def test_an_optimizer_that_takes_the_place_of_a_dead_one_takes_its_names() -> None:
    model = mlp()
    with hs.watch(model) as w:
        for number in range(STEPS):
            optimizer = SGD(model.parameters(), lr=0.1 * (number + 1))
            optimizer.zero_grad()
            model(batch(number)).square().mean().backward()
            optimizer.step()
            del optimizer
            gc.collect()
    assert names(w.run) == {"clip", "lr", "seconds"}
    assert w.run["lr"].values.tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_a_gradient_that_no_optimizer_takes_has_no_scale_left_in_it() -> None:
    model, scaling, expected = mlp(), scaler(64.0), []
    optimizer = SGD(model[0].parameters(), lr=0.1)
    with hs.watch(model, optimizer) as w:
        for number in range(STEPS):
            model.zero_grad()
            scaling.scale(model(batch(number)).square().mean()).backward()
            expected.append(norm(model[2].weight.grad) / 64)
            scaling.step(optimizer)
            scaling.update()
    np.testing.assert_allclose(w.run["2.weight:param_grad", "l2"].values, expected, rtol=1e-6)
    assert w.run["clip"].values.tolist() == [1.0] * STEPS


@pytest.mark.parametrize("rate", [0.01, torch.tensor(0.01)])
def test_the_share_of_weight_decay_is_told_for_a_rate_of_any_kind(rate: float | torch.Tensor) -> None:
    model, expected = mlp(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    with hs.watch(model, optimizer, updates="full") as w:
        for number in range(STEPS):
            optimizer.zero_grad()
            model(batch(number)).square().mean().backward()
            before = [p.detach().double().clone() for p in model.parameters()]
            optimizer.step()
            changes = [p.detach().double() - old for p, old in zip(model.parameters(), before, strict=True)]
            expected.append(0.01 * 0.1 * norm(*before) / norm(*changes))
    assert w.run["decay_share"].values.tolist() == pytest.approx(expected, rel=1e-5)
