"""Writes an incident when a finding of severity error, an exception or a signal says that something went wrong."""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._core._errors import FindingError
from .._core._finding import Finding
from .._core._frame import Frame
from .._record._incident import Incident, Reason
from .._record._incident_folder import Part, amend_incident, write_incident
from .._record._meta import now
from ._evidence import Evidence, checkpoint_part
from ._flight import Flight
from ._locating import Locator
from ._settings import Settings

ECHO = 1  # steps after an incident in which what is found is what came of it: bad weights after a bad gradient, a loss after a leap


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an incident is told of: where to write (None: nowhere), by which rank, the watched models by name, how to note it in the run."""

    folder: Path | None
    rank: int
    models: Callable[[], list[tuple[str, nn.Module]]]
    event: Callable[..., None]


class Incidents:
    """`keep` each frame; `found`, `raised` and `signalled` write."""

    def __init__(self, settings: Settings, around: Surroundings, locator: Locator, origins: Sequence[dict[str, Any]]) -> None:
        self.settings = settings
        self.around = around
        self.locator = locator
        self.origins = origins
        self.on = around.folder is not None and settings.incidents != "off"
        self.flight = Flight(settings.flight if self.on else 0)
        locator.holding.always = self.on and settings.incidents in ("batch", "full")
        locator.holding.weights = self.on and settings.incidents == "full"
        self.keep = self.flight.keep
        self._latest: Incident | None = None
        self._until = -1  # the last step at which something was found that belongs to the latest one
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}

    def meet(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer of the watched models steps."""
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)

    def found(self, findings: Sequence[Finding], step: int, open_frame: Frame | None = None) -> None:
        """The rules have found something at this step, which may still be open."""
        errors = tuple(finding for finding in findings if finding.severity == "error")
        if not (self.on and errors):
            return
        frames = self.flight.frames(open_frame)
        latest = self._latest
        if latest is not None and step <= self._until + ECHO:
            self._latest = replace(latest, findings=(*latest.findings, *errors), origins=self._origins(latest.step, step))
            amend_incident(self._latest, frames if latest.step == step else None)
            self._until = step
        else:
            self._write("finding", step, errors[0].headline, frames=frames, findings=errors)

    def raised(self, error: BaseException, step: int) -> None:
        """An exception has left the training."""
        if not self.on or isinstance(error, FindingError):  # that one is about an incident
            return
        told = {
            "type": type(error).__qualname__,
            "message": str(error),
            "traceback": "".join(traceback.format_exception(error)),
        }
        headline = f"{told['type']} at step {step}: {told['message']}"
        self._write("exception", step, headline, frames=self.flight.frames(), error=told)

    def signalled(self, name: str, step: int) -> None:
        """The process was told to end."""
        if self.on:
            self._write("signal", step, f"{name} at step {step}", frames=self.flight.frames())

    def _write(self, reason: Reason, step: int, headline: str, *, frames: Sequence[Frame], **more: Any) -> None:
        assert self.around.folder is not None
        evidence, names = self.locator.evidence(), self.locator.names()
        incident = Incident(
            *(Path(), step, reason, headline, self.around.rank, now()),
            origins=self._origins(step),
            inputs=evidence.inputs(names),
            checkpoint=self._when(evidence) if self.settings.incidents == "full" else None,
            **more,
        )
        written = write_incident(self.around.folder, incident, frames, self._parts(evidence))
        if written is not None:
            self._latest, self._until = written, step
            self.around.event("incident", path=f"{self.around.folder.name}/{written.path.name}", reason=reason, missing=written.missing)

    def _parts(self, evidence: Evidence) -> list[Part]:
        parts = [evidence.random_part()]
        if self.settings.incidents in ("batch", "full"):
            parts.append(evidence.batch_part(self.locator.names()))
        if self.settings.incidents == "full":
            optimizers = [optimizer for ref in self._optimizers.values() if (optimizer := ref()) is not None]
            parts.append(checkpoint_part(dict(self.around.models()), optimizers, self.locator.holding.buffers_of(evidence)))
        return parts

    def _when(self, evidence: Evidence) -> str:
        """Whether the weights are still those that the forward used."""
        return "before the update" if evidence.forwards and self.locator.holding.unchanged(evidence) else "after the update"

    def _origins(self, *steps: int) -> tuple[dict[str, Any], ...]:
        return tuple(origin for origin in self.origins if origin.get("step") in steps)
