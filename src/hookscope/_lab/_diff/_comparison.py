"""The answer of `diff`: a verdict in a sentence, and every site in order of execution."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from textwrap import shorten
from typing import Any

from ._gradients import GradientDifference
from ._parameters import ParameterDifference
from ._row import SiteDifference
from ._table import table

FORMAT = 1


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """What `diff` found. It is true where both sides agree within tolerance, so that `assert hs.diff(a, b, batch)` reads as it says.

    `verdict` is one sentence. `first` is the module whose own doing the first divergence is, None where there is none. `sites` are all
    compared sites in a's order of execution (see `SiteDifference`), `parameters` all parameters and buffers of paired modules,
    `gradients` those of outputs and parameters where a loss was given. `map` is which module was taken for which: it can be changed and
    passed back as `map=`. `notes` say what was not seen.

    >>> import torch, hookscope as hs
    >>> a, b = torch.nn.Sequential(torch.nn.ReLU()), torch.nn.Sequential(torch.nn.ReLU())
    >>> found = hs.diff(a, b, torch.ones(2, 2))
    >>> bool(found), found.verdict, [site.status for site in found]
    (True, 'equal to the last bit at all 2 sites', ['equal', 'equal'])
    """

    verdict: str
    first: SiteDifference | None
    sites: tuple[SiteDifference, ...]
    parameters: tuple[ParameterDifference, ...] = ()
    gradients: tuple[GradientDifference, ...] = ()
    map: Mapping[str | tuple[str, ...], str | tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    agrees: bool = True

    def __bool__(self) -> bool:
        return self.agrees

    def __iter__(self) -> Iterator[SiteDifference]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __str__(self) -> str:
        return table(self)

    def __repr__(self) -> str:
        return f"<hookscope diff of {len(self.sites)} sites: {shorten(self.verdict, 160, placeholder=' ...')}>"

    def to_json(self, *, indent: int | None = 2) -> str:
        """Everything as strict JSON: format 1, NaN and Inf as text, `map` as a list of pairs."""
        document = {
            "format": FORMAT,
            "agrees": self.agrees,
            "verdict": self.verdict,
            "first": None if self.first is None else self.first.name,
            "sites": [asdict(row) for row in self.sites],
            "parameters": [asdict(row) for row in self.parameters],
            "gradients": [asdict(row) for row in self.gradients],
            "map": [list(pair) for pair in self.map.items()],
            "notes": list(self.notes),
        }
        return json.dumps(_strict(document), indent=indent, allow_nan=False, ensure_ascii=False)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
