"""A run at a URL is read; recording to one is refused, since what is flushed must survive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._core._frame import Frame
from hookscope._core._site import Site
from hookscope._record import Meta, RunWriter

fsspec = pytest.importorskip("fsspec")
STATS = np.array([[2.0, 0, 0, 0, 3.0, 5.0, 1.0, 2.0]])


def test_a_run_is_read_and_followed_at_its_url(tmp_path: Path) -> None:
    there = fsspec.filesystem("memory")
    writer, at = RunWriter(tmp_path / "run", Meta()), np.zeros(1, np.int32)
    writer.sites([Site(0, "loss", "loss")])
    writer.frame(Frame(0, at, at, at, at, STATS))
    writer.flush()
    there.put(str(tmp_path / "run"), "/runs/base", recursive=True)
    run = hs.Run("memory://runs/base")
    assert run["loss", "mean"].values.tolist() == [1.5]
    assert not run.refresh()
    writer.frame(Frame(1, at, at, at, at, STATS))
    writer.close("finished")
    there.rm("/runs/base", recursive=True)
    there.put(str(tmp_path / "run"), "/runs/base", recursive=True)
    assert run.refresh()
    assert (run.steps.tolist(), run.meta.status) == ([0, 1], "finished")


def test_where_there_is_no_run_that_is_said() -> None:
    with pytest.raises(hs.HookscopeError, match=r"no run at memory://nothing/here: there is no run\.json"):
        hs.Run("memory://nothing/here")


def test_recording_to_a_url_is_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(1, 1)
    with pytest.raises(hs.HookscopeError, match=r"cannot record to s3://bucket/run: .* record to a directory and copy it there"):
        hs.watch(model, torch.optim.SGD(model.parameters(), 0.1), to="s3://bucket/run")
    assert list(tmp_path.iterdir()) == []
