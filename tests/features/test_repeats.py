"""Two samples of one id are found wherever they lie, and none are found that are not there."""

from __future__ import annotations

import re
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hookscope as hs
from hookscope._features import _repeats
from hookscope._features._ids_column import NumbersColumn, TextsColumn
from hookscope._features._repeats import Recent, refuse_repeats


def written(folder: Path, ids: list[str] | np.ndarray) -> Path:
    for name in ("ids.npy", "ids.jsonl"):
        (folder / name).unlink(missing_ok=True)
    column = TextsColumn(folder / "ids.jsonl") if isinstance(ids, list) else NumbersColumn(folder / "ids.npy")
    column.append(ids)
    column.settle()
    column.close()
    return folder


@pytest.mark.parametrize("texts", [True, False])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 30), min_size=1, max_size=40), at_once=st.integers(1, 50))
def test_a_repeat_is_found_exactly_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: bool, ids: list[int], at_once: int
) -> None:
    monkeypatch.setattr(_repeats, "AT_ONCE", at_once)
    monkeypatch.setattr(_repeats, "RECENT", 7)
    names = [f"é{i}\n" for i in ids]
    folder = written(tmp_path, names if texts else np.array(ids, np.int64))
    given_ids = names if texts else ids
    twice = {name for name, count in Counter(given_ids).items() if count > 1}
    if not twice:
        refuse_repeats(folder, len(ids))
        return
    with pytest.raises(hs.UsageError, match="more than once, samples") as caught:
        refuse_repeats(folder, len(ids))
    one, other = map(int, re.findall(r"samples (\d+) and (\d+)", str(caught.value))[0])
    assert one < other
    assert given_ids[one] == given_ids[other]
    assert f"ids name {given_ids[one]!r} more" in str(caught.value)


def test_texts_of_one_hash_are_still_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Same:
        def digest(self) -> bytes:
            return b"12345678"

    monkeypatch.setattr(_repeats, "blake2b", lambda *_args, **_kwargs: Same())
    refuse_repeats(written(tmp_path, ["a", "b", "c"]), 3)
    with pytest.raises(hs.UsageError, match="ids name 'b' more than once, samples 1 and 2: give each sample an id of its own"):
        refuse_repeats(written(tmp_path, ["a", "b", "b"]), 3)


def test_of_the_last_ids_a_repeat_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_repeats, "RECENT", 4)
    recent = Recent()
    recent.skip(10)
    recent.add(np.arange(9))
    with pytest.raises(hs.UsageError, match="ids name 5 more than once, samples 15 and 19"):
        recent.add(np.array([5]))
    recent.add(np.array([0]))  # long ago: what looks through all ids at the end finds it


def test_memory_does_not_grow_with_the_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_repeats, "AT_ONCE", 1 << 12)
    monkeypatch.setattr(_repeats, "RECENT", 1 << 12)
    peaks = []
    for count in (1 << 14, 1 << 17):
        folder = written(tmp_path, np.random.default_rng(0).permutation(count))
        tracemalloc.start()
        refuse_repeats(folder, count)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
