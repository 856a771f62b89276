"""`Analysis`: what one pass over the data says about every layer, as plain data that merges, compares, saves and draws itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._core._errors import SelectionError, UsageError
from ..._core._finding import Finding
from ..._core._names import near
from ._attention import Attention
from ._layer import Layer

if TYPE_CHECKING:
    import pandas as pd

    from ._compare import Comparison


@dataclass(frozen=True, eq=False)
class Analysis:
    """Layers in order of execution, attention, and what was not seen; `analyze` makes it.

    `print(analysis)` shows findings and a table, worst layers first. `analysis["encoder.0"]` is a layer with all its numbers, `attention`
    holds one entry a module whose attention was seen, `blind` says of each selected place that gave nothing why. It holds sums, not
    means: `merge` of parts, from other ranks or on other days, is what one pass over all would have given. `to_json` and `Analysis.load`
    write and read it, `to_pandas` gives a table, `compare` sets two side by side, `html` draws (extra `hookscope[report]`).

    >>> import torch
    >>> from torch import nn
    >>> import hookscope as hs
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> model[0].load_state_dict({"weight": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), "bias": torch.tensor([0.0, 0.0, -1.0])})
    <All keys matched successfully>
    >>> analysis = hs.analyze(model, [torch.randn(50, 2) for _ in range(4)], "*")
    >>> analysis["0"].after.name, analysis["0"].dead.tolist(), analysis["1"].positions
    ('1', [False, False, True], 200)
    """

    layers: tuple[Layer, ...]
    attention: Mapping[str, Attention] = field(default_factory=dict)
    blind: Mapping[str, str] = field(default_factory=dict)
    batches: int = 0
    model: str = ""

    def __getitem__(self, name: str) -> Layer:
        """The layer of that name; a bare path also finds the first tensor of a structured output, or the first call."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        for layer in self.layers:
            if (layer.path or "(root)") == name:
                return layer
        known = [layer.name for layer in self.layers]
        if name in self.blind:
            raise SelectionError(f"nothing was read at {name!r}: {self.blind[name]}")
        hint = " or ".join(map(repr, near(name, known))) or ", ".join(known[:4])
        raise SelectionError(f"no layer of the analysis is called {name!r}: did you mean {hint}?")

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What stands out, worst first, with causes and advice."""
        from ._findings import findings

        return findings(self.layers, self.layers[-1].name if self.layers else None)

    def merge(self, other: Analysis) -> Analysis:
        """Both together, as one pass over the data of both would have it; from other ranks, or on other data.

        Layers, and heads, that only one of them saw are kept as they are. Raises `UsageError` where a layer has another number of units,
        or a spectrum in one of them only.
        """
        others = {layer.name: layer for layer in other.layers}
        mine = {layer.name for layer in self.layers}
        for layer in self.layers:
            _must_fit(layer, others.get(layer.name))
        layers = [layer.merge(others[layer.name]) if layer.name in others else layer for layer in self.layers]
        attention = dict(self.attention)
        for name, found in other.attention.items():
            attention[name] = attention[name].merge(found) if name in attention else found
        layers += [layer for layer in other.layers if layer.name not in mine]
        seen = {layer.name for layer in layers}
        blind = {name: why for name, why in {**other.blind, **self.blind}.items() if name not in seen}
        return replace(self, layers=tuple(layers), attention=attention, blind=blind, batches=self.batches + other.batches)

    def compare(self, other: Analysis) -> Comparison:
        """This analysis and a later one, layer by layer, those that changed most first; `print` it.

        Layers are matched by name; those that only one of them has are told. Made to set a model before a fine-tuning beside one after
        it, on the same data.
        """
        from ._compare import compare

        return compare(self, other)

    def to_pandas(self) -> pd.DataFrame:
        """One row a layer, one column a number, as in the table that `print` shows and more; needs pandas."""
        try:
            import pandas as pd
        except ImportError:
            raise UsageError("to_pandas needs pandas, which is not installed: pip install pandas") from None
        from ._view import numbers

        table: pd.DataFrame = pd.DataFrame([numbers(layer) for layer in self.layers]).set_index("layer")
        return table

    def to_json(self, path: str | Path, *, moments: bool = False) -> None:
        """Write it to a file; `Analysis.load` reads it, without a loss of digits.

        `moments=True` keeps the second moments of the layers (8 bytes times the square of their units), which a later `merge` needs to
        merge spectra; without them, the spectra themselves are kept.
        """
        from ._json import dump

        Path(path).write_text(dump(self, moments=moments), encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Analysis:
        """Read what `to_json` wrote. Raises `UsageError` where the file is none."""
        from ._json import parse

        return parse(Path(path).read_text(encoding="utf-8"), str(path))

    def html(self, path: str | Path) -> Path:
        """Write one self-contained page: findings, table, units by layer, spectra, depth; needs `hookscope[report]` (Plotly)."""
        from ._pictures import page

        Path(path).write_text(page(self), encoding="utf-8")
        return Path(path)

    def __str__(self) -> str:
        from ._terminal import text

        return text(self)

    def __rich__(self) -> Any:
        """As Rich draws it."""
        from ._terminal import picture

        return picture(self)

    def __repr__(self) -> str:
        return f"<hookscope.Analysis of {len(self.layers)} layers, {len(self.findings)} findings>"


def _must_fit(layer: Layer, other: Layer | None) -> None:
    if other is None:
        return
    if layer.units != other.units:
        raise UsageError(f"{layer.name} has {layer.units} units here and {other.units} there: these are two models")
    if layer.eigenvalues.size and other.eigenvalues.size and (layer.moment is None or other.moment is None):
        raise UsageError(f"the second moment of {layer.name} is not in both: write with to_json(path, moments=True) what is to be merged")
