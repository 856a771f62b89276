"""Put a real diagnosis into the README: watch `train.py` beside this file, diagnose the run, paste what the terminal showed."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
TRAINING = Path(__file__).with_name("train.py")
BLOCK = re.compile(r"(<!-- demo:start -->\n).*?(<!-- demo:end -->)", re.DOTALL)
WIDTH = "100"


def hookscope(*arguments: str, at: str) -> str:
    """What the command prints in the directory `at`; a diagnosis that finds something exits 1, anything worse ends this script."""
    environment = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "hookscope", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=at)
    if done.returncode > 1:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def excerpt() -> str:
    """Both commands as they are typed, and what the second one says; files are named as seen from where the script lies."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(TRAINING, folder)
        printed = hookscope("run", TRAINING.name, at=folder)
        told = hookscope("diagnose", "runs/train-1", at=folder).replace(f"{os.path.realpath(folder)}/", "").rstrip()
    lines = [f"$ hookscope run {TRAINING.name}", printed.rstrip(), "$ hookscope diagnose runs/train-1", *told.splitlines()]
    return "```text\n" + "\n".join(line.rstrip() for line in lines) + "\n```\n"


def main() -> None:
    """Replace the block between the markers."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    block = excerpt()
    text = README.read_text(encoding="utf-8")
    README.write_text(BLOCK.sub(lambda match: match[1] + block + match[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()
