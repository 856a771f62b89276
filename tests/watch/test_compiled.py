"""Inside compiled graphs outputs and their gradients are read as in eager code: the oracle is the eager run of the same model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._core._errors import HookscopeWarning
from hookscope._core._stats import Stats
from hookscope._watch._compiled_op import Toll
from hookscope._watch._compiled_sites import Traced

from ._compiling import How, by_blocks, by_method, same_bits, tower, train, whole
from ._oracle import check

pytestmark = [
    pytest.mark.slow,  # dynamo takes seconds
    # Both are torch's own, without any watch: of a part that is given a non-leaf, and where inductor is loaded.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
]
BATCHES = [torch.linspace(-1.0, 1.0, 20, dtype=torch.float64).reshape(5, 4) * k for k in (1, 2, 3)]


@pytest.fixture(autouse=True)
def _nothing_compiled_is_left() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def double() -> nn.Module:
    return tower().double()


@pytest.mark.parametrize("how", [whole, by_method, by_blocks])
def test_every_row_is_that_of_the_eager_run_without_a_graph_break(how: How) -> None:
    eager, compiled = train(double, BATCHES), train(double, BATCHES, how)
    assert compiled.rows == eager.rows
    assert compiled.breaks == 0
    assert {s.name: (s.shape, s.dtype) for s in compiled.run.sites if s.kind == "output"} == {
        s.name: (s.shape, s.dtype) for s in eager.run.sites if s.kind == "output"
    }
    assert not compiled.told("never_fired")


@pytest.mark.parametrize("how", [whole, by_blocks])
def test_modules_stand_in_the_order_in_which_they_ran(how: How) -> None:
    orders = []
    for found in (train(double, BATCHES[:1]), train(double, BATCHES[:1], how)):
        rows, sites = found.run.rows(), {site.id: site for site in found.run.sites}
        read = [(seq, sites[site].name) for seq, site in zip(rows.seq.tolist(), rows.site.tolist(), strict=True)]
        orders.append([name for seq, name in sorted(read) if name.endswith(":output") or name == "loss"])
    assert orders[0] == orders[1]


@pytest.mark.parametrize("how", [whole, by_method, by_blocks])
def test_the_training_ends_with_the_bits_of_an_unwatched_one(how: How) -> None:
    watched, bare = train(tower, [b.float() for b in BATCHES], how), train(tower, [b.float() for b in BATCHES], how, watched=False)
    assert same_bits(watched.model, bare.model)


@pytest.mark.parametrize("how", [whole, by_blocks])
def test_inductor_gives_the_same_rows_and_bits(how: Any) -> None:
    inductor, make = partial(how, backend="inductor"), lambda: tower(2).double()
    eager, watched, bare = train(make, BATCHES), train(make, BATCHES, inductor), train(make, BATCHES, inductor, watched=False)
    check(watched.rows, eager.rows)
    assert (watched.breaks, watched.graphs) == (0, bare.graphs)
    assert same_bits(watched.model, bare.model)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.act = nn.Linear(4, 4), nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.act(self.shared(self.act(self.shared(x))))
        return out


def test_calls_of_one_module_in_a_graph_are_together_in_one_row() -> None:
    eager, compiled = train(lambda: Twice().double(), BATCHES[:1]), train(lambda: Twice().double(), BATCHES[:1], whole)
    for name in ("shared:output", "shared:output_grad", "act:output", "act:output_grad"):
        both: Stats = eager.rows[0, 0, name, 0].merge(eager.rows[0, 0, name, 1])
        assert compiled.rows[0, 0, name, 0] == pytest.approx(both, rel=1e-12)
        assert (0, 0, name, 1) not in compiled.rows
    assert compiled.rows[0, 0, "shared:output", 0].count == 40


@pytest.mark.parametrize("how", [whole, by_blocks])
def test_steps_that_are_left_out_cost_one_more_graph_each_and_no_more(how: How) -> None:
    batches = [BATCHES[0]] * 7
    eager, always, third = train(double, batches, every=3), train(double, batches, how), train(double, batches, how, every=3)
    assert third.rows == eager.rows
    assert third.graphs <= 2 * always.graphs
    assert third.run.steps.tolist() == [0, 3, 6]


def test_equal_blocks_share_a_graph() -> None:
    few, many = (train(lambda n=n: tower(n), [BATCHES[0].float()], by_blocks) for n in (2, 12))
    assert many.graphs == few.graphs == 1
    assert not many.told("never_fired")


@pytest.mark.parametrize("how", [whole, by_method])
def test_a_model_compiled_before_it_is_watched_is_compiled_again_aloud(how: How) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = tower()
    called = how(model)
    called = model if called is None else called
    called(BATCHES[0].float()).sum().backward()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(HookscopeWarning, match=r"compiled before it was watched.* took \d+\.\d s so far\. Watch a model before"):
        w = hs.watch(model, sgd)
    for _ in range(2):
        called(BATCHES[0].float()).square().mean().backward()
        sgd.step()
    w.close()
    assert len(w.run["1.wide:output", "rms"].values) == 2
    assert len(w.run["1.wide:output_grad", "rms"].values) == 2


def test_half_precision_is_read_as_it_is_stored() -> None:
    class Times(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 3000  # float32 within a fused kernel, where it does not overflow

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act, self.times = nn.Linear(4, 4), nn.Softplus(), Times()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.times(self.act(self.first(x)))
            return y.clamp(max=1.0)

    def big() -> nn.Module:
        model = Net()
        nn.init.constant_(model.first.weight, 10.0)
        return model.half()

    batch = [torch.linspace(-1, 1, 20, dtype=torch.float16).reshape(5, 4)]
    eager, compiled = train(big, batch), train(big, batch, partial(whole, backend="inductor"))
    assert compiled.rows[0, 0, "times:output", 0].inf == eager.rows[0, 0, "times:output", 0].inf > 0
    assert compiled.rows[0, 0, "act:output", 0].zeros == eager.rows[0, 0, "act:output", 0].zeros


class Aliases(nn.Module):
    """Outputs that share memory with inputs, and writes in place behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.same, self.flat = nn.Linear(4, 4), nn.Identity(), nn.Flatten()
        self.act, self.wide, self.act2 = nn.ReLU(inplace=True), nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        y = self.same(h)
        y.mul_(2.0)  # seen through h
        z = self.act2(self.wide(x[None]))[0]
        return self.flat(self.act(h + 1)) + y + z


