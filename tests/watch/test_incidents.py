"""What the flight recorder keeps of the moment at which a training goes wrong, and that it changes nothing."""

from __future__ import annotations

import hashlib
import signal
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._record import _incident_folder
from hookscope._record._incident import FRAMES

from ._small import adam, batch, bits, events, mlp, told, train, trained_bits


class Bad(nn.Module):
    """NaN in one sample from its `at`-th training forward on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.calls = at, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.log(x - 1e6) if self.calls > self.at else torch.relu(x)


def sick(to: Path, at: int = 4, steps: int = 6, **how: Any) -> hs.Run:
    model = mlp(Bad(at))
    with hs.watch(model, optimizer := adam(model), to=to, on_finding="ignore", **how):
        train(model, optimizer, steps)
    return hs.Run(to)


def test_an_error_leaves_an_incident_with_what_was_found_and_where(tmp_path: Path) -> None:
    run = sick(tmp_path)
    first = run.incidents[0]
    assert (first.path, first.step, first.reason, first.rank, first.error) == (tmp_path / "incidents" / "4", 4, "finding", 0, None)
    assert first.findings[0].rule == "nonfinite-forward"
    found = next(f for f in hs.diagnose(run) if f.rule == "nonfinite-forward")
    assert first.findings[0] == replace(found, explains=())  # what it explains comes later
    assert [(o["op"], o["direction"], o["module"]) for o in first.origins] == [("log", "forward", "1")]
    assert first.headline == first.findings[0].headline
    assert events(run, "incident")[0] == {
        "event": "incident",
        "step": 4,
        "path": "incidents/4",
        "reason": "finding",
        "missing": {},
    }
    assert f"hookscope replay {first.path} --script train.py" in "\n".join(first.how)


def test_what_the_model_was_given_is_told_by_shape_hash_and_numbers(tmp_path: Path) -> None:
    given = sick(tmp_path).incidents[0].inputs
    x = batch(4).numpy()
    assert given == (
        {
            "model": "(root)",
            "call": 0,
            "path": "",
            "shape": [8, 4],
            "dtype": "float32",
            "device": "cpu",
            "sha256": hashlib.sha256(x.tobytes()).hexdigest(),
            "min": float(x.min()),
            "max": float(x.max()),
            "nan": 0,
            "inf": 0,
        },
    )


@pytest.mark.parametrize(("flight", "expected"), [(32, [0, 1, 2, 3, 4]), (3, [1, 2, 3, 4]), (1, [3, 4]), (0, [])])
def test_the_last_frames_are_those_of_the_run_and_the_open_one(flight: int, expected: list[int], tmp_path: Path) -> None:
    run = sick(tmp_path, flight=flight)
    rows = run.incidents[0].rows
    assert sorted(set(rows.step.tolist())) == expected
    for step in expected[:-1]:
        kept, recorded = rows.take(rows.step == step), run.rows(step, step)
        np.testing.assert_array_equal(kept.in_order().stats, recorded.stats)
        assert kept.in_order().site.tolist() == recorded.site.tolist()


def test_the_random_states_are_those_of_before_the_forward(tmp_path: Path) -> None:
    model = mlp(nn.Dropout(0.5), Bad(2))
    states = []
    with hs.watch(model, optimizer := adam(model), to=tmp_path, on_finding="ignore", incidents="batch"):
        for step in range(4):
            optimizer.zero_grad()
            states.append(torch.get_rng_state())
            model(batch(step)).mean().backward()
            optimizer.step()
    from hookscope._origin._stored import random_from_json

    random = hs.Run(tmp_path).incidents[0].random
    assert random is not None
    assert random["at"] == "forward"
    assert torch.equal(random_from_json(random).cpu, states[2])


def test_a_healthy_training_leaves_no_folder_and_neither_does_a_warning(tmp_path: Path) -> None:
    model = mlp()
    with hs.watch(model, optimizer := adam(model), to=tmp_path / "a", on_finding="ignore", incidents="full"):
        train(model, optimizer)
    frozen = mlp()
    with hs.watch(frozen, to=tmp_path / "b", on_finding="ignore", select=["**"]):
        train(frozen, torch.optim.SGD(frozen.parameters(), lr=1e-12), 30)
    assert not (tmp_path / "a" / "incidents").exists()
    assert not (tmp_path / "b" / "incidents").exists()
    assert hs.Run(tmp_path / "a").incidents == ()


@pytest.mark.parametrize("incidents", ["facts", "batch", "full", "off"])
def test_the_training_ends_with_the_same_bits(incidents: Any, tmp_path: Path) -> None:
    def make() -> nn.Sequential:
        return mlp(nn.BatchNorm1d(8), nn.Dropout(0.1), Bad(4))

    model = make()
    with told() as given, hs.watch(model, optimizer := adam(model), to=tmp_path, on_finding="ignore", incidents=incidents):
        train(model, optimizer)
    assert given == []
    assert bits(model) == trained_bits(make)
    assert len(hs.Run(tmp_path).incidents) == (0 if incidents == "off" else 1)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_checkpoint_has_weights_buffers_and_optimizer_of_before_the_step(tmp_path: Path) -> None:
    model = mlp(nn.BatchNorm1d(8), Bad(3))
    optimizer = adam(model)
    with hs.watch(model, optimizer, to=tmp_path, on_finding="ignore", incidents="full"):
        for step in range(5):
            if step == 3:
                before = {name: value.clone() for name, value in model.state_dict().items()}
                moments = {key: state["exp_avg"].clone() for key, state in optimizer.state_dict()["state"].items()}
            train(model, optimizer, 1, data=lambda _, step=step: batch(step))
    incident = hs.Run(tmp_path).incidents[0]
    assert (incident.step, incident.checkpoint) == (3, "before the update")
    stored = torch.load(incident.path / "checkpoint.pt", weights_only=True)
    assert stored["models"][""].keys() == before.keys()
    assert all(torch.equal(stored["models"][""][name], value) for name, value in before.items())
    assert all(torch.equal(stored["optimizers"][0]["state"][key]["exp_avg"], value) for key, value in moments.items())


class Odd:
    """Nothing that torch's safe loader takes."""


