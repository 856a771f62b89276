"""Runs a model over batches and keeps, of each, the tensors that a selection names."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import nn

from ..._core._errors import AttachError, SelectionError, UsageError
from ..._core._select import Selectable
from .._batch import Feed, is_direct
from .._inner import running_eagerly
from ._collector import Collector
from ._hooks import Hooks
from ._key import Key
from ._options import Options
from ._stop import Enough, Stops, check_asked, may_stop
from ._undelivered import complaints
from ._value import version
from ._wanted import Wanted, resolve


class Extractor:
    """A context: hooks are on the model between entering and leaving it, and nothing of it is left afterwards.

    `run` may be called for any number of batches; where a forward may end is learned from those before.
    """

    def __init__(self, model: nn.Module, select: Selectable, options: Options | None = None) -> None:
        self.model, self.options = checked_model(model), (options or Options()).checked()
        self.wanted = resolve(model, select)
        refuse_scripted(self.wanted)
        if self.options.stop is True:
            check_asked(model, grads=self.wanted.has_gradients)
        self.collector = Collector(self.wanted, self.options)
        self.hooks = Hooks(model, self.wanted, self.collector)
        self._feed, self._undo = Feed(model, self.options.forward), ExitStack()

    def __enter__(self) -> Extractor:
        self._stops = self._stops_of(self.options)
        self.hooks.came = self._stops.came
        with ExitStack() as undo:
            undo.enter_context(running_eagerly())
            undo.callback(self.hooks.attach())
            self._undo = undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._undo.close()

    def _stops_of(self, options: Options) -> Stops:
        stops = options.stop is True or (options.stop == "auto" and not options.grad)
        last = self.wanted.last_calls(options.call) if stops and self.wanted.comes_in_forward else {}
        return Stops(last, asked=options.stop is True, allowed=lambda: may_stop(self.model))

    def run(self, batch: Any, *, alone: bool = True) -> dict[Key, torch.Tensor]:
        """The tensors of one batch, in the order in which they came; `alone` says that it is from no loader.

        Raises `SelectionError` where a part of the selection gave none, `UsageError` where a tensor that was not copied is overwritten.
        """
        self.collector.begin(batch)
        self._stops.begin(batch, direct=is_direct(batch, self.options.forward))
        try:
            self.hooks.begin()
            with torch.set_grad_enabled(self.options.grad or self.wanted.has_gradients), self.hooks.functions():
                self._feed.run(batch, alone=alone)
            self._stops.ended()
        except Enough:
            pass
        finally:
            self.hooks.end()
            found, versions = self.collector.found, self.collector.versions
            self.collector.begin(None)
        check_intact(found, versions)
        if told := complaints(self.wanted, self.hooks, found):
            raise SelectionError("; ".join(told))
        return found


def checked_model(model: Any) -> nn.Module:
    """Raises `AttachError` for what has no hooks, or runs them in threads of its own."""
    if not isinstance(model, nn.Module):
        raise AttachError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
        raise AttachError(
            f"a DataParallel over {len(model.device_ids)} devices runs copies of the model: pass the model in it, model.module"
        )
    return model


def refuse_scripted(wanted: Wanted) -> None:
    """Raises `AttachError` where a hook would have to be on a scripted module, which takes none."""
    for named in wanted.inside:
        if isinstance(named.module, torch.jit.ScriptModule) and wanted.of_module(named.path):
            raise AttachError(f"{named.path or '(root)'!r} is scripted, and torch places no hooks there: extract before torch.jit.script")


def check_intact(found: dict[Key, torch.Tensor], versions: dict[Key, int]) -> None:
    """Raises `UsageError` where something has written to a tensor that is held without a copy."""
    for key, before in versions.items():
        if version(found[key]) != before:
            raise UsageError(f"{key} was overwritten in place after it was taken, and clone=False kept no copy: leave clone out")
