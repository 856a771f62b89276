"""A compiled model that is watched stays the user's own: what it holds, how it is saved and copied, what the compiler warns of."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._watch import _pace

from ._compiling import READ, tower, whole
from ._oracle import recorded

pytestmark = pytest.mark.slow  # dynamo takes seconds
BATCH = torch.linspace(-1.0, 1.0, 20).reshape(5, 4)


@pytest.fixture(autouse=True)
def _nothing_compiled_is_left() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def test_slots_are_in_no_state_and_in_no_copy() -> None:
    model = tower(1)
    names, parameters = list(model.state_dict()), len(list(model.parameters()))
    compiled, optimizer = whole(model), torch.optim.SGD(model.parameters(), 0.1)
    with hs.watch(model, optimizer) as w:
        compiled(BATCH).sum().backward()
        optimizer.step()
        assert (list(model.state_dict()), len(list(model.parameters())), list(model.buffers())) == (names, parameters, [])
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        copies.append(torch.load(file, weights_only=False))
        read = len(w.run.rows().site)
        for other in copies:
            assert torch.equal(whole(other)(BATCH), model(BATCH))
    assert len(w.run["1.wide:output", "count"].values) == 1
    assert read > 0
    assert all(not hooks for module in model.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks))


def test_hundreds_of_steps_of_a_budget_make_two_graphs() -> None:
    model = tower(1)
    compiled, optimizer = whole(model), torch.optim.SGD(model.parameters(), 0.01)
    with patch.object(_pace, "OPENING_S", 0.0), hs.watch(model, optimizer, budget=0.3, on_finding="ignore") as w:
        for _ in range(200):
            optimizer.zero_grad()
            compiled(BATCH).square().mean().backward()
            optimizer.step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    assert 1 <= len(w.run.steps) < 200


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own, without any watch
def test_compiled_autograd_brings_the_same_gradients() -> None:
    rows = []
    for how in ("plain", "compiled"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = tower(1).double()
        compiled, optimizer = whole(model), torch.optim.SGD(model.parameters(), 0.1)
        with hs.watch(model, optimizer, every=1) as w:
            for _ in range(2):
                loss = compiled(BATCH.double()).square().mean()
                if how == "compiled":
                    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
                        loss.backward()
                else:
                    loss.backward()
                optimizer.step()
        rows.append(recorded(w.run, kinds=READ))
    assert rows[0] == rows[1]


def test_gradients_asked_for_beside_the_backward_are_not_in_its_rows() -> None:
    model = tower(1).double()
    compiled, optimizer = whole(model), torch.optim.SGD(model.parameters(), 0.1)
    with hs.watch(model, optimizer) as w:
        loss = compiled(BATCH.double()).square().mean()
        torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        loss.backward()
        optimizer.step()
    assert w.run["1.wide:output_grad", "count"].values.tolist() == [5 * 16]


def test_no_warning_of_torch_comes_of_a_watch() -> None:
    program = """
import torch, hookscope as hs
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.act = torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True)
    def forward(self, x):
        return self.act(self.a(x))
for way in ("whole", "in place"):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hs.watch(model, optimizer, every=2) as w:
        called = torch.compile(model, backend="aot_eager", fullgraph=True) if way == "whole" else model
        if way == "in place":
            model.compile(backend="aot_eager", fullgraph=True)
        for _ in range(3):
            called(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert len(w.run["act:output_grad", "rms"].values) == 2
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_what_is_in_a_slot_of_a_module_is_no_parameter_of_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with hs.watch(model):
        whole(model)(BATCH).sum().backward()
        assert [name for name in model[0].__dict__ if isinstance(model[0].__dict__[name], torch.Tensor)] == []
