"""What is kept of a step until it is known whether it was an incident, and what of that is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._origin._facts import operand
from .._origin._forward import Buffers, Forward, Randomness
from .._origin._stored import packed, random_as_json, save_safely, size_of
from .._record._incident import BATCH, CHECKPOINT, RANDOM
from .._record._incident_folder import Part
from .._taps._leaves import call_leaves


@dataclass(frozen=True, slots=True)
class Evidence:
    """The forwards of a micro-batch, with the gradients that came back to their outputs, and tensors that were used beside them."""

    forwards: tuple[Forward, ...] = ()
    others: tuple[torch.Tensor, ...] = ()
    step: int = -1
    bad: bool = False
    entered: int = 0  # how many forwards had begun by then
    recall: Callable[[Sequence[Forward]], None] = lambda forwards: None  # sets their fingerprints

    def inputs(self, names: Mapping[int, str]) -> tuple[dict[str, Any], ...]:
        """A fingerprint of each tensor that a model was given."""
        return tuple(
            {"model": names.get(id(forward.module), ""), "call": forward.call, "path": path, **_fingerprint(tensor)}
            for forward in self.forwards
            for path, tensor in call_leaves(forward.args, forward.kwargs)
        )

    def random_part(self) -> Part:
        """The generators when the first forward began, or now."""
        found = self.forwards[0].random if self.forwards else Randomness.now()
        text = json.dumps({"at": "forward" if self.forwards else "now", **random_as_json(found)})
        return Part(RANDOM, len(text), lambda path: _write(path, text))

    def batch_part(self, names: Mapping[int, str]) -> Part:
        """Enough to run the forwards again."""

        def write(path: Path) -> None:
            if not self.forwards:
                raise LookupError("no forward of this step is held")
            self.recall(self.forwards)
            save_safely(packed(self.forwards, self.others, names), path)

        return Part(BATCH, sum(size_of((f.args, f.kwargs, f.gradients)) for f in self.forwards) + size_of(self.others), write)


def checkpoint_part(models: Mapping[str, nn.Module], optimizers: Iterable[torch.optim.Optimizer], buffers: Iterable[Buffers]) -> Part:
    """Models and optimizers by their `state_dict`, buffers as the forwards held in `buffers` found them."""
    optimizers, buffers = tuple(optimizers), tuple(buffers)

    def write(path: Path) -> None:
        undo = [held.put() for held in buffers]
        try:
            state = {
                "models": {name: dict(model.state_dict()) for name, model in models.items()},
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            }
            save_safely(state, path)
        finally:
            for put_back in undo:
                put_back()

    size = sum(size_of(list(model.state_dict().values())) for model in models.values())
    return Part(CHECKPOINT, size + sum(size_of(dict(optimizer.state)) for optimizer in optimizers), write)


def _fingerprint(tensor: torch.Tensor) -> dict[str, Any]:
    """Shape, dtype, device, a hash of its bytes, and what its numbers are like."""
    facts: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."), "device": str(tensor.device)}
    if tensor.layout != torch.strided or tensor.numel() == 0 or tensor.device.type == "meta":
        return facts
    plain = tensor.detach().cpu().contiguous()
    facts["sha256"] = hashlib.sha256(plain.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()
    if tensor.is_floating_point() or tensor.is_complex():
        seen = asdict(operand(0, plain))
        return {**facts, **{name: seen[name] for name in ("min", "max", "nan", "inf")}}
    return {**facts, "min": int(plain.min()), "max": int(plain.max())}


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