def test_outputs_that_share_memory_with_inputs_are_read_with_their_gradients() -> None:
    eager, compiled = train(lambda: Aliases().double(), BATCHES), train(lambda: Aliases().double(), BATCHES, whole)
    assert compiled.rows == eager.rows
    assert same_bits(eager.model, compiled.model)
    assert {"same:output_grad", "act:output_grad", "flat:output_grad", "wide:output_grad"} <= {key[2] for key in compiled.rows}


class Written(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.flat, self.unused = nn.Linear(4, 4), nn.Flatten(0), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.unused(x)
        h: torch.Tensor = self.flat(self.first(x))
        h += 1
        return h


def test_a_gradient_that_torch_drops_is_told_and_one_that_there_is_none_of_is_not() -> None:
    eager, compiled = train(lambda: Written().double(), BATCHES), train(lambda: Written().double(), BATCHES, whole)
    assert compiled.rows == eager.rows
    assert compiled.told("untapped_gradients") == eager.told("lost_gradients") == ["flat"]


class Structured(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return {"a": x * 2, "b": (x.sin(), [x.cos()])}, None, torch.return_types.max((x * 3, x.argmax()))


class Structures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.parts = nn.Linear(4, 4), Structured()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        named, _, last = self.parts(self.first(x))
        out: torch.Tensor = named["a"] + named["b"][0] + named["b"][1][0] + last[0]
        return out


def test_the_tensors_inside_an_output_are_read_by_their_paths() -> None:
    eager, compiled = train(lambda: Structures().double(), BATCHES), train(lambda: Structures().double(), BATCHES, whole)
    assert compiled.rows == eager.rows
    assert 'parts:output[0]["b"][1][0]' in {key[2] for key in compiled.rows}


def test_batches_of_many_sizes_are_read_whole() -> None:
    batches = [BATCHES[0][:n] for n in (5, 3, 4, 2)]
    eager, compiled = train(double, batches), train(double, batches, whole)
    assert compiled.rows == eager.rows
    assert compiled.graphs <= 2  # one for the first size, one for all others


def test_micro_batches_are_kept_apart() -> None:
    def run(how: How | None) -> Any:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = double()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        with hs.watch(model, sgd) as w:
            called = model if how is None else how(model)
            for batch in BATCHES[:2]:
                called(batch).square().mean().backward()
            sgd.step()
        return w.run["1.wide:output", "rms"].values.tolist(), len(w.run.rows().site)

    eager, compiled = run(None), run(whole)
    assert compiled[0] == eager[0]
    assert compiled[1] == eager[1] - 1  # torch compiles a Sequential with its hooks: what goes into it is read when its wrapper is known


def test_after_the_watch_the_compiled_model_goes_on_unobserved() -> None:
    torch._dynamo.reset()
    model = tower()
    called = whole(model)
    with hs.watch(model) as w:
        called(BATCHES[0].float()).sum().backward()
    before = Toll.spent
    called(BATCHES[0].float()).sum().backward()
    assert Toll.spent == before
    assert not any(module._forward_hooks for module in model.modules())
    assert "1.wide" in {site.path for site in w.run.sites}


def test_what_fails_while_a_graph_is_traced_is_told_and_does_not_stop_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> bool:
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(Traced, "meets_whole", broken)
    with pytest.warns(HookscopeWarning, match="activations is switched off at step 0.*ZeroDivisionError: no luck"):
        compiled = train(tower, [b.float() for b in BATCHES], whole)
    Toll.errors.clear()
    monkeypatch.undo()
    assert same_bits(compiled.model, train(tower, [b.float() for b in BATCHES], whole, watched=False).model)


def test_what_fails_while_a_graph_runs_is_told_and_does_not_stop_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr("hookscope._watch._compiled_op.merge_into", broken)
    with pytest.warns(HookscopeWarning, match="switched off at step 0.*ZeroDivisionError: no luck"):
        compiled = train(tower, [b.float() for b in BATCHES], whole)
    Toll.errors.clear()
    monkeypatch.undo()
    assert same_bits(compiled.model, train(tower, [b.float() for b in BATCHES], whole, watched=False).model)


def test_a_narrow_selection_reads_nothing_else() -> None:
    compiled = train(double, BATCHES[:1], whole, select=["1.wide:output", "1.act:output_grad"])
    assert sorted(key[2] for key in compiled.rows) == ["1.act:output_grad", "1.wide:output"]
