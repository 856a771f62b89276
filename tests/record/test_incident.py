"""The folder of an incident: there whole or not at all, and read without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hookscope as hs
from hookscope._core._finding import Finding
from hookscope._record._incident import FACTS, Incident, read_incident
from hookscope._record._incident_folder import Part, write_incident

from ._frames import plain_frame


def incident(step: int = 3, **more: object) -> Incident:
    return Incident(Path(), step, "finding", f"something at step {step}", **more)  # type: ignore[arg-type]


def written(folder: Path, step: int = 3, **more: object) -> Incident:
    found = write_incident(folder / "incidents", incident(step, **more), [plain_frame(step - 1), plain_frame(step)])
    assert found is not None
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    finding = Finding("mine", "error", "a sentence", 3, 3, causes=("one",), evidence={"nan": 2, "worst": float("nan")}, explains=(1,))
    wrote = written(tmp_path, findings=(finding,), origins=({"op": "log"},), inputs=({"path": "[0]"},), error={"type": "E"})
    read = read_incident(wrote.path)
    assert read.findings[0].evidence.pop("worst") != 0.0
    assert finding.evidence.pop("worst") != 0.0
    assert read == wrote
    assert read.rows.step.tolist() == [2] * 6 + [3] * 6
    assert read.random is None


def test_they_are_read_in_the_order_of_steps(tmp_path: Path) -> None:
    from hookscope._record import Meta, RunWriter

    RunWriter(tmp_path, Meta()).close("finished")
    for step in (10, 9, 10, 2):
        written(tmp_path, step)
    assert [found.path.name for found in hs.Run(tmp_path).incidents] == ["2", "9", "10", "10-2"]


def test_one_that_was_cut_off_is_passed_over_and_cleared_away_by_the_next(tmp_path: Path) -> None:
    cut_off = tmp_path / "incidents" / ".5.0.123.tmp"
    cut_off.mkdir(parents=True)
    (cut_off / "frames.arrows").write_bytes(b"half")
    written(tmp_path)
    assert [path.name for path in (tmp_path / "incidents").iterdir()] == ["3"]


def test_one_that_another_rank_is_writing_stays(tmp_path: Path) -> None:
    other = tmp_path / "incidents" / ".3.1.123.tmp"
    other.mkdir(parents=True)
    written(tmp_path)
    assert sorted(path.name for path in (tmp_path / "incidents").iterdir()) == [".3.1.123.tmp", "3"]


def test_a_part_that_fails_is_named_and_the_rest_is_there(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    parts = [Part("a.pt", 10, fail), Part("b.pt", 10, lambda path: path.write_bytes(b"whole"))]
    found = write_incident(tmp_path / "incidents", incident(), [], parts)
    assert found is not None
    assert (found.stored, found.missing) == (("frames.arrows", "b.pt"), {"a.pt": "OSError: [Errno 28] No space left on device"})
    assert sorted(path.name for path in found.path.iterdir()) == ["b.pt", "frames.arrows", "incident.json"]
    assert len(found.rows) == 0


def test_there_are_eight_at_most(tmp_path: Path) -> None:
    folder = tmp_path / "incidents"
    assert [write_incident(folder, incident(step), []) is not None for step in range(10)] == [True] * 8 + [False] * 2


def test_one_of_a_later_format_is_refused_and_so_is_what_is_none(tmp_path: Path) -> None:
    place = written(tmp_path).path
    facts = json.loads((place / FACTS).read_text())
    (place / FACTS).write_text(json.dumps({**facts, "format": 2}))
    with pytest.raises(hs.RunUnreadableError, match=r"is written in format 2; this hookscope reads formats up to 1"):
        read_incident(place)
    (place / FACTS).write_text("{}")
    with pytest.raises(hs.RunUnreadableError, match=r"its incident\.json was not written by hookscope"):
        read_incident(place)


@pytest.mark.parametrize("near", ["", "incidents", "incidents/4"])
def test_a_place_that_holds_none_is_told_where_one_is(near: str, tmp_path: Path) -> None:
    place = written(tmp_path).path
    with pytest.raises(hs.RunUnreadableError, match=f"give one of '{place}'"):
        read_incident(tmp_path / near)


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    from hookscope._record import Meta, RunWriter

    RunWriter(tmp_path, Meta()).close("finished")
    written(tmp_path)
    code = "import sys, hookscope; i = hookscope.Run(sys.argv[1]).incidents[0]; print(len(i.rows), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "12 False\n"


def test_replacing_the_run_removes_them(tmp_path: Path) -> None:
    from hookscope._record import Meta, RunWriter

    RunWriter(tmp_path, Meta()).close("finished")
    written(tmp_path)
    RunWriter(tmp_path, Meta(), overwrite=True).close("finished")
    assert hs.Run(tmp_path).incidents == ()
