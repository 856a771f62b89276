"""What a run of many ranks says of each site is what one process in float64 says of the whole batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hookscope as hs

from ._launch import launched_well
from ._nets import BATCH, truth
from ._oracle import COLUMNS, ROWS, numbers_of, word

pytestmark = pytest.mark.slow  # real processes, each of which loads torch

DOCS = Path(__file__).parents[2] / "docs" / "distributed.md"
RANKS = {"alone": 1, "ddp": 2, "fsdp": 2, "offload": 2, "fsdp1": 2, "tp": 2, "hsdp": 4, "2d": 4}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, `how/what`."""
    to = tmp_path_factory.mktemp("cells")
    for ranks in (1, 2, 4):
        launched_well("_cells.py", str(to), *(how for how in (*RANKS, "fsdp1flat") if RANKS.get(how, 2) == ranks), ranks=ranks)
    return to


@pytest.mark.parametrize("how", RANKS)
@pytest.mark.parametrize("what", COLUMNS)
def test_a_cell_is_right(cells: Path, how: str, what: str) -> None:
    word(hs.Run(cells / how / what), how, what)


@pytest.mark.parametrize("how", RANKS)
def test_the_docs_say_what_was_found(cells: Path, how: str) -> None:
    line = " | ".join(["", ROWS[how], *(word(hs.Run(cells / how / what), how, what) for what in COLUMNS), ""]).strip()
    assert line in DOCS.read_text().splitlines()


def test_flattened_parameters_have_no_names_of_their_own(cells: Path) -> None:
    run = hs.Run(cells / "fsdp1flat" / "plain")
    whole = [truth()[0][f"{path}:param"] for path in ("first.up.weight", "first.up.bias", "first.down.weight", "first.down.bias")]
    flat = np.concatenate([tensor.numpy().ravel() for tensor in whole])
    np.testing.assert_allclose(run["first._flat_param:param", "l2"].values[0], np.linalg.norm(flat), rtol=1e-6)
    assert run["first._flat_param:param", "count"].values[0] == flat.size


def test_one_rank_alone_has_its_own_samples(cells: Path) -> None:
    run = hs.Run(cells / "ddp" / "plain")
    assert run.ranks == (0, 1)
    one = run.rank(1)
    right = truth()[0]["first.up:output"][BATCH // 2 :]
    assert one["first.up:output", "count"].values[0] == right.numel()
    np.testing.assert_allclose(one["first.up:output", "rms"].values[0], numbers_of(right)["rms"], rtol=1e-6)
    side_by_side = run.per_rank("first.up:output", "rms")
    assert side_by_side.ranks.tolist() == [0, 1]
    assert side_by_side.values[:, 1].tolist() == one["first.up:output", "rms"].values.tolist()
    assert run.uneven_steps.tolist() == []


def test_a_rank_of_a_spread_model_has_its_part(cells: Path) -> None:
    run = hs.Run(cells / "fsdp" / "plain")
    site = next(s for s in run.sites if s.name == "first.up.weight:param")
    assert (site.shape, site.numel, site.held, site.part) == ((8, 4), 32, 16, "0:0/2")
    lower = truth()[0]["first.up.weight:param"][4:]
    np.testing.assert_allclose(run.rank(1)["first.up.weight:param", "l2"].values[0], numbers_of(lower)["l2"], rtol=1e-6)


def test_the_mean_of_what_ranks_had_before_is_what_the_optimizer_got(cells: Path) -> None:
    run = hs.Run(cells / "ddp" / "plain")
    for path in ("first.up.weight", "second.down.bias"):
        local, final = run.per_rank(f"{path}:param_grad/local", "mean"), run[f"{path}:param_grad", "mean"]
        np.testing.assert_allclose(local.values.mean(axis=1), final.values, rtol=1e-4, atol=1e-9)
        assert (local.values[:, 0] != local.values[:, 1]).all()
