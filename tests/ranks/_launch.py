"""Starts a program of this folder as several real ranks that speak through gloo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Ended:
    """How one rank ended."""

    code: int
    out: str
    err: str


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def launch(program: str, *words: str, ranks: int = 2, timeout: float = 240, variables: dict[str, str] | None = None) -> list[Ended]:
    """Run `program` once for each rank, with what torchrun tells its processes; a rank that does not end in time fails the test."""
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1", **(variables or {})}
    running = [
        subprocess.Popen(
            [sys.executable, str(HERE / program), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **told, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    try:
        ended = [process.communicate(timeout=timeout) for process in running]
    finally:
        for process in running:
            process.kill()
    return [Ended(process.returncode, *texts) for process, texts in zip(running, ended, strict=True)]


def launched_well(program: str, *words: str, ranks: int = 2) -> list[Ended]:
    ended = launch(program, *words, ranks=ranks)
    assert [rank.code for rank in ended] == [0] * ranks, [rank.err[-3000:] for rank in ended]
    return ended
