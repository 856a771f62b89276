"""What was found about the origin of a bad value."""

from __future__ import annotations

import linecache
from dataclasses import asdict, dataclass
from typing import Any, Literal

Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor that went into the operation: over its finite elements min and max, and how many were not finite."""

    position: int
    shape: tuple[int, ...]
    dtype: str
    min: float
    max: float
    nan: int
    inf: int


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """The operation at which a value first went bad.

    `op` is torch's own name of it (`log`, `div`); `function` the function of torch that the program called, where that is another one;
    `module` the path of the module in whose forward it ran, None outside the model. `operands` are its inputs. `samples` are the
    positions in the batch where the result is bad, as far as a batch can be told. `outside` says that it ran outside the
    models, and `entry` that what they were given was bad before they ran. `because` names an operation that had put an infinity
    there on purpose, as a mask does. Where nothing is bad but values have leapt, `growth` says how many times larger the result is than
    what went in; below 1 where they have fallen, and next to nothing where the result is 0. `exact` says that the second run gave the
    very outputs of the first; else `notes` say why not. They also say where what is compiled was `replayed eagerly`.

    >>> Verdict("log", "forward", "encoder.3", result="NaN").as_event()["module"]
    'encoder.3'
    """

    op: str
    direction: Direction
    module: str | None
    function: str | None = None
    file: str | None = None
    line: int | None = None
    operands: tuple[Operand, ...] = ()
    result: str = ""
    growth: float = 0.0
    samples: tuple[int, ...] = ()
    because: str | None = None
    outside: bool = False
    entry: bool = False
    exact: bool = True
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        where = "outside the model" if self.module is None else f"in {self.module or '(root)'}"
        line = f", {self.file}:{self.line}" if self.file else ""
        return f"<hookscope origin: {self.op} of the {self.direction} {where}{line}: {self.result or 'leapt'}>"

    @property
    def code(self) -> str:
        """The source line, stripped, or `""`."""
        return linecache.getline(self.file, self.line).strip() if self.file and self.line else ""

    def as_event(self) -> dict[str, Any]:
        """As plain JSON."""
        return {**asdict(self), "code": self.code}
