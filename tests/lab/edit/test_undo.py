"""An edit leaves nothing behind: not after it is closed, not after anything that fails, not in a copy of the model."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import hookscope as hs

from ._hand import Chain, assert_same, batch, run


def hooks(model: nn.Module) -> list[object]:
    """Everything that hangs on the model: hooks of modules and parameters, in their order."""
    kinds = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks_with_kwargs",
    )
    held: list[object] = [list(getattr(module, kind).items()) for module in model.modules() for kind in kinds]
    held += [dict(p._backward_hooks or {}) for p in model.parameters()]
    return [*held, *(sorted(module.__dict__) for module in model.modules())]


class Net(nn.Module):
    """A few layers of different kinds, one of them called twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(2, 4, 1)
        self.rnn = nn.GRU(4, 4, batch_first=True)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.LayerNorm(4)
        self.shared = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv(x).transpose(1, 2)
        h, _ = self.rnn(h)
        h = h + self.shared(torch.relu(self.shared(self.norm(self.drop(h)))))
        return self.head(h)


SITES = ["conv", "rnn", "rnn:output[1]", "norm", "shared", "shared@1", "head", "(root)", "(root):input", "**:output_grad", "head:input"]
SITES += ["shared:output_grad", "conv.weight:param_grad", "**:param_grad", "norm:input,output", "**.weight:param_grad", "*:output"]
OPS = st.sampled_from(
    [hs.zero(), hs.scale(0.5), hs.add(0.1), hs.clamp(-1, 1), hs.noise(0.1), hs.clip_norm(1.0), hs.zero_nonfinite(), hs.replace(torch.tanh)]
)
NARROWED = st.builds(
    lambda op, units, calls, steps: op.at(units=units, calls=calls, steps=steps),
    OPS,
    st.sampled_from([None, 0, [0, -1], slice(0, 1)]),
    st.sampled_from([None, 0, [0, 1]]),
    st.sampled_from([None, 0, slice(1, None)]),
)
EDITS = st.dictionaries(st.sampled_from(SITES), st.one_of(OPS, st.lists(NARROWED, min_size=1, max_size=3)), min_size=1, max_size=5)


def once(model: nn.Module) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return run(model, batch(3, 2, 5))


NET = Net()
PLAIN = once(NET)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(EDITS, st.integers(0, 9)), min_size=1, max_size=3))
def test_any_composition_of_edits_is_undone_to_the_bit_in_whatever_order(several: list[tuple[dict, int]]) -> None:
    before = hooks(NET)
    with warnings.catch_warnings(), ExitStack() as undo:
        warnings.simplefilter("ignore", hs.HookscopeWarning)  # of what never acted
        edits = [(undo.enter_context(hs.edit(NET, edits)), turn) for edits, turn in several]
        for _ in range(2):
            once(NET)
        for e, _ in sorted(edits, key=lambda pair: pair[1]):
            e.close()
    assert hooks(NET) == before
    assert_same(once(NET), PLAIN, exact=True)


class Boom(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, Boom])
def test_whatever_is_raised_within_the_edit_undoes_it_without_a_warning(error: type[BaseException]) -> None:
    model = Chain()
    before, plain = hooks(model), run(model, batch())
    with pytest.raises(error), hs.edit(model, {"first": hs.zero(), "**:param_grad": hs.zero()}):
        raise error
    assert hooks(model) == before
    assert_same(run(model, batch()), plain, exact=True)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", ["input", "output", "output_grad", "param_grad"])
def test_a_function_that_raises_takes_the_edit_off_before_the_program_sees_it(error: type[BaseException], kind: str) -> None:
    def fail(_: torch.Tensor) -> torch.Tensor:
        raise error("mine")

    model = Chain()
    before = hooks(model)
    e = hs.edit(model, {"second": hs.scale(0.5), f"first:{kind}": hs.replace(fail)})
    with pytest.raises(error, match="mine"):
        run(model, batch())
    assert e.closed
    assert hooks(model) == before
    e.close()


