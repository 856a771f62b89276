"""`trace_patch`: activation patching between two inputs, site by site and position by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from torch import nn

from ..._core._errors import UsageError
from .._batch import Feed
from ._edit import Edit
from ._observing import Keeping
from ._patch_trace import PatchTrace
from ._progress import progress
from ._running import Runs, mean_of, observed, sites_of
from ._source_ops import patch
from ._where import Picked, picked, within

Where = Literal["each", "whole"] | Picked


def trace_patch(  # noqa: PLR0913  # two inputs, and where the one is put into the other
    model: nn.Module,
    clean: Any,
    corrupt: Any,
    select: Any,
    metric: Callable[[Any], Any],
    *,
    positions: Where = "each",
) -> PatchTrace:
    """How much of the difference between two inputs each site and position carries, by activation patching.

    The model runs on `clean`, and the values at the selected sites (outputs where `select` names no kind) are kept. Then it runs on
    `corrupt` once for each site and position, with the kept value put there. The effect is what `metric(output)`, a number or a tensor of
    which the mean is taken, recovers: `(patched - corrupt) / (clean - corrupt)`. Source: causal tracing, Meng et al., 2022, in the
    direction that Heimersheim and Nanda, 2024, call denoising.

    `clean` and `corrupt` are batches as `extract` takes them, of the same shapes: two prompts have the same number of tokens. `positions`
    are `"each"`, numbers or a slice, or `"whole"` for sites patched as a whole, which those without positions need. The model runs without
    gradients, in the mode it is in, each time from the same random state; buffers are put back. Sites that never run are left out. A bar
    shows the progress on a terminal.

    Returns a `PatchTrace`. Raises `UsageError` where both inputs give the same metric, where shapes differ, where no site runs, one has
    no positions, or none has one that is named.

    >>> import torch
    >>> from torch import nn
    >>> import hookscope as hs
    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4))
    >>> clean, corrupt = torch.tensor([[0, 1, 2]]), torch.tensor([[0, 3, 2]])
    >>> hs.trace_patch(model, clean, corrupt, "*", lambda output: output.sum()).effect.round(3).tolist()
    [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    """
    runs = Runs(model)
    chosen = sites_of(model, select)
    keeping = Keeping()
    with observed(runs, {alone: keeping for _, alone in chosen}):
        best = _measured(runs, metric, clean)
    worst = _measured(runs, metric, corrupt)
    if not np.isfinite(best - worst) or best == worst:
        raise UsageError(f"the metric is {best:.6g} on the clean input and {worst:.6g} on the corrupt one: it has to tell them apart")
    ran = [(site.name, alone) for site, alone in chosen if site.name in keeping.values]
    if not ran:
        raise UsageError(f"nothing that {select!r} matches ran: choose modules that are called")
    columns = _columns(positions, {name: keeping.positions[name] for name, _ in ran})
    effect = np.full((len(ran), len(columns)), np.nan)
    with progress("patching", effect.size) as done:
        for i, (name, alone) in enumerate(ran):
            whole = patch(keeping.by_call(name))
            for j, position in enumerate(columns):
                if position is None or position < keeping.positions[name]:
                    with Edit(model, {alone: whole if position is None else whole.at(positions=position)}, turn=runs.turn):
                        effect[i, j] = (_measured(runs, metric, corrupt) - worst) / (best - worst) + 0.0  # no -0.0
                done()
    return PatchTrace(effect, tuple(name for name, _ in ran), tuple(columns), best, worst)


def _measured(runs: Runs, metric: Callable[[Any], Any], given: Any) -> float:
    with runs.fresh():
        with runs.turn:
            output = Feed(runs.model).run(given)
        return mean_of([metric(output)], "the input")


def _columns(positions: Where, found: dict[str, int]) -> Sequence[int | None]:
    if isinstance(positions, str) and positions == "whole":
        return [None]
    without = [name for name, count in found.items() if not count]
    if without:
        raise UsageError(f"{without[0]} has no positions: leave it out, or patch whole sites with positions='whole'")
    longest = max(found, key=lambda name: found[name])
    everything = list(range(found[longest]))
    if isinstance(positions, str):
        if positions != "each":
            raise UsageError(f"positions={positions!r}: give 'each', 'whole', numbers or a slice")
        return everything
    index = picked("positions", positions)
    chosen = everything if index is None else sorted(within(index, len(everything), "position", longest))
    if not chosen:
        raise UsageError(f"positions={positions!r} picks none of the {len(everything)} positions")
    return chosen
