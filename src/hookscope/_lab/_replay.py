"""`replay`: an incident of a recorded run, run again from what was stored with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._core._errors import AttachError, UsageError
from .._core._site import ROOT
from .._origin._forward import Buffers, Randomness
from .._origin._replay import replay as again
from .._origin._stored import Batch, random_from_json, set_modes, unpacked
from .._origin._verdict import Verdict
from .._record._incident import BATCH, CHECKPOINT, Incident, read_incident
from .._stats import Cells, Row
from .._taps._inventory import modules
from ._find_nonfinite import find_nonfinite

LossFn = Callable[[Any, Any], torch.Tensor]


def replay(
    incident: str | os.PathLike[str] | Incident,
    model: nn.Module | Mapping[str, nn.Module],
    loss_fn: LossFn | None = None,
    *,
    batch: Any = None,
) -> Verdict | None:
    """Run the bad step of an incident again, from what was stored with it, and name the operation at which it went bad.

    `incident` is a folder `incidents/<step>` of a run, or one of `Run.incidents`; it needs the batch (`incidents="batch"` when it was
    watched), and for other weights than those of `model` a checkpoint (`"full"`). `model` is built as it was then, several by the names
    they were watched under. Its weights are loaded from the checkpoint, and stay so; gradients, modes and random generators are left
    as they were found.

    Without `loss_fn` the recorded forwards are run, and their backward from the gradients that arrived at their outputs: what goes bad
    inside the model is found, what went bad before or behind it is not. `loss_fn(model, batch)` returns the loss, and is run with the
    random states of then. `batch` has `args` and `kwargs` of the model's first call and `others`, the tensors that the program used with
    its output, such as targets, in the order of use; or it is whatever you give as `batch`. Returns None where nothing goes bad. `exact`
    is True only if the model gave the recorded output again (with a `loss_fn`: if the weights are those from before the update); else
    `notes` say why not. Raises `UsageError` where the batch or a module is missing.

    >>> import tempfile, torch
    >>> import hookscope as hs
    >>> def build():
    ...     return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softplus(), torch.nn.LogSigmoid())
    >>> model, to = build(), tempfile.mkdtemp() + "/run"
    >>> with hs.watch(model, to=to, incidents="full", on_finding="ignore"):
    ...     torch.log(model(torch.ones(3, 2)).sum()).backward()
    >>> incident = hs.Run(to).incidents[0]
    >>> verdict = hs.replay(incident, build(), lambda model, batch: torch.log(model(*batch.args).sum()))
    >>> verdict.op, verdict.direction, verdict.exact
    ('log', 'forward', True)
    """
    found = incident if isinstance(incident, Incident) else read_incident(Path(incident))
    models = _models(model)
    places = _places(models)
    stored = _load(found, BATCH, models) if loss_fn is None or batch is None else None
    notes = _restore(found, models)
    if stored is not None:
        _check_places(stored, places, found)
    if loss_fn is None:
        assert stored is not None
        verdict = _forwards(stored, places)
    else:
        verdict = _with_loss(found, model, loss_fn, batch=_batch(stored) if batch is None else batch, modes=(stored, places))
        notes = notes if batch is None else (*notes, "the batch is one that was given")
    return verdict if verdict is None or not notes else replace(verdict, exact=False, notes=(*verdict.notes, *notes))


def _forwards(stored: Mapping[str, Any], places: Mapping[str, nn.Module]) -> Verdict | None:
    """As after the backward itself: each model's forwards, in order, with their backward."""
    forwards = unpacked(stored, places)
    names = {id(module): path for path, module in places.items()}
    with _modes(stored, places):
        for module in dict.fromkeys(forward.module for forward in forwards):
            buffers = Buffers(module)
            buffers.take()
            mine = [forward for forward in forwards if forward.module is module]
            for forward in mine:
                forward.parameters = buffers.versions
            if verdicts := again(mine, buffers, names, _row).verdicts:
                return verdicts[0]
    return None


def _with_loss(
    found: Incident, model: Any, loss_fn: LossFn, *, batch: Any, modes: tuple[Mapping[str, Any] | None, Mapping[str, nn.Module]]
) -> Verdict | None:
    """All of them may be needed for one loss: several models are looked at as one that holds them."""
    whole = model if isinstance(model, nn.Module) else nn.ModuleDict(dict(model))
    now = Randomness.now()
    try:
        if (states := found.random) is not None:
            random_from_json(states).restore()
        with _modes(*modes):
            return find_nonfinite(whole, batch, lambda _whole, batch: loss_fn(model, batch))
    finally:
        now.restore()


def _models(model: Any) -> dict[str, nn.Module]:
    named = dict(model) if isinstance(model, Mapping) else {"": model}
    for name, one in named.items():
        if not isinstance(one, nn.Module):
            which = f"model {name!r}" if name else "model"
            raise AttachError(f"{which} is a {type(one).__name__}, not a torch.nn.Module")
    return named


def _places(models: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """The modules by the names that a run has for them."""
    several = len(models) > 1
    return {
        ".".join(part for part in (name if several else "", named.path) if part) or ROOT: named.module
        for name, model in models.items()
        for named in modules(model)
    }


def _load(incident: Incident, file: str, models: Mapping[str, nn.Module]) -> Any:
    if file not in incident.stored:
        why = incident.missing.get(file) or 'watch with incidents="batch", or "full", which adds the weights'
        raise UsageError(f"the incident at {incident.path} holds no {file}: {why}")
    device = next((p.device for model in models.values() for p in model.parameters()), torch.device("cpu"))

    restore: Callable[[Any, str], Any] = torch.serialization.default_restore_location

    def move(storage: Any, location: str) -> Any:  # what lay on a device goes where the model is now
        return storage if location == "cpu" else restore(storage, str(device))

    return torch.load(incident.path / file, weights_only=True, map_location=move)


def _restore(incident: Incident, models: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """Load the weights; what keeps that from being those of then."""
    if CHECKPOINT not in incident.stored:
        return ("the weights are those of the model that was given: no checkpoint is stored",)
    states = _load(incident, CHECKPOINT, models)["models"]
    for name, model in models.items():
        state = states.get(name) or (next(iter(states.values())) if len(states) == len(models) == 1 else None)
        if state is None:
            raise UsageError(f"the checkpoint holds no model {name!r}: it has {', '.join(map(repr, states))}")
        try:
            model.load_state_dict(state)
        except RuntimeError as problem:
            why = " ".join(str(problem).split())
            raise UsageError(f"the model is not built as the one of the checkpoint: {why}") from None
    return () if incident.checkpoint == "before the update" else ("the checkpoint was written after the weights had changed",)


def _check_places(stored: Mapping[str, Any], places: Mapping[str, nn.Module], incident: Incident) -> None:
    if missing := [one["module"] for one in stored["forwards"] if one["module"] not in places]:
        raise UsageError(f"the incident at {incident.path} ran {missing[0]!r}, which the model does not have: build it as it was then")


def _batch(stored: Mapping[str, Any] | None) -> Batch:
    assert stored is not None
    first = stored["forwards"][0]
    return Batch(tuple(first["args"]), dict(first["kwargs"]), tuple(stored["others"]))


@contextmanager
def _modes(stored: Mapping[str, Any] | None, places: Mapping[str, nn.Module]) -> Iterator[None]:
    undo = None if stored is None else set_modes(stored, places)
    try:
        yield
    finally:
        if undo is not None:
            undo()


def _row(tensor: torch.Tensor) -> Row:
    return Cells(tensor.device).row()
