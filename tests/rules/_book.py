"""Runs written by hand: a model's modules in the order they run, and what they did in each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hookscope._core._frame import STEP_LEVEL, Frame
from hookscope._core._site import Site
from hookscope._core._stats import Stats
from hookscope._record import MemoryWriter, Run

NAN, INF = float("nan"), float("inf")
OWN_CODE = ("Net", "Block", "Odd")  # classes of the user; all others are torch's
ABSENT = None


def stats_of(values: Any) -> Stats:
    """Counted and summed in float64 by the definition in `_core/_stats.py`."""
    x = np.asarray(values, dtype=np.float64).ravel()
    nan, inf, finite = np.isnan(x), np.isinf(x), x[np.isfinite(x)]
    number = x[~nan]
    low, high = (number.min(), number.max()) if len(number) else (INF, -INF)
    return Stats(len(x), nan.sum(), inf.sum(), (x == 0).sum(), finite.sum(), (finite**2).sum(), low, high)


class Book:
    """`Book({"a": "Linear", "": "Net"})` lists modules in the order in which their outputs appear; Linear has a parameter `weight`."""

    def __init__(self, modules: Mapping[str, str], weights: Mapping[str, tuple[int, ...]] | None = None, dtype: str = "float32") -> None:
        self.modules = modules
        self.weights = {f"{m}.weight": (8, 8) for m, c in modules.items() if c == "Linear"} if weights is None else dict(weights)
        self.dtype = dtype
        self.writer = MemoryWriter()
        self.sites: dict[str, Site] = {}

    def site(self, name: str) -> Site:
        """`a:output`, `a.weight:param_grad/preclip`, `loss:loss`."""
        if name not in self.sites:
            path, _, kind = name.partition(":")
            kind, _, label = kind.partition("/")
            module = path.rpartition(".")[0] if kind in ("param", "param_grad", "update") else path
            cls = self.modules.get(module, "")
            bases = () if not cls else (f"user.{cls}" if cls in OWN_CODE else f"torch.nn.modules.some.{cls}", "torch.nn.Module")
            shape = self.weights.get(path)
            self.sites[name] = Site(
                len(self.sites),
                path,
                kind,
                label,
                module=module,
                bases=bases,
                shape=shape,
                dtype=self.dtype,  # type: ignore[arg-type]
            )
        return self.sites[name]

    def step(self, step: int, changes: Mapping[str, Any] | None = None, *, quiet: float = 1.0) -> Book:
        """A sound step, with some values replaced, added or (ABSENT) left out; gradients are `quiet` in size."""
        wave = np.array([-1.0, -0.5, 0.25, 1.0])
        rows: dict[str, Any] = {":input": wave}
        rows |= {f"{m}:output": wave for m in self.modules} | {f"{m}:output_grad": quiet * 0.01 * wave for m in self.modules}
        for name in self.weights:
            rows |= {f"{name}:param": wave, f"{name}:param_grad": quiet * 0.02 * wave, f"{name}:update": 1e-3 * wave}
        rows |= {"loss:loss": [1.0], "lr:scalar": [0.1]}
        rows |= dict(changes or {})
        self._write(step, {name: values for name, values in rows.items() if values is not ABSENT})
        return self

    def steps(self, first: int, last: int, changes: Mapping[str, Any] | None = None) -> Book:
        """Several of the same."""
        for step in range(first, last + 1):
            self.step(step, changes)
        return self

    def _write(self, step: int, rows: Mapping[str, Any]) -> None:
        sites = [self.site(name) for name in rows]
        order = {path: i for i, path in enumerate(self.modules)}
        micro = [STEP_LEVEL if s.kind in ("param", "param_grad", "update", "scalar") else 0 for s in sites]
        seq = [order.get(s.path, len(order)) if m == 0 else STEP_LEVEL for s, m in zip(sites, micro, strict=True)]
        columns = (np.array(c, np.int32) for c in (micro, [s.id for s in sites], [0] * len(sites), seq))
        self.writer.sites(list(self.sites.values()))
        self.writer.frame(Frame(step, *columns, np.array([stats_of(v) for v in rows.values()], dtype=np.float64)))

    @property
    def run(self) -> Run:
        """What was written so far."""
        return self.writer.run
