"""The picture: its order, its width, its signs."""

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from hookscope._core._finding import Diagnosis, Finding
from hookscope._report import Picture, build, text

from ._runs import Making, deep, stats

FINDING = Finding(
    "nonfinite-backward",
    "error",
    "The gradient of the loss has 640 NaN among 640 values, while all outputs and the loss (2.31) are finite.",
    3,
    9,
    "loss",
    "backward",
    source={"file": "train.py", "line": 31, "code": "    distance = (logits - shifted).square().sum().sqrt()"},
    causes=("sqrt of exactly zero: the slope there is infinite", "a second cause"),
    advice=("add 1e-12 before the sqrt",),
    evidence={"nan": 640, "loss": float("nan"), "a_very_long_name_without_any_space_in_it_" * 3: 1},
)
WEIGHT = Finding("nonfinite-weight", "warning", "Weights are NaN.", 4, 9, module="h.1.fc", phase="optimizer")


def picture(made: Making, *findings: Finding, tree: bool = True, depth: int | None = None) -> Picture:
    run = made.run()
    return Picture(build(run, Diagnosis("runs/base", len(run.steps), findings)), tree=tree, depth=depth)


def sick() -> Making:
    made = deep(3, 3)
    for step in range(3, 10):
        made.weight(step, "h.1.fc", grad=stats(1.0, nan=4))
        made.loss(step, stats(1.0, 1, nan=1))
    made.events.append({"event": "switched_off", "part": "sink", "step": 7, "error": "OSError: " + "no space left " * 9})
    return made


MAKINGS = {"healthy": deep(5, 30), "sick": sick(), "empty": Making(), "one step": deep(2, 1), "huge": deep(660, 1, growth=1.1)}


@pytest.mark.parametrize("name", MAKINGS)
@pytest.mark.parametrize("width", [60, 80, 100, 160, 200])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    findings = (FINDING, WEIGHT) if name == "sick" else ()
    lines = text(picture(MAKINGS[name], *findings), width=width).splitlines()
    assert lines
    assert max(cell_len(line) for line in lines) <= width


def test_the_verdict_comes_first_then_findings_in_order_then_modules_then_what_was_not_seen() -> None:
    shown = text(picture(sick(), FINDING, WEIGHT))
    marks = [
        "✗ sick  runs/base",
        "1. ✗ error  nonfinite-backward",
        "2. ▲ warning  nonfinite-weight",
        "modules  numbers",
        "(root)",
        "not seen",
    ]
    places = [shown.index(mark) for mark in marks]
    assert places == sorted(places)
    assert places[0] == 0


def test_a_finding_says_where_why_and_what_to_do() -> None:
    shown = text(picture(sick(), FINDING), width=200)
    for piece in (
        "in the loss · backward · steps 3–9",
        "train.py:31  distance = (logits - shifted).square().sum().sqrt()",
        "nan 640 · loss NaN",
        "likely   · sqrt of exactly zero",
        "do       · add 1e-12 before the sqrt",
    ):
        assert piece in shown


def test_the_module_with_a_finding_carries_its_number_and_nan_is_written_as_such() -> None:
    lines = text(picture(sick(), FINDING, WEIGHT)).splitlines()
    row = next(line for line in lines if line.startswith("  ▲2"))
    assert "NaN" in row
    assert "×" in row


def test_numbers_of_all_rows_end_in_the_same_column() -> None:
    lines = text(picture(deep(3, 4))).splitlines()
    header = next(line for line in lines if "upd/w" in line)
    rows = [line for line in lines if re.search(r"\bfc\b", line)]
    assert len(rows) == 3
    ends = {title: header.index(title) + len(title) for title in ("rms", "grad", "upd/w")}
    for row in rows:
        assert row[: ends["rms"]].endswith("1.00")
        assert row[: ends["grad"]].endswith("0.200")  # four elements of 0.1
        assert row[: ends["upd/w"]].endswith("1.0e-3")


def test_forty_eight_like_blocks_are_one_row_and_its_inside() -> None:
    shown = text(picture(deep(48, 3)))
    assert "0–47 ×48" in shown
    assert shown.count("ReLU") == 1


def test_two_thousand_modules_fit_a_person() -> None:
    run = MAKINGS["huge"].run()
    assert len({site.full_module for site in run.sites}) > 1900
    assert len(text(picture(MAKINGS["huge"])).splitlines()) < 90


def test_a_diagnosis_shows_no_tree() -> None:
    shown = text(picture(sick(), FINDING, tree=False))
    assert "nonfinite-backward" in shown
    assert "(root)" not in shown


def test_plain_text_has_no_escape_codes_and_a_colour_terminal_has_some() -> None:
    assert "\x1b" not in text(picture(sick(), FINDING))
    screen = io.StringIO()
    Console(file=screen, force_terminal=True, color_system="256", width=100, _environ={}).print(picture(sick(), FINDING))
    assert "\x1b[" in screen.getvalue()


def test_a_terminal_that_knows_only_ascii_gets_only_ascii() -> None:
    raw = io.BytesIO()
    screen = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    Console(file=screen, width=100, color_system=None, _environ={}).print(picture(sick(), FINDING, WEIGHT))
    shown = raw.getvalue().decode("ascii")
    assert "x sick  runs/base" in shown
    assert "! warning" in shown


def test_markup_in_a_users_names_is_shown_and_not_obeyed() -> None:
    finding = Finding("rule", "error", "The output of [bold]a[/bold] is :smile: [/nonsense].", 0, 0)
    assert "[bold]a[/bold] is :smile: [/nonsense]." in text(picture(deep(1, 1), finding))
