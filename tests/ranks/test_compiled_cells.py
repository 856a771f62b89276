"""What a run of a compiled model says, on one rank or several, is what one process in float64 says of the whole batch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

import hookscope as hs

from ._launch import launch
from ._oracle import word

pytestmark = pytest.mark.slow  # real processes, each of which loads torch and compiles

DOCS = Path(__file__).parents[2] / "docs" / "compiled.md"
WAYS = {
    "eager": "eager",
    "compile": "`torch.compile(model)`",
    "fullgraph": "the same, `fullgraph=True`",
    "regional": "`block.compile(fullgraph=True)`",
}
COLUMNS = {"plain": "plain", "bf16": "bf16", "checkpoint": "checkpoint", "ddp": "DDP", "fsdp": "FSDP2", "tp": "TP", "2d": "FSDP2 and TP"}
RANKS = {"ddp": 2, "fsdp": 2, "tp": 2, "2d": 4}
REFUSED = {("ddp", "fullgraph"), ("fsdp", "fullgraph"), ("2d", "fullgraph")}  # by torch, of a model that is not watched
ALL = os.environ.get("HOOKSCOPE_COMPILED_CELLS") == "1"
ALWAYS = [("ddp", "regional"), ("fsdp", "regional"), ("tp", "compile")]


def cell_of(column: str) -> tuple[str, str]:
    """How the model is spread, and what else is done."""
    return (column, "plain") if column in RANKS else ("alone", column)


def words(to: Path, cells: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """For each column and way, what the table says; a run that is not right is an error."""
    found: dict[tuple[str, str], str] = {}
    for ranks in (1, 2, 4):
        here = {
            ":".join((cell_of(column)[0], way, cell_of(column)[1])): (column, way) for column, way in cells if RANKS.get(column, 1) == ranks
        }
        if not here:
            continue
        ended = launch("_compiled_cells.py", str(to), "aot_eager", *here, ranks=ranks, timeout=900)
        assert not any(rank.code for rank in ended), [rank.err[-3000:] for rank in ended]
        told = json.loads(ended[0].out)
        for name, (column, way) in here.items():
            how, _, what = name.split(":")
            if told[name] == "done":
                found[column, way] = word(hs.Run(Path(to, *name.split(":"))), how, what).split()[0]
            else:
                assert (column, way) in REFUSED, told[name]
                found[column, way] = "refused"
    return found


def table(found: dict[tuple[str, str], str]) -> str:
    """In Markdown."""
    head = ["", *COLUMNS.values()], ["---"] * (1 + len(COLUMNS))
    rows = [[name, *(found[column, way] for column in COLUMNS)] for way, name in WAYS.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in (*head, *rows))


def test_blocks_compiled_singly_and_a_whole_model_are_right_on_several_ranks(tmp_path: Path) -> None:
    assert set(words(tmp_path, ALWAYS).values()) == {"right"}


@pytest.mark.skipif(not ALL, reason="takes ten minutes: HOOKSCOPE_COMPILED_CELLS=1 asks for it")
def test_every_cell_is_right_or_refused_by_torch_as_the_docs_say(tmp_path: Path) -> None:
    made = table(words(tmp_path, [(column, way) for column in COLUMNS for way in WAYS]))
    before, _, rest = DOCS.read_text().partition("<!-- cells -->\n")
    shown, _, after = rest.partition("<!-- end of cells -->")
    if os.environ.get("HOOKSCOPE_WRITE_DOCS") == "1":
        DOCS.write_text(f"{before}<!-- cells -->\n{made}\n<!-- end of cells -->{after}")
    else:
        assert shown.strip() == made
