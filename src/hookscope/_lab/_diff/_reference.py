"""One side on disk, for another process, device, rank or version: a book as JSON, tensors as `.npy`."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..._core._errors import UsageError
from ..._core._site import PARAM_KINDS
from ..._origin._forward import Randomness
from ..._record._atomic import replace_file
from ..._taps._inventory import sites
from .._batch import first
from ._book import Book, book_from_json
from ._prints import print_from_json
from ._recorder import record
from ._running import Loss, Side
from ._store import Store

FORMAT = 1
LEAST = 64 << 10


def record_reference(  # noqa: PLR0913  # one argument each for what, where to, how much of it, and the loss
    model: nn.Module, batch: Any, *, to: str | os.PathLike[str], full: Any = "**", budget: int = 2 << 30, loss_fn: Loss | None = None
) -> Path:
    """Run a model over a batch and write down what flows through it, for `diff` to compare another with.

    `batch` is one as `diff` takes it. Into the folder `to` go, for every call of every module, hash, norms and 256 evenly spaced elements
    of each tensor in and out, and the tensors themselves where the selection `full` takes the module, as long as the `budget` (bytes)
    lasts, each distinct one once. Where a tensor is missing, `diff` still tells equality to the bit, and estimates differences from norms
    and samples; what a module *adds*, and why, it can then not tell: record again with `full` set to the modules around the first
    difference. Formats are JSON and `.npy`; nothing is pickled. The state of torch's CPU generator is kept, so that the other side draws
    the same numbers.

    `loss_fn(model, batch)` returns the loss where gradients are to be compared, too. The model's buffers, gradients and random states are
    afterwards what they were. Returns the folder. Raises `UsageError` where there is a reference already or the model cannot take the
    batch.

    >>> import tempfile, torch, hookscope as hs
    >>> model, batch = torch.nn.Linear(3, 2), torch.ones(4, 3)
    >>> ref = hs.record_reference(model, batch, to=tempfile.mkdtemp() + "/ref")
    >>> print(hs.diff(ref, model, batch).verdict)
    equal to the last bit at all 1 sites
    """
    folder, (batch, alone) = Path(to), first(batch)
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < LEAST:
        raise UsageError(f"budget={budget!r} is no budget: give at least {LEAST} bytes")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: give another folder, or remove it first")
    side = Side("model", model, batch, loss_fn, alone)
    paths = {site.module for site in sites(side.inner, full) if site.kind not in PARAM_KINDS}
    randomness, new = Randomness.now(), not folder.exists()
    try:
        store = Store(folder / "tensors", budget=budget)
        state = store.put(randomness.cpu)
        book = record(side, store, randomness, wanted=paths.__contains__)
        facts = {**book.facts, "random_state": state.as_json(), "tensors_not_kept": store.dropped}
        document = {"format": FORMAT, **replace(book, facts=facts).as_json()}
        replace_file(folder / "reference.json", json.dumps(document, allow_nan=False).encode())
    except BaseException:
        shutil.rmtree(folder if new else folder / "tensors", ignore_errors=True)  # half a reference would be in the way of the next try
        raise
    return folder


def read_reference(folder: Path) -> tuple[Book, Store, Randomness]:
    """The book, the tensors, and the random state to begin with; UsageError where there is none."""
    try:
        found = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
        book = book_from_json(found)
    except FileNotFoundError:
        raise UsageError(f"{folder} holds no reference: write one with hs.record_reference(model, batch, to={str(folder)!r})") from None
    except (ValueError, KeyError, TypeError) as problem:
        raise UsageError(f"{folder} holds no reference that this version reads: {type(problem).__name__}: {problem}") from problem
    if found["format"] > FORMAT:
        raise UsageError(f"{folder} is written in format {found['format']}; this version reads formats up to {FORMAT}")
    store = Store(folder / "tensors")
    state = store.get(print_from_json(book.facts["random_state"]))
    return book, store, Randomness(torch.get_rng_state() if state is None else state, ())
