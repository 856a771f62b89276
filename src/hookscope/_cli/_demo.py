"""demo: train a small network on real digits three times, twice with a planted fault, and read what hookscope says

hookscope demo
hookscope demo --to runs/demo --quick
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

STEPS, QUICK_STEPS = 120, 40


@dataclass(frozen=True, slots=True)
class Story:
    """One training: which function trains, what is planted in it, and what to look for in the report."""

    name: str
    train: Callable[[Path, int], None]
    planted: str
    look: str


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--to", type=Path, default=Path("hookscope-demo"), metavar="DIR", help="where the runs go (default: hookscope-demo)"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps each instead of {STEPS}")


def run(args: argparse.Namespace) -> int:
    """Train, read, show."""
    stories = _stories()
    for number, story in enumerate(stories, 1):
        path = args.to / story.name
        story.train(path, QUICK_STEPS if args.quick else STEPS)
        _tell(f"{number} of {len(stories)}", story, path)
    _next([args.to / story.name for story in stories])
    return 0


def _stories() -> tuple[Story, ...]:
    from .._core._errors import UsageError

    if importlib.util.find_spec("sklearn") is None:
        raise UsageError("the demo trains on scikit-learn's digits, and scikit-learn is not installed: pip install scikit-learn")
    from . import _demo_training as training

    return (
        Story("healthy", training.healthy, "nothing: Adam, learning rate 0.001", "no finding; the gradient is of one size through depth"),
        Story(
            "lr-too-high",
            training.learning_rate_too_high,
            "a learning rate of 50 (SGD with momentum)",
            "the update is not small against the weights (upd/w in the first steps); the loss leaps up at once",
        ),
        Story(
            "sqrt-at-zero",
            training.sqrt_at_zero,
            "sqrt of a sum of squares in an auxiliary loss, which is exactly 0 when the random shift happens to be 0",
            "forward and loss are finite to the last: the NaN is born in the backward pass of the loss, in one step",
        ),
    )


def _tell(count: str, story: Story, path: Path) -> None:
    from rich.rule import Rule
    from rich.text import Text

    from .._record import Run
    from .._report import Picture, build
    from .._rules import diagnose
    from ._screen import show

    recorded = Run(path)
    told = Text.assemble("planted   ", story.planted, "\n", "look for  ", story.look, "\n", overflow="fold")
    show(Rule(f"demo {count}: {story.name}", align="left"), told, Picture(build(recorded, diagnose(recorded))), "")


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