class Taking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, _odd: Odd) -> torch.Tensor:
        return self.inner(x)


def test_a_batch_that_cannot_be_stored_safely_is_left_out_and_said_to_be(tmp_path: Path) -> None:
    model = Taking()
    with told() as given, hs.watch(model, to=tmp_path, on_finding="ignore", incidents="batch"):
        (model(torch.ones(2, 4), Odd()).mean() * float("nan")).backward()
    incident = hs.Run(tmp_path).incidents[0]
    assert given == []
    assert incident.stored == ("frames.arrows", "random.json")
    assert "Odd" in incident.missing["batch.pt"]
    assert not (incident.path / "batch.pt").exists()


def test_incidents_are_bounded_in_number_and_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_incident_folder, "MOST", 1)
    assert [incident.step for incident in sick(tmp_path / "a").incidents] == [4]
    monkeypatch.setattr(_incident_folder, "MOST_BYTES", 2000)
    run = sick(tmp_path / "b", incidents="full")
    (incident,) = run.incidents
    assert incident.missing.keys() == {"random.json", "batch.pt", "checkpoint.pt"}
    assert incident.missing["checkpoint.pt"].endswith("and all incidents of a run at most 0 MiB")


def test_a_folder_that_cannot_be_written_costs_the_incidents_and_one_warning(tmp_path: Path) -> None:
    model = mlp(Bad(2))
    with told() as given, hs.watch(model, optimizer := adam(model), to=tmp_path, on_finding="ignore"):
        (tmp_path / "incidents").write_text("in the way")
        train(model, optimizer)
    assert [str(w.message).partition(":")[2].partition(" and")[0] for w in given] == [" incidents is switched off at step 2"]
    run = hs.Run(tmp_path)
    assert (run.steps.tolist(), run.incidents) == ([*range(6)], ())
    assert bits(model) == trained_bits(lambda: mlp(Bad(2)))


def test_a_finding_that_is_raised_is_one_incident_not_two(tmp_path: Path) -> None:
    model = mlp(Bad(1))
    with pytest.raises(hs.FindingError), hs.watch(model, optimizer := adam(model), to=tmp_path, on_finding="raise"):
        train(model, optimizer)
    assert [(i.step, i.reason) for i in hs.Run(tmp_path).incidents] == [(1, "finding")]


def test_more_that_is_found_at_the_same_step_is_added_to_its_incident(tmp_path: Path) -> None:
    model = mlp()
    with hs.watch(model, optimizer := adam(model), to=tmp_path, on_finding="ignore", grad_norm_threshold=1e-9) as w:
        train(model, optimizer, 1)
        session = w._session
        session.incidents.found([hs.Finding("mine", "error", "more", 0, 0)], 0)
        session.incidents.found([hs.Finding("mine-too", "error", "yet more", 0, 0)], 0)
    (incident,) = hs.Run(tmp_path).incidents
    assert [found.rule for found in incident.findings][-2:] == ["mine", "mine-too"]


def test_a_run_in_memory_has_none_and_leaves_signals_alone() -> None:
    model = mlp(Bad(1))
    with hs.watch(model, optimizer := adam(model), on_finding="ignore") as w:
        train(model, optimizer)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert w.run.incidents == ()


def test_nothing_is_held_of_a_healthy_step_beyond_its_backward(tmp_path: Path) -> None:
    model, optimizer = mlp(), None
    optimizer = adam(model)
    with hs.watch(model, optimizer, to=tmp_path):
        x = batch(0)
        gone = weakref.ref(x)
        model(x).mean().backward()
        del x
        assert gone() is None
        optimizer.step()


def test_of_several_micro_batches_the_first_bad_one_is_kept(tmp_path: Path) -> None:
    model = mlp()
    with hs.watch(model, optimizer := adam(model), to=tmp_path, on_finding="ignore", incidents="batch"):
        for i in range(4):
            loss = model(batch(i)).mean()
            (loss * float("nan") if i == 1 else loss).backward()
        optimizer.step()
    (incident,) = hs.Run(tmp_path).incidents
    assert incident.inputs[0]["sha256"] == hashlib.sha256(batch(1).numpy().tobytes()).hexdigest()


def test_another_rank_has_folders_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    model = mlp(Bad(1))
    with hs.watch(model, optimizer := adam(model), to=tmp_path, on_finding="ignore"):
        train(model, optimizer, 2)
    assert (tmp_path / "incidents" / "1-rank-00001" / FRAMES).exists()


def test_a_resumed_run_that_comes_to_the_step_again_keeps_both(tmp_path: Path) -> None:
    sick(tmp_path)
    (tmp_path / "frames" / "rank-00000" / "000001.arrows").unlink()
    sick(tmp_path, resume=True)
    assert [incident.path.name for incident in hs.Run(tmp_path).incidents] == ["4", "4-2"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"flight": -1}, "flight=-1 is no number of frames: give how many of the last steps to keep at hand, 0 for none"),
        ({"flight": True}, "flight=True is no number of frames"),
        ({"flight": 2.0}, r"flight=2.0 is no number of frames"),
        ({"incidents": "fact"}, "incidents='fact' is unknown: did you mean 'facts'[?]"),
    ],
)
def test_wrong_use_is_refused(asked: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(hs.UsageError, match=said):
        hs.watch(mlp(), to=tmp_path / "run", **asked)
    assert not (tmp_path / "run").exists()
