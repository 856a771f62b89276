"""Put a real diagnosis into the README: run the demo, diagnose one of its sick runs, paste what the terminal showed."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(<!-- demo:start -->\n).*?(<!-- demo:end -->)", re.DOTALL)
WIDTH = "100"


def hookscope(*arguments: str) -> str:
    """What the command prints; a diagnosis that finds something exits 1, anything worse ends this script."""
    environment = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1"}
    command = [sys.executable, "-m", "hookscope", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode > 1:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def sick_run(runs: list[Path], rule: str) -> Path:
    """The run whose first finding is `rule`; otherwise any that is sick."""
    diagnoses = [(run, json.loads(hookscope("diagnose", str(run), "--json"))) for run in runs]
    sick = [(run, found["findings"][0]["rule"]) for run, found in diagnoses if found["verdict"] == "sick"]
    if not sick:
        sys.exit(f"none of the demo's runs is diagnosed as sick: {', '.join(run.name for run in runs)}")
    return next((run for run, first in sick if first == rule), sick[0][0])


def excerpt(rule: str) -> str:
    """The command line and its output, with the path a user would have."""
    with tempfile.TemporaryDirectory() as folder:
        hookscope("demo", "--to", folder)
        run = sick_run(sorted(path.parent for path in Path(folder).rglob("run.json")), rule)
        shown = f"runs/demo/{run.name}"
        output = hookscope("diagnose", str(run)).replace(str(run), shown).rstrip()
    return f"```text\n$ hookscope diagnose {shown}\n" + "\n".join(line.rstrip() for line in output.splitlines()) + "\n```\n"


def main() -> None:
    """Replace the block between the markers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", default="nonfinite-backward", help="show the run whose root cause this rule names (default: %(default)s)")
    block = excerpt(parser.parse_args().rule)
    text = README.read_text(encoding="utf-8")
    README.write_text(BLOCK.sub(lambda match: match[1] + block + match[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()
