"""train a small network on real digits three times, twice with a planted fault, and read what hookscope says

    hookscope demo
    hookscope demo --to runs/demo --quick

Takes some seconds and needs scikit-learn. Runs of an earlier demo in the same place are replaced.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

QUICK_STEPS = 30


@dataclass(frozen=True, slots=True)
class Story:
    """One training: which function trains, what is planted in it, and what to look for in the report."""

    name: str
    train: Callable[[Path, int], None]
    steps: int
    planted: str
    look: str


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--to", type=Path, default=Path("hookscope-demo"), metavar="DIR", help="where the runs go (default: hookscope-demo)"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps of each training at most")


def run(args: argparse.Namespace) -> int:
    """Train, read, show."""
    stories = _stories()
    for number, story in enumerate(stories, 1):
        path = args.to / story.name
        story.train(path, min(story.steps, QUICK_STEPS) if args.quick else story.steps)
        _tell(f"{number} of {len(stories)}", story, path)
    _next([args.to / story.name for story in stories])
    return 0


def _stories() -> tuple[Story, ...]:
    from .._core._errors import UsageError

    if importlib.util.find_spec("sklearn") is None:
        raise UsageError("the demo trains on scikit-learn's digits, and scikit-learn is not installed: pip install scikit-learn")
    from . import _demo_training as training

    return (
        Story(
            name="healthy",
            train=training.healthy,
            steps=120,
            planted="nothing: Adam, learning rate 0.001",
            look="no finding; the loss falls, and the update (upd/w) is small against the weights in every module",
        ),
        Story(
            name="lr-too-high",
            train=training.learning_rate_too_high,
            steps=40,
            planted=f"a learning rate of {training.TOO_HIGH:g} (SGD with momentum) where 0.05 would do",
            look="the first finding names the optimizer, not a module: the first updates are larger than the weights themselves",
        ),
        Story(
            name="sqrt-at-zero",
            train=training.sqrt_at_zero,
            steps=40,
            planted="an auxiliary loss with the sqrt of a sum of squares, which is exactly 0 when the random shift is 0 (step 12)",
            look="at step 12 forward and loss are finite, the NaN is born in the backward pass of the loss; a step later it is everywhere",
        ),
    )


def _tell(count: str, story: Story, path: Path) -> None:
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    from .._record import Run
    from .._report import Picture, build
    from .._rules import diagnose
    from ._screen import show

    recorded = Run(path)
    told = Table.grid(padding=(0, 2, 0, 0))
    told.add_row("planted", Text(story.planted, overflow="fold"))
    told.add_row("look for", Text(story.look, overflow="fold"))
    show(Rule(f"demo {count}: {story.name}", align="left"), told, "", Picture(build(recorded, diagnose(recorded))), "")


def _next(paths: list[Path]) -> None:
    from rich.rule import Rule
    from rich.text import Text

    from ._screen import show

    sick = paths[-1]
    lines = [
        "The runs are in " + ", ".join(str(path) for path in paths) + ".",
        "Next:",
        f"  hookscope show {sick} --step 0",
        f"  hookscope diagnose {sick} --json",
        f"  python -c \"import hookscope as hs; print(hs.Run('{sick}').summary())\"",
        "and in your own training:",
        "  import hookscope as hs",
        '  with hs.watch(model, optimizer, to="runs/mine"): ...',
    ]
    show(Rule("and now", align="left"), Text("\n".join(lines)))