@pytest.mark.parametrize("at", range(6))
def test_a_hook_that_cannot_be_placed_takes_off_those_before_it(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Chain()
    before = hooks(model)
    placed: Iterator[int] = iter(range(100))

    def failing(original):
        def register(self, *args, **kwargs):
            if next(placed) == at:
                raise KeyboardInterrupt
            return original(self, *args, **kwargs)

        return register

    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, "register_forward_hook", failing(nn.Module.register_forward_hook))
        patch.setattr(nn.Module, "register_forward_pre_hook", failing(nn.Module.register_forward_pre_hook))
        patch.setattr(torch.Tensor, "register_hook", failing(torch.Tensor.register_hook))
        with pytest.raises(KeyboardInterrupt):
            hs.edit(model, {"first:input,output": hs.noise(1.0), "second": hs.zero(), "**:param_grad": hs.zero()})
    assert hooks(model) == before


def test_hooks_of_others_stay_where_they_are_and_see_edited_values() -> None:
    model, x = Chain(), batch()
    seen: list[tuple[str, torch.Tensor]] = []
    model.first.register_forward_hook(lambda m, a, out: seen.append(("one", out)))
    model.first.register_forward_hook(lambda m, a, k, out: seen.append(("two", out)), with_kwargs=True, prepend=True)
    model.first.register_forward_pre_hook(lambda m, a: seen.append(("pre", a[0])))
    with hs.edit(model, {"first:input,output": [hs.zero(), hs.add(1.0)]}):
        model.first.register_forward_hook(lambda m, a, out: seen.append(("three", out)))
        model(x)
    assert [name for name, _ in seen] == ["pre", "two", "one", "three"]
    assert all((value == 1).all() for _, value in seen)
    seen.clear()
    model(x)
    assert [name for name, _ in seen] == ["pre", "two", "one", "three"]
    assert not (seen[1][1] == 1).any()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), "save"])
def test_a_copy_made_under_an_edit_is_not_edited(duplicate) -> None:
    model, x = Chain(), batch()
    del model.hand, model.before  # lambdas
    Chain.hand = Chain.before = staticmethod(lambda h: h)
    try:
        plain = model(x)
        with hs.edit(model, {"first:input,output,output_grad": hs.noise(1.0), "**:param_grad": hs.scale(2.0), "second@0": hs.zero()}):
            if duplicate == "save":
                torch.save(model, file := io.BytesIO())
                file.seek(0)
                other = torch.load(file, weights_only=False)
            else:
                other = duplicate(model)
            assert not torch.equal(model(x), plain)
            assert torch.equal(other(x), plain)
            model.zero_grad()
            other(x).sum().backward()
            assert all(p._backward_hooks is None or not p._backward_hooks for p in other.parameters())
            model(x).sum().backward()
    finally:
        del Chain.hand, Chain.before


def test_closing_twice_is_closing_once_and_the_handle_shows_its_state() -> None:
    model = Chain()
    e = hs.edit(model, {"first": hs.zero()})
    assert repr(e) == "<hookscope edit of 1 site of Chain, on>"
    model(batch())
    e.close()
    e.close()
    assert repr(e) == "<hookscope edit of 1 site of Chain, closed>"


def test_a_misspelt_name_is_an_error_that_names_what_was_meant_and_places_nothing() -> None:
    model = Chain()
    before = hooks(model)
    with pytest.raises(hs.SelectionError, match="no site of kind output matches 'frist': did you mean 'first'"):
        hs.edit(model, {"second": hs.zero(), "frist": hs.zero()})
    assert hooks(model) == before


WRONG = {
    "'first:param' means first.weight:param: a param cannot be edited; choose one of input, output, output_grad, param_grad": {
        "first:param": hs.zero()
    },
    "'first': 0.5 is no op: give one such as hs.zero() or hs.scale(0.5), or a list of them": {"first": 0.5},
    "'first': [] is no op: give one such as hs.zero() or hs.scale(0.5), or a list of them": {"first": []},
    'edits={}: give a mapping from selections to ops, such as {"encoder.3": hs.scale(0.5)}': {},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_edited_is_refused(message: str) -> None:
    with pytest.raises(hs.UsageError) as error:
        hs.edit(Chain(), WRONG[message])
    assert str(error.value) == message


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(hs.AttachError, match=r"model is a dict, not a torch\.nn\.Module"):
        hs.edit({}, {"first": hs.zero()})  # type: ignore[arg-type]
