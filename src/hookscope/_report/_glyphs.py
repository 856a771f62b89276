"""The signs and colours of the terminal picture: nothing is said by colour alone, and plain ASCII has a sign for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from ._view import Number

# Middle tones: at least 3.8:1 against black and against white, so that neither background hides them.
RED, AMBER, GREEN, BLUE, GREY = "color(160)", "color(130)", "color(28)", "color(31)", "color(244)"
STYLES = {
    "sick": f"bold {RED}",
    "error": f"bold {RED}",
    "warning": f"bold {AMBER}",
    "healthy": f"bold {GREEN}",
    "info": BLUE,
    "nothing recorded": f"bold {GREY}",
}


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs. `bars` from low to high; `tree` is: a branch, the last branch, a line passing by, nothing."""

    marks: dict[str, str]
    bars: str
    bad: str
    absent: str
    tree: tuple[str, str, str, str]
    line: str
    bullet: str
    plain: bool = False

    def bar(self, heights: Sequence[Number], *, repeat: int = 1) -> Text:
        """A curve in one line: what is not finite stands out as its own sign."""
        text = Text(no_wrap=True, end="")
        for style, signs in groupby((self._sign(height) for height in heights), key=lambda sign: sign[0]):
            text.append("".join(sign * repeat for _, sign in signs), style=style)
        return text

    def _sign(self, height: Number) -> tuple[str, str]:
        if height is None:
            return "", self.absent
        if math.isnan(height):
            return STYLES["error"], self.bad
        return BLUE, self.bars[round(height * (len(self.bars) - 1))]

    def spelt(self, text: str) -> str:
        """The text in letters and signs that this set has."""
        return text.translate(_ASCII) if self.plain else text


_ASCII = str.maketrans({"×": "x", "–": "-", "·": ".", "…": ".", "÷": "/", "→": ">", "∅": "-"})

UNICODE = Glyphs(
    marks={"sick": "✗", "error": "✗", "warning": "▲", "healthy": "✓", "info": "•", "nothing recorded": "○"},
    bars="▁▂▃▄▅▆▇█",
    bad="×",
    absent=" ",
    tree=("├─ ", "└─ ", "│  ", "   "),
    line="─",
    bullet="·",
)
ASCII = Glyphs(
    marks={"sick": "x", "error": "x", "warning": "!", "healthy": "+", "info": "i", "nothing recorded": "o"},
    bars="_.-=+*#@",
    bad="!",
    absent=" ",
    tree=("|- ", "`- ", "|  ", "   "),
    line="-",
    bullet="-",
    plain=True,
)
