"""What a program writes to a stream it has closed does not land in a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hookscope._record._descriptor import open_apart

PROGRAM = """
import os, sys
for descriptor in map(int, sys.argv[2]):
    os.close(descriptor)
from hookscope._record._descriptor import open_apart
found = open_apart(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(found, b"%d" % found)
try:
    os.write(2, b"lost")
except OSError:
    pass
"""


def test_a_file_is_opened_as_ever_where_the_streams_are_open(tmp_path: Path) -> None:
    found = open_apart(tmp_path / "file", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(found, b"text")
    os.close(found)
    assert (tmp_path / "file").read_bytes() == b"text"


def test_a_stream_that_was_closed_does_not_become_the_file(tmp_path: Path) -> None:
    for closed in ("2", "12", "012"):
        subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / closed), closed], check=True)
        assert int((tmp_path / closed).read_bytes()) > 2
