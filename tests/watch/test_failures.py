"""Whatever fails inside a watch, the training ends with the same bits; one warning says so, and what was recorded can be read."""

from __future__ import annotations

import gc
import logging
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._record import Meta, RunWriter
from hookscope._watch import _filling, _online, _returned

from ._small import adam, bits, events, hooks_on, mlp, told, train, trained_bits

ERRORS = (OSError, ValueError, MemoryError, RuntimeError)


def watched_training(to: Path, make: Callable[[], nn.Module] = mlp, **how: Any) -> tuple[list[str], hs.Run | None]:
    """Train under a watch that something happens to; returns the warnings, and the run if there is one. The bits are checked here."""
    model = make()
    optimizer = adam(model)
    with told() as given, hs.watch(model, optimizer, to=to):
        train(model, optimizer, **how)
    assert bits(model) == trained_bits(make)
    assert hooks_on(model) == 0
    assert torch.autograd.backward.__module__ == "torch.autograd"
    return [str(w.message) for w in given], hs.Run(to) if to.exists() else None


def switched_off(run: hs.Run | None) -> list[tuple[str, str]]:
    return [] if run is None else [(event["part"], event["error"]) for event in events(run, "switched_off")]


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("method", ["sites", "frame", "event", "flush", "close"])
def test_a_sink_may_raise_what_it_likes(method: str, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise kind("no more")

    monkeypatch.setattr(RunWriter, method, broken)
    given, run = watched_training(tmp_path)
    step = {"sites": 0, "frame": 0}.get(method, 6)
    assert given == [f"hookscope: recording is switched off at step {step} and the training goes on: {kind.__name__}: no more"]
    assert run is not None
    if method not in ("event", "flush"):  # a flush fails when all else is over, and the journal is closed
        assert switched_off(run) == [("recording", f"{kind.__name__}: no more")]


def test_a_sink_that_fails_halfway_leaves_what_was_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame, flush = RunWriter.frame, RunWriter.flush

    def until_three(self: RunWriter, taken: Any) -> None:
        if taken.step == 3:
            raise OSError(28, "No space left on device")
        frame(self, taken)
        flush(self)

    monkeypatch.setattr(RunWriter, "frame", until_three)
    given, run = watched_training(tmp_path)
    assert len(given) == 1
    assert run is not None
    assert (run.steps.tolist(), run.meta.status) == ([0, 1, 2], "finished")
    assert switched_off(run) == [("recording", "OSError: [Errno 28] No space left on device")]


@pytest.mark.parametrize("at", [0, 3])
def test_a_run_directory_may_be_deleted_under_the_watch(at: int, tmp_path: Path) -> None:
    given, run = watched_training(tmp_path / "run", before_step=lambda step: step == at and shutil.rmtree(tmp_path / "run"))
    assert ([text.count("recording is switched off") for text in given], run) == ([1], None)
    assert "FileNotFoundError" in given[0]


def test_a_rule_may_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_online, "diagnose", lambda *args, **kwargs: 1 / 0)
    given, run = watched_training(tmp_path)
    assert given == ["hookscope: rules is switched off at step 0 and the training goes on: ZeroDivisionError: division by zero"]
    assert run is not None
    assert (run.steps.tolist(), switched_off(run)) == ([*range(6)], [("rules", "ZeroDivisionError: division by zero")])


