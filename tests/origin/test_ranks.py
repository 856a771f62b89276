"""Two real ranks: the one whose sample is bad names its line, and nothing is sent again to find it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hookscope as hs

pytestmark = pytest.mark.slow  # two processes, each of which loads torch

PROGRAM = Path(__file__).with_name("_rank.py")


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    to, port = tmp_path_factory.mktemp("ranks") / "run", free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [[sys.executable, str(PROGRAM), str(rank), port, str(to)] for rank in range(2)]
    running = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) for c in command]
    ended = [process.communicate(timeout=240) for process in running]
    assert [process.returncode for process in running] == [0, 0], [err[-2000:] for _, err in ended]
    return to, [json.loads(out) for out, _ in ended]


def test_the_rank_with_the_bad_sample_names_its_line(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    zero, one = ([e for e in told["events"] if e["event"] == "origin"] for told in ranks[1])
    assert [(e["op"], e["module"], e["direction"], e["step"], e["samples"], e["exact"]) for e in one][:1] == [
        ("log", "(root)", "forward", 2, [3], True)
    ]
    assert "torch.log(1 - 2 *" in one[0]["code"]
    assert [e for e in zero if e["step"] <= 2 and e["op"] == "log"] == []  # its own forward was sound
    assert [e for told in ranks[1] for e in told["events"] if e["event"] == "switched_off"] == []


def test_nothing_is_reduced_again(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    assert [told["reduced"] for told in ranks[1]] == [4, 4]  # one bucket a step
    assert all(all(told["bad"]) for told in ranks[1])  # the average has carried it to both


def test_the_run_names_the_first_rank(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    first = hs.diagnose(hs.Run(ranks[0])).findings[0]
    assert (first.rule, first.op, first.first_step, first.rank) == ("nonfinite-forward", "log", 2, 1)
