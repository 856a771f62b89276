"""Trainings in several threads: none disturbs another, and none ends the process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import hookscope as hs

from ._small import adam, batch, bits, events, hooks_on, mlp, train, trained_bits

STEPS = 12


def in_threads(*actions: Callable[[], object]) -> None:
    """Run them side by side, and raise what one of them raises."""
    raised: list[BaseException] = []

    def run(action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  # handed on below
            raised.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def meeting(threads: int) -> Callable[[int], object]:
    """To be called before each step: waits until all threads are there, so that they are sure to train at the same time."""
    barrier = threading.Barrier(threads, timeout=30)
    return lambda _step: barrier.wait()


def test_each_thread_watches_its_own_training() -> None:
    models = [mlp() for _ in range(3)]
    runs: dict[int, hs.Run] = {}
    meet = meeting(3)

    def work(number: int) -> None:
        with hs.watch(models[number], on_finding="raise") as watched:
            train(models[number], adam(models[number]), STEPS, before_step=meet)
        runs[number] = watched.run

    in_threads(*[lambda number=number: work(number) for number in range(3)])
    for number, model in enumerate(models):
        assert bits(model) == trained_bits(steps=STEPS)
        assert hooks_on(model) == 0
        assert runs[number].steps.tolist() == list(range(STEPS))
        assert runs[number]["0:output", "count"].values.tolist() == [64.0] * STEPS
        assert events(runs[number], "switched_off") == []
        assert events(runs[number], "other_threads") == []
    assert not hasattr(torch.autograd.backward, "__wrapped__")


def test_a_training_in_a_worker_thread_is_seen_by_a_watch_made_in_the_main_one() -> None:
    model = mlp()
    with hs.watch(model) as watched:
        in_threads(lambda: train(model, adam(model), STEPS))
    assert watched.run.steps.tolist() == list(range(STEPS))
    assert len(watched.run["2:output_grad", "rms"].values) == STEPS


def test_training_goes_on_in_another_thread_when_the_first_has_ended() -> None:
    model = mlp()
    optimizer = adam(model)
    with hs.watch(model) as watched:
        for _ in range(3):
            in_threads(lambda: train(model, optimizer, 2))
    assert watched.run.steps.tolist() == list(range(6))


def test_of_two_models_trained_at_once_under_one_watch_one_is_seen_and_the_other_is_told_of() -> None:
    models = {"a": mlp(), "b": mlp()}
    meet = meeting(2)
    with hs.watch(models) as watched:
        in_threads(*[lambda model=model: train(model, adam(model), STEPS, before_step=meet) for model in models.values()])
    (told,) = events(watched.run, "other_threads")
    (unseen,) = told["models"]
    (seen,) = models.keys() - {unseen}
    assert all(bits(model) == trained_bits(steps=STEPS) for model in models.values())
    several = len({site.model for site in watched.run.sites if site.kind == "output"}) > 1  # both began, or one was too late for that
    assert watched.run[f"{seen}.0:output" if several else "0:output", "count"].values.tolist() == [64.0] * STEPS
    found = [f.message for f in hs.diagnose(watched.run).findings if f.evidence.get("kind") == "other_threads"]
    assert found == [f"{unseen}: what other threads trained while one thread was training is not seen"]


def test_an_evaluation_in_another_thread_is_not_taken_for_the_training() -> None:
    model, over = mlp(), threading.Event()

    def evaluate() -> None:
        with torch.no_grad():
            while not over.is_set():
                model(batch(0))

    with hs.watch(model) as watched:
        train(model, adam(model), 1)
        evaluation = threading.Thread(target=evaluate)
        evaluation.start()
        train(model, adam(model), STEPS)
        over.set()
        evaluation.join()
    assert watched.run["0:output", "count"].values.tolist() == [64.0] * (STEPS + 1)
    assert events(watched.run, "switched_off") == []


def test_an_error_found_in_one_thread_is_not_raised_in_another() -> None:
    sick, sound = mlp(), mlp()
    with torch.no_grad():
        next(sick.parameters()).fill_(float("nan"))

    def fails() -> None:
        with pytest.raises(hs.FindingError), hs.watch(sick, on_finding="raise"):
            train(sick, adam(sick), STEPS)

    def works() -> None:
        with hs.watch(sound, on_finding="raise"):
            train(sound, adam(sound), STEPS)

    in_threads(fails, works)
    assert bits(sound) == trained_bits(steps=STEPS)


PROGRAM = """
import threading, torch
from torch import nn
def work(seed):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).pow(2).mean().backward()
        optimizer.step()
for _ in range(3):
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_a_search_in_threads_ends_under_hookscope_run_as_it_does_alone(attempt: int, tmp_path: Path) -> None:
    script = tmp_path / "search.py"
    script.write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "hookscope", "run", "--to", str(tmp_path / "run"), str(script)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "switched off" not in done.stderr
    assert hs.Run(tmp_path / "run").steps.size >= 30
