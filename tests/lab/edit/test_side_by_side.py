"""Edits beside what else a training does: autocast, a watch, a gradient scaler, transforms, wrappers."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import hookscope as hs

from ._hand import Chain, assert_same, batch, run


@pytest.mark.parametrize(
    "op",
    [
        hs.zero().at(units=0),
        hs.scale(torch.rand(4, dtype=torch.float64)),
        hs.add(torch.ones(4)),
        hs.clamp(0, 1),
        hs.noise(0.5),
        hs.mean(torch.ones(4, dtype=torch.float64)),
        hs.patch(torch.ones(2, 4)),
        hs.project(torch.ones(4)),
        hs.replace(torch.Tensor.double),
        hs.clip_norm(0.5),
    ],
    ids=repr,
)
def test_under_autocast_and_in_low_precision_dtypes_stay(op: hs.Op) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    dtypes = []
    model[0].register_forward_hook(lambda m, a, out: dtypes.append(out.dtype))
    model[1].register_forward_hook(lambda m, a, out: dtypes.append(out.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, 4))
    plain = list(dtypes)
    assert plain[0] == torch.bfloat16
    dtypes.clear()
    with hs.edit(model, {"*": op, "0:output_grad": op}), torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, 4)).sum().backward()
    assert dtypes == plain
    half = nn.Linear(4, 4).to(torch.bfloat16)
    with hs.edit(half, {"(root)": op}):
        assert half(torch.randn(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_projection_keeps_its_precision_under_autocast() -> None:
    model, x = nn.Sequential(nn.LayerNorm(64, elementwise_affine=False)), torch.randn(8, 64)
    direction = torch.randn(64)
    with hs.edit(model, {"0": hs.project(direction)}), torch.autocast("cpu", torch.bfloat16):
        projected = model(x)
    assert projected.dtype == torch.float32
    assert (projected @ (direction / direction.norm())).abs().max() < 1e-5


@pytest.mark.parametrize("first", ["watch", "edit"])
def test_a_watch_sees_edited_values_and_gradients_whichever_was_there_first(first: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 4)
    ops = {"0:input": hs.scale(3.0), "0": hs.add(2.0), "0:output_grad": hs.scale(5.0), "2.weight:param_grad": hs.scale(0.0)}
    watch = hs.watch(model, optimizer, on_finding="ignore", select="**:input,output,output_grad,param_grad") if first == "watch" else None
    e = hs.edit(model, ops)
    watch = watch or hs.watch(model, optimizer, on_finding="ignore", select="**:input,output,output_grad,param_grad")
    model(x).pow(2).sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    output = model[0].weight.detach() @ (3 * x.T) + model[0].bias.detach()[:, None] + 2
    optimizer.step()
    watch.close()
    e.close()
    run_ = watch.run
    assert run_["0:output", "max"].values[0] == pytest.approx(output.max().item(), rel=1e-5)
    assert run_["0:input", "max"].values[0] == pytest.approx(3 * x.max().item(), rel=1e-5)
    assert run_["0.bias:param_grad", "l2"].values[0] == pytest.approx(grads[1].norm().item(), rel=1e-5)
    assert run_["2.weight:param_grad", "l2"].values[0] == 0
    # The gradient at the output of layer 0, summed over the batch, is that of its bias: as edited, five times what came.
    assert run_["0:output_grad", "mean"].values[0] * 8 * 6 == pytest.approx(grads[1].sum().item(), rel=1e-4)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_gradient_scaler_sees_through_a_linear_edit() -> None:
    def grads(scale: float) -> list[torch.Tensor]:
        model = Chain()
        with hs.edit(model, {"first:output_grad": hs.scale(0.1)}):
            (model(batch()).sum() * scale).backward()
        return [p.grad / scale for p in model.parameters()]

    for one, other in zip(grads(1.0), grads(1024.0), strict=True):
        torch.testing.assert_close(one, other)


def test_edits_act_within_transforms() -> None:
    model, x = nn.Sequential(nn.Linear(3, 2)), torch.randn(5, 3)
    params = dict(model.named_parameters())

    def loss(params: dict, row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, params, (row,)).sum()

    plain = torch.func.grad(loss)(params, x[0])
    with hs.edit(model, {"0": hs.scale(2.0).at(units=1)}):
        edited = torch.func.grad(loss)(params, x[0])
        rows = torch.func.vmap(torch.func.grad(loss), (None, 0))(params, x)
    assert torch.equal(edited["0.bias"], torch.tensor([1.0, 2.0]))
    assert torch.equal(edited["0.weight"][0], plain["0.weight"][0])
    torch.testing.assert_close(rows["0.weight"].sum(0), torch.stack([x.sum(0), 2 * x.sum(0)]))


def test_under_inference_mode_and_no_grad_values_are_edited_and_masks_made_there_do_no_harm() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    with hs.edit(model, {"0": hs.zero().at(units=0), "0:output_grad": hs.scale(2.0)}):
        with torch.inference_mode():
            assert not model(torch.randn(2, 3))[:, 0].any()
        with torch.no_grad():
            assert not model(torch.randn(2, 3))[:, 0].any()
        model(torch.randn(2, 3)).sum().backward()
    assert model[0].bias.grad.tolist() == [0.0, 4.0]  # of two samples
    with hs.edit(model, {"0": hs.zero().at(units=0, positions=1)}):
        with torch.inference_mode():
            assert not model(torch.randn(2, 4, 3))[:, 1, 0].any()
        model(torch.randn(2, 4, 3, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("wrap", ["parallel", "compiled"])
def test_names_are_those_of_the_users_model_under_wrappers(wrap: str) -> None:
    model, x = Chain(), batch()
    with hs.edit(model, {"first": hs.scale(0.5)}):
        want = model(x)
    wrapped = nn.DataParallel(model) if wrap == "parallel" else torch.compile(model, backend="eager")
    with hs.edit(wrapped, {"first": hs.scale(0.5)}):
        assert torch.equal(wrapped(x), want)


def test_the_fast_path_of_a_transformer_layer_gives_way_to_an_edit() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        plain = layer(x)
        with hs.edit(layer, {"linear2": hs.zero()}) as e:
            edited = layer(x)
        assert e.counts == {"linear2:output": 1}
        assert not torch.allclose(plain, edited)
        torch.testing.assert_close(layer(x), plain)


def test_an_edit_of_one_site_costs_one_call_a_forward_and_none_elsewhere() -> None:
    model, x = Chain(), batch()
    e = hs.edit(model, {"first": hs.scale(0.5)})
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == [0, 1, 0, 0]
    assert_same(run(model, x), run(model, x), exact=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        e.close()
