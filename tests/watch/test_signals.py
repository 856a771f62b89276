"""SIGTERM where the program has its own ideas about it: ours is put in place, passed through, and taken out again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import hookscope as hs

from ._small import adam, mlp, train

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as this system has none")


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Whatever a test leaves behind is taken out again."""
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    yield
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def told_at_three(step: int) -> None:
    if step == 3:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_handler_that_lets_the_training_go_on_gets_a_whole_run(tmp_path: Path) -> None:
    seen: list[int] = []

    def mine(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    signal.signal(signal.SIGTERM, mine)
    model = mlp()
    with hs.watch(model, optimizer := adam(model), to=tmp_path):
        train(model, optimizer, before_step=told_at_three)
        assert seen == [signal.SIGTERM]
        assert hs.Run(tmp_path).steps.tolist()[:3] == [0, 1, 2]  # flushed at that moment
    assert signal.getsignal(signal.SIGTERM) is mine
    run = hs.Run(tmp_path)
    assert (run.steps.tolist(), run.meta.status, [(i.step, i.reason) for i in run.incidents]) == ([*range(6)], "finished", [(3, "signal")])


def test_who_wraps_our_handler_decides_what_happens(tmp_path: Path) -> None:
    """As Lightning does: it calls what was there before, and then asks its loop to stop."""
    seen: list[int] = []
    model = mlp()
    with hs.watch(model, optimizer := adam(model), to=tmp_path):
        before: Any = signal.getsignal(signal.SIGTERM)

        def theirs(number: int, frame: FrameType | None) -> None:
            before(number, frame)
            seen.append(number)

        signal.signal(signal.SIGTERM, theirs)
        train(model, optimizer, before_step=told_at_three)
    assert seen == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is theirs
    assert [i.reason for i in hs.Run(tmp_path).incidents] == ["signal"]
    os.kill(os.getpid(), signal.SIGTERM)  # nobody listens now, and theirs still calls ours
    assert len(seen) == 2


def test_a_watch_after_that_is_told_once_and_theirs_are_called_once(tmp_path: Path) -> None:
    seen: list[int] = []
    model, other = mlp(), mlp()
    first = hs.watch(model, to=tmp_path / "1")
    before: Any = signal.getsignal(signal.SIGTERM)

    def theirs(number: int, frame: FrameType | None) -> None:
        before(number, frame)
        seen.append(number)

    signal.signal(signal.SIGTERM, theirs)
    first.close()
    with hs.watch(other, to=tmp_path / "2"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert (len(seen), len(hs.Run(tmp_path / "2").incidents), hs.Run(tmp_path / "1").incidents) == (1, 1, ())
    assert signal.getsignal(signal.SIGTERM) is theirs


def test_who_ignores_the_signal_goes_on_ignoring_it(tmp_path: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    model = mlp()
    with hs.watch(model, optimizer := adam(model), to=tmp_path):
        train(model, optimizer, before_step=told_at_three)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    assert hs.Run(tmp_path).steps.tolist() == [*range(6)]


def test_what_was_there_comes_back_when_the_last_watch_ends(tmp_path: Path) -> None:
    one, other = mlp(), mlp()
    first = hs.watch(one, to=tmp_path / "1")
    ours = signal.getsignal(signal.SIGTERM)
    second = hs.watch(other, to=tmp_path / "2")
    assert signal.getsignal(signal.SIGTERM) is ours
    first.close()
    assert signal.getsignal(signal.SIGTERM) is ours
    second.close()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_watch_in_another_thread_leaves_the_handler_alone(tmp_path: Path) -> None:
    found: list[Any] = []

    def elsewhere() -> None:
        with hs.watch(mlp(), to=tmp_path):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]
    assert hs.Run(tmp_path).meta.status == "finished"


def test_every_watch_is_told(tmp_path: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)
    models = [mlp() for _ in "abc"]
    watches = [hs.watch(model, to=tmp_path / name) for model, name in zip(models, "abc", strict=True)]
    os.kill(os.getpid(), signal.SIGTERM)
    for watch in watches:
        watch.close()
    assert [len(hs.Run(tmp_path / name).incidents) for name in "abc"] == [1, 1, 1]


def test_a_forked_child_dies_of_the_signal_and_writes_nothing(tmp_path: Path) -> None:
    model = mlp()

    def fork(step: int) -> None:
        if step == 3:
            child = os.fork()
            if not child:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == signal.SIGTERM

    with hs.watch(model, optimizer := adam(model), to=tmp_path):
        train(model, optimizer, before_step=fork)
    assert (hs.Run(tmp_path).steps.tolist(), hs.Run(tmp_path).incidents) == ([*range(6)], ())
