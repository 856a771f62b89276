"""A structured output has rows for each of its tensors, named by the path that leads to it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from transformers.modeling_outputs import BaseModelOutput

import hookscope as hs

from ._oracle import Twin, compare, recorded, stats_of


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor | None


@dataclass
class Record:
    first: torch.Tensor
    rest: list[torch.Tensor]


class Leaf(nn.Module):
    """Two linear maps, returned in the structure that `pack` makes of them."""

    def __init__(self, pack: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.pack = pack
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.pack(self.a(x).tanh(), self.b(x).tanh())


class Holder(nn.Module):
    """Its loss uses both parts, wherever they are."""

    def __init__(self, leaf: Leaf, parts: Callable[[Any], tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.leaf, self.parts = leaf, parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.parts(self.leaf(x)), 1)


STRUCTURES: dict[str, tuple[Any, Any, tuple[str, str]]] = {
    "tuple": (lambda a, b: (a, b), lambda o: (o[0], o[1]), ("[0]", "[1]")),
    "list": (lambda a, b: [a, [b]], lambda o: (o[0], o[1][0]), ("[0]", "[1][0]")),
    "dict": (lambda a, b: {"x": a, "y": {"z": b}}, lambda o: (o["x"], o["y"]["z"]), ('["x"]', '["y"]["z"]')),
    "namedtuple": (Pair, tuple, (".left", ".right")),
    "dataclass": (lambda a, b: Record(a, [b]), lambda o: (o.first, o.rest[0]), (".first", ".rest[0]")),
    "ModelOutput": (
        lambda a, b: BaseModelOutput(last_hidden_state=a, hidden_states=(b,)),
        lambda o: (o.last_hidden_state, o.hidden_states[0]),
        (".last_hidden_state", ".hidden_states[0]"),
    ),
}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_tensor_of_a_structured_output_has_its_rows(structure: str) -> None:
    pack, parts, (first, second) = STRUCTURES[structure]

    def by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
        a, b = twin.see("leaf.a:output", model.leaf.a(x)).tanh(), twin.see("leaf.b:output", model.leaf.b(x)).tanh()
        a, b = twin.see(f"leaf:output{first}", a), twin.see(f"leaf:output{second}", b)
        return twin.see("(root):output", torch.cat([a, b], 1))

    compare(Holder(Leaf(pack), parts), by_hand, torch.randn(3, 4))


def test_an_lstm_has_rows_for_its_sequence_and_for_both_states() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(3, 5, num_layers=2, batch_first=True), nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sequence, (hidden, cell) = self.rnn(x)
            return self.head(sequence[:, -1] + hidden[-1] * cell[-1])

    def by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
        sequence, (hidden, cell) = model.rnn(x)
        sequence = twin.see("rnn:output[0]", sequence)
        hidden, cell = twin.see("rnn:output[1][0]", hidden), twin.see("rnn:output[1][1]", cell)
        return twin.see("(root):output", twin.see("head:output", model.head(sequence[:, -1] + hidden[-1] * cell[-1])))

    compare(Net(), by_hand, torch.randn(2, 6, 3))


def test_a_packed_sequence_is_read_with_its_integer_parts() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(pack_sequence([x, x[:1]]))[0].data

    def by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
        packed, hidden = model.rnn(pack_sequence([x, x[:1]]))
        twin.see("rnn:output[0].batch_sizes", packed.batch_sizes)
        twin.see("rnn:output[1]", hidden)
        return twin.see("(root):output", twin.see("rnn:output[0].data", packed.data))

    compare(Net(), by_hand, torch.randn(4, 3))


def test_parts_that_the_loss_does_not_use_have_outputs_and_no_gradients() -> None:
    pack, parts, _ = STRUCTURES["tuple"]
    model = Holder(Leaf(pack), parts)

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.leaf = model.leaf

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.leaf(x)[0] * 2

    def by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
        a, b = twin.see("leaf.a:output", model.leaf.a(x)).tanh(), twin.see("leaf.b:output", model.leaf.b(x)).tanh()
        twin.see("leaf:output[1]", b)
        return twin.see("(root):output", twin.see("leaf:output[0]", a) * 2)

    # SGD leaves a parameter without a gradient alone: its update is all zeros.
    compare(First(), by_hand, torch.randn(3, 4))


def test_an_unused_sibling_from_one_operation_has_no_gradient() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.chunk(2, 1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map, self.halves = nn.Linear(4, 6), Halves()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.halves(self.map(x))[0].tanh()

    def by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
        first, second = twin.see("map:output", model.map(x)).chunk(2, 1)
        twin.see("halves:output[1]", second)
        return twin.see("(root):output", twin.see("halves:output[0]", first).tanh())

    compare(Net(), by_hand, torch.randn(3, 4))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_read_by_its_elements(layout: torch.layout, tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    with hs.watch(model, optimizer, to=tmp_path / "run") as watched:
        output = model(torch.nested.nested_tensor(parts, layout=layout))
        torch.nested.to_padded_tensor(output, 0.0).square().sum().backward()
        optimizer.step()
    elements = torch.cat(output.unbind()).detach()
    run = watched.run
    assert [event["event"] for event in run.events] == ["closed"]
    assert recorded(run, kinds=("output",))[0, 0, "(root):output", 0].sumsq == pytest.approx(stats_of(elements).sumsq, rel=1e-6)
    assert recorded(run, kinds=("output_grad",))[0, 0, "(root):output_grad", 0].sumsq == pytest.approx(
        stats_of(2 * elements).sumsq, rel=1e-6
    )
    assert run.sites.one("(root):output")[0].shape is None
