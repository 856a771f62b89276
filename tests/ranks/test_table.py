"""What a run of many ranks says of each site is what one process in float64 says of the whole batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import hookscope as hs

from ._launch import launched_well
from ._nets import BATCH, STEPS, truth

pytestmark = pytest.mark.slow  # real processes, each of which loads torch

QUANTITIES = ("count", "mean", "std", "rms", "l2", "min", "max", "absmax", "sum", "zeros", "nonfinite")
SPREADS = {"ddp": 2, "fsdp": 2, "tp": 2}
SPREADS_OF_FOUR = {"hsdp": 4, "2d": 2}  # how many ranks' losses speak of different samples


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("two")
    launched_well("_cells.py", str(to), *SPREADS)
    return to


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("four")
    launched_well("_cells.py", str(to), *SPREADS_OF_FOUR, ranks=4)
    return to


def numbers_of(tensor: torch.Tensor) -> dict[str, float]:
    x = tensor.double().numpy().ravel()
    return {
        "count": x.size,
        "mean": x.mean(),
        "std": x.std(),
        "rms": np.sqrt((x**2).mean()),
        "l2": np.sqrt((x**2).sum()),
        "min": x.min(),
        "max": x.max(),
        "absmax": np.abs(x).max(),
        "sum": x.sum(),
        "zeros": (x == 0).sum(),
        "nonfinite": 0,
    }


def check(run: hs.Run, shares: int, tolerance: float) -> None:
    """`shares` losses are means over a part of the batch each, so that gradients at outputs are so many times those of the one loss."""
    assert [e for e in run.events if e["event"] in ("switched_off", "hidden_parameters", "frames_dropped")] == []
    expected = truth()
    wrong = []
    for name in expected[0]:
        for quantity in QUANTITIES:
            series = run[name, quantity]
            assert series.steps.tolist() == list(range(STEPS)), name
            for step in range(STEPS):
                tensor = expected[step][name] * (shares if name.endswith(":output_grad") else 1)
                numbers = numbers_of(tensor)
                right = shares if (name, quantity) == ("loss", "count") else numbers[quantity]
                if name == "loss" and quantity not in ("count", "mean", "nonfinite"):
                    continue
                scale = max(abs(right), numbers["l2" if quantity in ("l2", "sum") else "absmax"], 1e-12) if quantity != "zeros" else 1
                lost = 50 if name.endswith(":update") else 1  # the difference of two float32 weights, a hundred times as large as it
                if abs(series.values[step] - right) > lost * tolerance * scale:
                    wrong.append((name, quantity, step, series.values[step], right))
    assert wrong == []


@pytest.mark.parametrize("how", SPREADS)
@pytest.mark.parametrize("what", ["plain", "checkpoint"])
def test_a_cell_of_two_ranks_is_right(two: Path, how: str, what: str) -> None:
    check(hs.Run(two / how / what), 1 if how == "tp" else 2, 2e-5)


@pytest.mark.parametrize("how", SPREADS_OF_FOUR)
@pytest.mark.parametrize("what", ["plain", "checkpoint"])
def test_a_cell_of_four_ranks_is_right(four: Path, how: str, what: str) -> None:
    check(hs.Run(four / how / what), SPREADS_OF_FOUR[how], 2e-5)


@pytest.mark.parametrize("how", [*SPREADS, *SPREADS_OF_FOUR])
def test_half_precision_is_right_to_its_own_precision(two: Path, four: Path, how: str) -> None:
    run, expected = hs.Run((two if how in SPREADS else four) / how / "bf16"), truth()
    for name in expected[0]:
        if name.endswith((":param", ":param_grad", ":output")):
            right = [numbers_of(step[name]) for step in expected]
            assert run[name, "count"].values.tolist() == [n["count"] for n in right], name
            np.testing.assert_allclose(run[name, "rms"].values, [n["rms"] for n in right], rtol=0.06, err_msg=name)


def test_one_rank_alone_has_its_own_samples(two: Path) -> None:
    run = hs.Run(two / "ddp" / "plain")
    assert run.ranks == (0, 1)
    one = run.rank(1)
    right = truth()[0]["first.up:output"][BATCH // 2 :]
    assert one["first.up:output", "count"].values[0] == right.numel()
    np.testing.assert_allclose(one["first.up:output", "rms"].values[0], numbers_of(right)["rms"], rtol=1e-6)
    side_by_side = run.per_rank("first.up:output", "rms")
    assert side_by_side.ranks.tolist() == [0, 1]
    assert side_by_side.values[:, 1].tolist() == one["first.up:output", "rms"].values.tolist()
    assert run.uneven_steps.tolist() == []


def test_a_rank_of_a_spread_model_has_its_part(two: Path) -> None:
    run = hs.Run(two / "fsdp" / "plain")
    site = next(s for s in run.sites if s.name == "first.up.weight:param")
    assert (site.shape, site.numel, site.held, site.part) == ((8, 4), 32, 16, "0:0/2")
    lower = truth()[0]["first.up.weight:param"][4:]
    np.testing.assert_allclose(run.rank(1)["first.up.weight:param", "l2"].values[0], numbers_of(lower)["l2"], rtol=1e-6)


def test_the_mean_of_what_ranks_had_before_is_what_the_optimizer_got(two: Path) -> None:
    run = hs.Run(two / "ddp" / "plain")
    for path in ("first.up.weight", "second.down.bias"):
        local, final = run.per_rank(f"{path}:param_grad/local", "mean"), run[f"{path}:param_grad", "mean"]
        np.testing.assert_allclose(local.values.mean(axis=1), final.values, rtol=1e-4, atol=1e-9)
        assert (local.values[:, 0] != local.values[:, 1]).all()
