"""`trace_patch`, against patching by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import hookscope as hs


class Mixer(nn.Module):
    """Two layers of position-wise maps with a mix of positions between; what is patched by hand is given to `run`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(7, 4)
        self.first = nn.Linear(4, 4)
        self.mix = nn.Parameter(torch.randn(3, 3))
        self.second = nn.Linear(4, 4)
        self.double()

    def run(self, ids: torch.Tensor, patched: dict[str, tuple[int, torch.Tensor]]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        found: dict[str, torch.Tensor] = {}

        def through(name: str, h: torch.Tensor) -> torch.Tensor:
            if name in patched:
                position, value = patched[name]
                h = torch.cat([h[:, :position], value[:, position : position + 1], h[:, position + 1 :]], 1)
            found[name] = h
            return h

        h = through("embed", self.embed(ids))
        h = torch.tanh(through("first", self.first(h)))
        h = torch.einsum("pq,bqd->bpd", self.mix, h)
        h = through("second", self.second(h))
        return h, found

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.second(torch.einsum("pq,bqd->bpd", self.mix, torch.tanh(self.first(self.embed(ids)))))


CLEAN, CORRUPT = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 5, 6]])


def last(output: torch.Tensor) -> float:
    return output[0, -1].sum().item()


def test_effects_equal_those_of_patching_by_hand() -> None:
    model = Mixer()
    trace = hs.trace_patch(model, CLEAN, CORRUPT, ["embed", "first", "second"], last)
    with torch.no_grad():
        best, kept = model.run(CLEAN, {})
        worst, _ = model.run(CORRUPT, {})
        want = [
            [
                (last(model.run(CORRUPT, {name: (position, kept[name])})[0]) - last(worst)) / (last(best) - last(worst))
                for position in range(3)
            ]
            for name in ("embed", "first", "second")
        ]
    np.testing.assert_allclose(trace.effect, want, atol=1e-12)
    assert trace.effect[0, 0] == 0  # the same token
    assert trace.effect[2].tolist() == pytest.approx([0, 0, 1])
    assert trace.sites == ("embed:output", "first:output", "second:output")
    assert trace.positions == (0, 1, 2)
    assert (trace.clean, trace.corrupt) == pytest.approx((last(best), last(worst)))
    assert not any(m._forward_hooks for m in model.modules())


def test_positions_can_be_chosen_and_sites_patched_as_a_whole() -> None:
    model = Mixer()
    full = hs.trace_patch(model, CLEAN, CORRUPT, "first", last)
    assert hs.trace_patch(model, CLEAN, CORRUPT, "first", last, positions=[-1, 0]).positions == (0, 2)
    np.testing.assert_array_equal(hs.trace_patch(model, CLEAN, CORRUPT, "first", last, positions=1).effect, full.effect[:, 1:2])
    whole = hs.trace_patch(model, CLEAN, CORRUPT, ["embed", "second"], last, positions="whole")
    assert whole.positions == (None,)
    np.testing.assert_allclose(whole.effect, [[1], [1]])


def test_a_module_that_is_called_twice_is_patched_call_by_call() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1, bias=False)
            nn.init.constant_(self.layer.weight, 2.0)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + 10 * self.layer(y)

    clean, corrupt = (torch.ones(1, 1), torch.ones(1, 1)), {"x": torch.zeros(1, 1), "y": torch.zeros(1, 1)}
    for selection, share in {"layer": 1.0, "layer@0": 1 / 11, "layer@1": 10 / 11}.items():
        trace = hs.trace_patch(Twice(), clean, corrupt, selection, torch.sum, positions="whole")
        assert trace.effect[0, 0] == pytest.approx(share)


def test_the_trace_shows_itself() -> None:
    trace = hs.trace_patch(Mixer(), CLEAN, CORRUPT, "second", last)
    lines = repr(trace).splitlines()
    assert lines[0].startswith("clean: ")
    assert lines[1:] == ["site              0     1     2", "second:output  0.00  0.00  1.00"]
    frame = pytest.importorskip("pandas") and trace.to_pandas()
    assert frame.loc["second:output", 2] == pytest.approx(1.0)


WRONG = {
    "the metric is 0 on the clean input and 0 on the corrupt one: it has to tell them apart": {"metric": lambda output: 0.0},
    "positions='all': give 'each', 'whole', numbers or a slice": {"positions": "all"},
    "first:output has no position 7: there are 3, numbered from 0 to 2": {"positions": [0, 7]},
    "positions=slice(3, 9, None) picks none of the 3 positions": {"positions": slice(3, 9)},
    "metric returned NoneType: return a number, or a tensor with one for each sample": {"metric": lambda output: None},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_use_is_refused(message: str) -> None:
    with pytest.raises(hs.UsageError) as error:
        hs.trace_patch(Mixer(), CLEAN, CORRUPT, "first", **{"metric": last, **WRONG[message]})
    assert str(error.value) == message


def test_inputs_of_two_lengths_and_sites_without_positions_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4))
    with pytest.raises(hs.UsageError, match=r"the patch of shape \(1, 3, 4\) does not fit 1:output of shape \(1, 4, 4\)"):
        hs.trace_patch(model, CLEAN, torch.tensor([[1, 2, 3, 4]]), "1", lambda output: output.sum())
    assert not any(m._forward_hooks for m in model.modules())
    with pytest.raises(hs.UsageError, match="0:output has no positions: leave it out, or patch whole sites with positions='whole'"):
        hs.trace_patch(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2), torch.zeros(1, 2), "0", lambda output: output.sum())
