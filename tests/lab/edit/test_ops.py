"""Each op against the model that is edited by hand: outputs and all gradients, in float64."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import hookscope as hs

from ._hand import Chain, assert_same, batch, run

VECTOR = batch(6, seed=3)
OTHER = batch(5, 6, seed=4)
DIRECTIONS = batch(2, 6, seed=5)


def project_out(h: torch.Tensor) -> torch.Tensor:
    basis, _ = torch.linalg.qr(DIRECTIONS.T)
    return h - h @ basis @ basis.T


def without_nan(h: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isfinite(h), h, 0.0)


CASES: dict[str, tuple[hs.Op, Callable[[torch.Tensor], torch.Tensor]]] = {
    "zero": (hs.zero(), torch.zeros_like),
    "scale": (hs.scale(0.5), lambda h: 0.5 * h),
    "scale by a vector": (hs.scale(VECTOR), lambda h: h * VECTOR),
    "add": (hs.add(VECTOR), lambda h: h + VECTOR),
    "add a number": (hs.add(2), lambda h: h + 2),
    "clamp": (hs.clamp(-0.2, 0.3), lambda h: h.clamp(-0.2, 0.3)),
    "clamp on one side": (hs.clamp(hi=0.3), lambda h: torch.minimum(h, torch.tensor(0.3, dtype=torch.float64))),
    "mean": (hs.mean(VECTOR), VECTOR.expand_as),
    "mean from numpy": (hs.mean(VECTOR.numpy()), VECTOR.expand_as),
    "patch": (hs.patch(OTHER), lambda h: OTHER),
    "swap": (hs.swap([4, 3, 2, 1, 0]), lambda h: h.flip(0)),
    "swap of units": (hs.swap([1, 0, 2, 3, 5, 4], dim=1), lambda h: h[:, [1, 0, 2, 3, 5, 4]]),
    "project out": (hs.project(DIRECTIONS), project_out),
    "project onto": (hs.project(DIRECTIONS, onto=True), lambda h: h - project_out(h)),
    "project out what is dependent": (hs.project(torch.cat([DIRECTIONS, DIRECTIONS.sum(0, keepdim=True)])), project_out),
    "replace": (hs.replace(torch.sin), torch.sin),
    "clip": (hs.clip_norm(1.0), lambda h: h / h.norm()),
    "clip what is small": (hs.clip_norm(1e6), lambda h: h),
    "zero what is not finite": (hs.zero_nonfinite(), without_nan),
    "zero a unit": (hs.zero().at(units=2), lambda h: torch.cat([h[:, :2], 0 * h[:, 2:3], h[:, 3:]], 1)),
    "scale units": (hs.scale(3.0).at(units=slice(1, 3)), lambda h: torch.cat([h[:, :1], 3 * h[:, 1:3], h[:, 3:]], 1)),
    "clip some units": (hs.clip_norm(0.1).at(units=[0, 1]), lambda h: torch.cat([h[:, :2] * 0.1 / h[:, :2].norm(), h[:, 2:]], 1)),
}


@pytest.mark.parametrize("case", CASES)
def test_an_op_on_an_output_equals_the_same_arithmetic_written_into_the_model(case: str) -> None:
    op, by_hand = CASES[case]
    model, hand, x = Chain(), Chain(), batch()
    hand.hand = by_hand
    with hs.edit(model, {"first": op}):
        edited = run(model, x)
    assert_same(edited, run(hand, x))


@pytest.mark.parametrize("case", CASES)
def test_an_op_on_an_input_equals_the_same_arithmetic_written_into_the_model(case: str) -> None:
    op, by_hand = CASES[case]
    model, hand, x = Chain(), Chain(), batch()
    hand.before = by_hand
    with hs.edit(model, {"second:input": op}):
        edited = run(model, x)
    assert_same(edited, run(hand, x))


def test_ops_at_one_site_act_in_the_order_written() -> None:
    model, hand, x = Chain(), Chain(), batch()
    hand.hand = lambda h: ((h + VECTOR) * 0.5).clamp(-0.2, 0.2)
    with hs.edit(model, {"first": [hs.add(VECTOR), hs.scale(0.5)], nn.Linear: hs.clamp(-0.2, 0.2).at(calls=0)}):
        edited = run(model, x)
    want = run(hand, x)
    torch.testing.assert_close(edited["output"], want["output"].clamp(-0.2, 0.2), rtol=1e-12, atol=1e-12)


def test_edits_act_in_the_order_in_which_they_were_made_whichever_is_closed_first() -> None:
    model, x = Chain(), batch()
    first = model.first(x)
    with hs.edit(model, {"first": hs.add(1.0)}), hs.edit(model, {"first": hs.scale(2.0)}), hs.edit(model, {"first": hs.add(3.0)}):
        assert torch.equal(model.first(x), (first + 1) * 2 + 3)
    a, b = hs.edit(model, {"first": hs.add(1.0)}), hs.edit(model, {"first": hs.scale(2.0)})
    model.first(x)
    a.close()
    assert torch.equal(model.first(x), first * 2)
    b.close()
    assert torch.equal(model.first(x), first)


def test_a_steering_vector_that_requires_grad_receives_its_gradient() -> None:
    model, x = Chain(), batch()
    vector = VECTOR.clone().requires_grad_()
    with hs.edit(model, {"second:input": hs.add(vector)}):
        model(x).sum().backward()
    torch.testing.assert_close(vector.grad, 5 * model.second.weight.sum(0))


def test_a_patch_hands_gradients_to_its_source_and_none_to_what_it_replaces() -> None:
    model, source = Chain(), OTHER.clone().requires_grad_()
    with hs.edit(model, {"norm": hs.patch(source)}):
        model(batch()).sum().backward()
    torch.testing.assert_close(source.grad, model.second.weight.sum(0).expand(5, 6))
    assert model.first.weight.grad is None or not model.first.weight.grad.any()


def test_gradients_reach_nothing_through_a_nan_that_was_zeroed() -> None:
    x = torch.tensor([[1.0, float("nan"), float("inf")]], requires_grad=True)
    model = nn.Sequential(nn.Identity(), nn.Identity())
    with hs.edit(model, {"0": hs.zero_nonfinite()}):
        y = model(x)
    y.sum().backward()
    assert y.tolist() == [[1.0, 0.0, 0.0]]
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0, 0.0, 0.0]]


def test_clipping_a_tensor_of_zeros_gives_finite_gradients() -> None:
    x = torch.zeros(3, requires_grad=True)
    model = nn.Sequential(nn.Identity())
    with hs.edit(model, {"0": hs.clip_norm(1.0)}):
        model(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


def test_what_the_user_gave_and_what_autograd_saved_is_not_written_to() -> None:
    model, x = nn.Sequential(nn.Sigmoid(), nn.Identity()), batch().requires_grad_()  # sigmoid saves its output
    seen = []
    handle = model[0].register_forward_hook(lambda m, args, out: seen.extend([args[0], out]))
    ops = [hs.scale(0.5), hs.add(1.0), hs.clamp(0, 1), hs.noise(0.1), hs.swap([1, 0, 2, 3, 4]), hs.zero_nonfinite(), hs.clip_norm(0.1)]
    ops += [op.at(units=0) for op in (*ops, hs.zero(), hs.patch(torch.ones(5, 4)), hs.mean(torch.ones(4)), hs.replace(torch.sin))]
    grads = []
    with hs.edit(model, {"0:input": ops, "0": ops, "1:input": ops, "0:output_grad": ops}):
        y = model(x)
        seen[1].register_hook(lambda grad: grads.append((grad, grad._version)))
        y.backward(came := torch.ones_like(y))
    handle.remove()
    assert torch.equal(x.detach(), batch())
    assert [tensor._version for tensor in (x, *seen)] == [0] * (1 + len(seen))
    assert torch.equal(came, torch.ones_like(y))
    assert [grad._version for grad, version in grads] == [0]


def test_a_model_that_writes_into_what_it_gets_does_not_write_into_what_the_user_gave() -> None:
    model, x = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True)), torch.full((2, 3), 5.0)
    given = torch.tensor([[-1.0, 2.0, -3.0]] * 2)
    for op in (hs.patch(given), hs.patch([given]), hs.mean(given[0]), hs.add(given), hs.scale(given), hs.patch(given).at(units=0)):
        with hs.edit(model, {"0": op}), torch.no_grad():
            model(x.clone())
        assert given.tolist() == [[-1.0, 2.0, -3.0]] * 2


@dataclass(frozen=True, repr=False)
class Rotate(hs.Op):
    by: int

    def edited(self, value: torch.Tensor, place: object) -> torch.Tensor:
        return value.roll(self.by, -1)


def test_an_op_of_ones_own_is_narrowed_and_shown_as_any_other() -> None:
    model, x = nn.Sequential(nn.Identity()), torch.tensor([[1.0, 2.0, 3.0]])
    with hs.edit(model, {"0": Rotate(1).at(units=[0, 1])}):
        assert model(x).tolist() == [[3.0, 1.0, 3.0]]
    assert repr(Rotate(1).at(units=0)) == "hs.rotate(1).at(units=0)"


def test_a_mapping_is_looked_up_by_name_by_path_and_by_site() -> None:
    model, x = Chain(), batch()
    [site] = hs.sites(model, "first:output")
    for key in ("first:output", "first", site):
        with hs.edit(model, {"first": hs.mean({key: VECTOR, "second": torch.zeros(3)})}):
            assert torch.equal(model.first(x), VECTOR.expand(5, 6))
        with hs.edit(model, {"first": hs.patch({key: OTHER})}):
            assert torch.equal(model.first(x), OTHER)


def test_a_mapping_without_the_site_is_an_error_that_names_what_is_near() -> None:
    model = Chain()
    with pytest.raises(hs.UsageError, match=r"mean\(\.\.\.\) holds nothing for first:output: did you mean 'frist:output'\?"):
        hs.edit(model, {"first": hs.mean({"frist:output": VECTOR})})
    with pytest.raises(hs.UsageError, match=r"patch\(\.\.\.\) holds nothing for first:output: it is empty"):
        hs.edit(model, {"first": hs.patch({})})


def test_a_list_to_patch_from_has_a_value_for_each_call() -> None:
    layer = nn.Identity()
    model = nn.Sequential(layer, layer)
    values = [torch.full((2,), 1.0), torch.full((2,), 2.0)]
    seen = []
    with hs.edit(model, {"0": hs.patch(values)}):
        handle = layer.register_forward_hook(lambda m, a, out: seen.append(out[0].item()))
        model(torch.zeros(2))
        model(torch.zeros(2))
    handle.remove()
    assert seen == [1.0, 2.0, 1.0, 2.0]
    e = hs.edit(model, {"0": hs.patch(values[:1])})
    with pytest.raises(hs.UsageError, match=r"holds the calls 0 of 0:output and not call 1: narrow it by at\(calls=\.\.\.\)"):
        model(torch.zeros(2))
    assert e.closed


def test_noise_has_its_standard_deviation_and_leaves_the_programs_random_state_alone() -> None:
    model, x = nn.Sequential(nn.Identity()), torch.zeros(200, 500, dtype=torch.float64)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with hs.edit(model, {"0": hs.noise(0.5, seed=1)}):
        first, second = model(x), model(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert abs(first.std().item() - 0.5) < 0.01
    assert abs(first.mean().item()) < 0.01
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1].item()) < 0.02
    with hs.edit(model, {"0": hs.noise(0.5, seed=1)}):
        assert torch.equal(model(x), first)
    with hs.edit(model, {"0": hs.noise(0.5, seed=2)}):
        assert not torch.equal(model(x), first)


def test_an_op_is_data_that_pickles_compares_and_shows_itself() -> None:
    import pickle

    ops = [hs.zero(), hs.scale(0.5), hs.add(VECTOR), hs.clamp(0, 6), hs.noise(0.1, seed=4), hs.patch({"a": VECTOR}), hs.mean(VECTOR)]
    ops += [hs.swap([1, 0]), hs.project(VECTOR), hs.replace(torch.relu), hs.clip_norm(1), hs.zero_nonfinite()]
    for op in [op.at(units=[1, 2], positions=-1, calls=slice(0, 3), steps=0, axis=1) for op in ops]:
        again = pickle.loads(pickle.dumps(op))
        assert repr(again) == repr(op)
        assert again.where == op.where
    assert repr(hs.clamp(0, 6).at(units=[0, 2], positions=-1)) == "hs.clamp(0, 6).at(units=[0, 2], positions=-1)"
    assert repr(hs.add(VECTOR)) == "hs.add(tensor[6])"
    assert repr(hs.replace(operator.neg)) == "hs.replace(neg)"
    assert hs.clamp(0, 6).at(units=1) == hs.clamp(0, 6).at(units=[1]) != hs.clamp(0, 6)
