"""An extraction that was stopped goes on where it was, to the same bytes; what would mix two extractions is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hookscope as hs
from hookscope._features import _commits, _npy_store, _shard_store

from ._streaming import StoppedError, bare, convnet, files, hooks, loader, stopped, until

STORAGES = ("npy", "safetensors", "parquet")


@pytest.fixture(autouse=True)
def _every_batch_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_npy_store.NpyStore, "full", lambda *_: True)
    monkeypatch.setattr(_shard_store, "SHARD_BYTES", 5000)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_what_was_stopped_goes_on_to_the_same_bytes(tmp_path: Path, storage: Any, count: int) -> None:
    whole = hs.Store(tmp_path / "whole", storage=storage, ids=[f"{i}.png" for i in range(22)])
    part = hs.Store(tmp_path / "part", storage=storage, ids=[f"{i}.png" for i in range(22)])
    hs.extract(convnet(), loader(), ["0", "3"], to=whole)
    stopped(part, count)
    model = convnet()
    seen: list[int] = []
    model.register_forward_pre_hook(lambda m, args: seen.append(len(args[0])))
    features = hs.extract(model, loader(), ["0", "3"], to=part)
    assert files(tmp_path / "whole") == files(tmp_path / "part")
    assert torch.equal(features["3"].torch(), bare(convnet(), loader())["3"])  # type: ignore[arg-type]  # no list: nothing is ragged
    assert len(seen) == 5 - count if storage == "npy" else len(seen) <= 5


def test_a_keyboard_interrupt_keeps_what_is_whole_and_leaves_no_hook(tmp_path: Path) -> None:
    model = convnet()
    with pytest.raises(KeyboardInterrupt):
        hs.extract(model, until(loader(), 2, KeyboardInterrupt()), "3", to=tmp_path / "f")
    assert hooks(model) == 0
    with pytest.raises(hs.FeaturesError, match=r"are incomplete, 10 samples so far: run the same hookscope\.extract again"):
        hs.Features(tmp_path / "f")
    assert hs.Features(tmp_path / "f", partial=True).samples == 10


def test_a_complete_extraction_is_returned_without_running_the_model(tmp_path: Path) -> None:
    hs.extract(convnet(), loader(), "3", to=tmp_path / "f")
    before = files(tmp_path / "f")
    model = convnet()
    seen: list[int] = []
    model.register_forward_pre_hook(lambda m, args: seen.append(len(args[0])))
    assert hs.extract(model, loader(), "3", to=tmp_path / "f").samples == 22
    assert seen == []
    assert files(tmp_path / "f") == before


@pytest.mark.parametrize("cut", [0, 700, 2000])
def test_a_file_that_lost_its_end_is_gone_on_with_from_the_last_commit_it_holds(tmp_path: Path, cut: int) -> None:
    """As after a power cut, when the disk had not yet taken what the system was given."""
    hs.extract(convnet(), loader(), ["0", "3"], to=tmp_path / "whole")
    stopped(hs.Store(tmp_path / "f"), 4)
    with (tmp_path / "f" / "0.npy").open("r+b") as file:
        file.truncate(256 + 5 * 4 * 36 * 4 + cut)
    hs.extract(convnet(), loader(), ["0", "3"], to=tmp_path / "f")
    assert files(tmp_path / "f") == files(tmp_path / "whole")
    stopped(hs.Store(tmp_path / "g"), 4)
    with (tmp_path / "g" / "0.npy").open("r+b") as file:
        file.truncate(300)
    with pytest.raises(hs.FeaturesError, match="are shorter than its first commit says: pass overwrite=True"):
        hs.extract(convnet(), loader(), ["0", "3"], to=tmp_path / "g")


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_journal_that_was_torn_loses_its_torn_lines_alone(tmp_path: Path, cut: int) -> None:
    hs.extract(convnet(), loader(), ["0", "3"], to=tmp_path / "whole")
    stopped(hs.Store(tmp_path / "f"), 4)
    journal = tmp_path / "f" / "commits.jsonl"
    journal.write_bytes(journal.read_bytes()[:-cut])
    hs.extract(convnet(), loader(), ["0", "3"], to=tmp_path / "f")
    assert files(tmp_path / "f") == files(tmp_path / "whole")


def test_a_long_journal_is_thinned_and_still_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_commits, "_LONG", 400)
    monkeypatch.setattr(_commits, "_NEWEST", 2)
    hs.extract(convnet(), loader(batch_size=1), ["0", "3"], to=tmp_path / "whole")
    with pytest.raises(StoppedError):
        hs.extract(convnet(), until(loader(batch_size=1), 20, StoppedError()), ["0", "3"], to=tmp_path / "f")
    lines = (tmp_path / "f" / "commits.jsonl").read_text().splitlines()
    assert len(lines) <= 4
    assert json.loads(lines[-1])["batches"] == 20
    hs.extract(convnet(), loader(batch_size=1), ["0", "3"], to=tmp_path / "f")
    assert files(tmp_path / "f") == files(tmp_path / "whole")


def test_a_second_process_on_the_same_directory_is_told(tmp_path: Path) -> None:
    code = f"from pathlib import Path\nfrom hookscope._features._lock import Lock\nLock(Path({str(tmp_path / 'f')!r}))"

    def batches() -> Iterator[Any]:
        for number, batch in enumerate(loader()):
            if number == 1:
                done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
                assert "FeaturesError: another process is writing features to" in done.stderr
            yield batch

    assert hs.extract(convnet(), batches(), "3", to=tmp_path / "f").samples == 22
