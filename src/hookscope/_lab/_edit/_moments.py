"""Which forward of the model, and which of a module's calls in it, is under way; also where a checkpoint runs a call again."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch.autograd.function import BackwardCFunction

from ..._core._errors import UsageError

_CHECKPOINT = torch.utils.checkpoint.__file__


class Moment(NamedTuple):
    """`step` counts forwards of the model, `call` the module's calls within one, both from 0."""

    step: int = 0
    call: int = 0


@dataclass(slots=True)
class _Segment:
    """The calls that ran within one checkpointed segment, by hook, and how far its rerun within one backward has come."""

    ran: dict[Any, list[Moment]] = field(default_factory=dict)
    again: dict[Any, tuple[int, int]] = field(default_factory=dict)
    done: bool = False

    def next(self, key: Any, backward: int) -> Moment | None:
        """The next call of `key` in the rerun that this backward makes; an earlier one may have stopped early."""
        last, at = self.again.get(key, (-1, 0))
        at = at if last == backward else 0
        self.again[key] = backward, at + 1
        return self.ran[key][at] if at < len(self.ran.get(key, ())) else None


class Moments:
    """`now` is asked once by each hook in each call."""

    def __init__(self) -> None:
        self.step = -1
        self._depth = 0
        self._calls: dict[Any, int] = {}
        self._segments: weakref.WeakKeyDictionary[Any, _Segment] = weakref.WeakKeyDictionary()

    def enter(self, *, root: bool) -> None:
        """A module is called through which a forward may begin."""
        if torch._C._current_graph_task_id() != -1:
            return
        if root:
            self._depth = 0  # a KeyboardInterrupt in the forward before leaves it behind
        if self._depth == 0:
            self.step += 1
            self._calls.clear()
        self._depth += 1

    def leave(self) -> None:
        """That call is over."""
        if torch._C._current_graph_task_id() == -1:
            self._depth = max(0, self._depth - 1)

    def now(self, key: Any, *, counted: bool) -> Moment:
        """The call that `key` is in. Not `counted`: nobody wants to know, only whether a checkpoint will run it again."""
        if torch._C._current_graph_task_id() == -1:
            return self._first(key, counted=counted)
        within: list[Any] = []
        for again, token in _around(sys._getframe(1)):
            if not again:
                within.append(token)
                continue
            segment = self._segments.get(token)
            if segment is not None:
                segment.done = True
            if not counted:
                return Moment()
            moment = segment.next(key, torch._C._current_graph_task_id()) if segment is not None else None
            if moment is None:
                raise UsageError(
                    "checkpointing runs a call again of which the first run was not seen while the edit was on: "
                    "run forward and backward within the edit, or leave out noise, lists to patch from, calls and steps"
                )
            self._note(within, key, moment)
            return moment
        return self._first(key, counted=counted)  # a forward that the user runs in a backward

    def _first(self, key: Any, *, counted: bool) -> Moment:
        moment = Moment()
        if counted:
            call = self._calls.get(key, 0)
            self._calls[key] = call + 1
            moment = Moment(max(0, self.step), call)
        if _may_be_checkpointed():
            self._note([token for _, token in _around(sys._getframe(2))], key, moment)
        return moment

    def _note(self, tokens: list[Any], key: Any, moment: Moment) -> None:
        for token in tokens:
            self._segments.setdefault(token, _Segment()).ran.setdefault(key, []).append(moment)

    @property
    def waiting(self) -> bool:
        """Whether a checkpointed segment that ran under the edit is still to be run again by a backward."""
        return any(not segment.done and not any(getattr(token, "is_recomputed", {}).values()) for token, segment in self._segments.items())


def is_stop(error: BaseException) -> bool:
    """Whether it is how a checkpoint ends a rerun in which it has found all it wants; it may do so within an op."""
    return type(error).__module__ == torch.utils.checkpoint.__name__ and type(error).__name__ == "_StopRecomputationError"


def _may_be_checkpointed() -> bool:
    """A checkpoint saves tensors in its own way, or runs without gradients where they are on outside; the stack tells for certain."""
    if not torch.is_grad_enabled():
        return not torch.is_inference_mode_enabled()
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None


def _around(frame: FrameType | None) -> Iterator[tuple[bool, Any]]:
    """The checkpointed segments on the stack, innermost first: whether it is run again, and the object that both runs share.

    Re-entrant ones run in an `autograd.Function`'s `forward` and `backward`, with one ctx; the others hold a `_CheckpointFrame`.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name in ("forward", "backward"):
            if code.co_argcount and code.co_varnames[0] != "self":
                ctx = frame.f_locals.get(code.co_varnames[0])
                if isinstance(ctx, BackwardCFunction):
                    yield code.co_name == "backward", ctx
        elif code.co_filename == _CHECKPOINT and code.co_name == "unpack_hook":
            yield True, frame.f_locals["frame"]
        elif code.co_filename == _CHECKPOINT and code.co_name == "checkpoint":
            generator = frame.f_locals.get("gen")
            inner = getattr(generator, "gi_frame", None)
            if inner is not None and (token := inner.f_locals.get("new_frame")) is not None:
                yield False, token
        frame = frame.f_back