@pytest.mark.parametrize("odd", range(14))
def test_one_tensor_may_refuse_to_be_reduced(odd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input, the outputs and the loss of the first two steps and more, one after the other."""
    reduce_into, seen = _filling.reduce_into, iter(range(1000))

    def once(*args: Any) -> bool:
        if next(seen) == odd:
            raise RuntimeError("an odd one")
        return reduce_into(*args)

    monkeypatch.setattr(_filling, "reduce_into", once)
    monkeypatch.setattr(_returned, "NATIVE", None)  # what is in C does not ask it
    given, run = watched_training(tmp_path)
    assert ["an odd one" in text for text in given] == [True]
    assert run is not None
    assert (run.steps.tolist(), len(switched_off(run))) == ([*range(6)], 1)
    assert len(run["0.weight:update"].values) == 6


def test_a_failure_under_warnings_as_errors_goes_to_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr(RunWriter, "frame", lambda *args: 1 / 0)
    model = mlp()
    optimizer = adam(model)
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "hookscope"):
        warnings.simplefilter("error")
        with hs.watch(model, optimizer, to=tmp_path):
            train(model, optimizer)
    assert ["recording is switched off at step 0" in record.message for record in caplog.records] == [True]
    assert bits(model) == trained_bits()


def test_a_finding_under_warnings_as_errors_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    model = mlp()
    optimizer = adam(model)
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "hookscope"):
        warnings.simplefilter("error")
        with hs.watch(model, optimizer):
            train(model, optimizer, loss=lambda y: y.mean() * float("nan"))
    assert caplog.records[0].message.startswith("hookscope: error nonfinite-loss at step 0: ")


class Logging(torch.Tensor):
    """A subclass that notices what is done with it."""

    seen: list[str] = []  # noqa: RUF012  # one list for all, on purpose

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Refusing(torch.Tensor):
    """A subclass that takes part in nothing."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "as_subclass":
            return super().__torch_function__(func, types, args, kwargs or {})
        raise TypeError(f"no {func.__name__} here")


@dataclass
class Fields:
    """A dataclass, one field of which raises when it is looked at."""

    y: torch.Tensor
    z: int = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "z" and "ready" in object.__getattribute__(self, "__dict__"):
            raise RuntimeError("not to be looked at")
        return object.__getattribute__(self, name)

    def __post_init__(self) -> None:
        self.__dict__["ready"] = True


class Keys(Mapping[str, torch.Tensor]):
    """A mapping that cannot be walked."""

    def __init__(self, y: torch.Tensor) -> None:
        self.y = y

    def __getitem__(self, key: str) -> torch.Tensor:
        raise ValueError("no item")

    def __iter__(self) -> Any:
        return iter("ab")

    def __len__(self) -> int:
        return 2


class Lazy:
    """No structure that is walked, so its property is not touched."""

    def __init__(self, y: torch.Tensor) -> None:
        self.y = y

    @property
    def z(self) -> torch.Tensor:
        raise RuntimeError("not to be looked at")


class Packed(nn.Module):
    def __init__(self, pack: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.pack = nn.Linear(4, 8), pack

    def forward(self, x: torch.Tensor) -> Any:
        return self.pack(self.inner(x))


class Unpacked(nn.Module):
    """Its first module returns something odd."""

    def __init__(self, pack: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.odd, self.out = Packed(pack), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> Any:
        found = self.odd(x)
        return self.out(torch.relu(found.as_subclass(torch.Tensor) if isinstance(found, torch.Tensor) else found.y))


def unpacked(pack: Callable[[torch.Tensor], Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return Unpacked(pack)

    return make


@pytest.mark.parametrize("subclass", [Logging, Refusing])
def test_a_tensor_subclass_neither_notices_nor_disturbs_the_watch(subclass: type[torch.Tensor], tmp_path: Path) -> None:
    make = unpacked(lambda y: y.as_subclass(subclass))
    trained_bits(make)
    alone, Logging.seen = Logging.seen, []
    given, run = watched_training(tmp_path, make)
    assert run is not None
    assert (given, len(run["odd:output"].values), len(run["odd:output_grad"].values)) == ([], 6, 6)
    assert Logging.seen == alone * 2  # `watched_training` runs the training twice


@pytest.mark.parametrize(("pack", "error"), [(Fields, "RuntimeError: not to be looked at"), (Keys, "ValueError: no item")])
def test_an_output_that_cannot_be_walked_costs_the_activations_alone(pack: Any, error: str, tmp_path: Path) -> None:
    given, run = watched_training(tmp_path, unpacked(pack))
    assert given == [f"hookscope: activations is switched off at step 0 and the training goes on: {error}"]
    assert run is not None
    assert switched_off(run) == [("activations", error)]
    assert len(run["out.weight:param_grad"].values) == 6


def test_an_output_object_of_no_known_structure_is_not_looked_into(tmp_path: Path) -> None:
    given, run = watched_training(tmp_path, unpacked(Lazy))
    assert run is not None
    assert (given, len(run["out:output"].values)) == ([], 6)


def test_a_watch_that_nobody_keeps_goes_on_until_its_model_is_gone(tmp_path: Path) -> None:
    expected = trained_bits()
    model = mlp()
    optimizer = adam(model)
    hs.watch(model, optimizer, to=tmp_path)
    gc.collect()
    train(model, optimizer)
    assert (bits(model), hs.Run(tmp_path).meta.status) == (expected, "running")
    del model, optimizer
    gc.collect()
    run = hs.Run(tmp_path)
    assert (run.meta.status, run.steps.tolist(), torch.autograd.backward.__module__) == ("finished", [*range(6)], "torch.autograd")


def test_what_is_found_only_at_the_end_is_in_the_run_and_told(tmp_path: Path) -> None:
    """Without a named optimizer a single step is closed by the end of the watch."""
    model = mlp()
    with told(hs.FindingWarning) as given, hs.watch(model, to=tmp_path):
        (model(torch.ones(2, 4)) * float("nan")).mean().backward()
    assert [str(w.message).split(":")[1] for w in given] == [" error nonfinite-loss at step 0"]
    assert [event["rule"] for event in events(hs.Run(tmp_path), "finding")] == ["nonfinite-loss"]


def test_an_event_that_comes_after_the_end_is_refused_and_written_nowhere(tmp_path: Path) -> None:
    """The number of a closed file may belong to another file by then."""
    writer = RunWriter(tmp_path / "run", Meta())
    writer.close("finished")
    with (tmp_path / "other").open("wb"), pytest.raises(hs.RunError, match="is closed: the event 'finding' came too late"):
        writer.event({"event": "finding"})
    assert (tmp_path / "other").read_bytes() == b""
