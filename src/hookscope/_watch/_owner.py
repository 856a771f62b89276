"""Which thread trains. Others are left alone: to read a gradient that another thread's backward is writing ends the process."""

from __future__ import annotations

import threading
from _thread import get_ident

import torch
from torch import nn


class Owner:
    """The thread in which this was made, or the first other one that trains before it; another one as soon as that has ended."""

    def __init__(self) -> None:
        self.foreign: set[str] = set()  # names of the models that another thread is training now
        self.missed: set[str] = set()  # and of those it ever did
        self._thread = threading.current_thread()
        self._number = threading.get_ident()
        self._entered = self._trains = False
        self._local = threading.local()

    @property
    def here(self) -> bool:
        """Whether this is the thread."""
        return self._number == get_ident()

    @property
    def muted(self) -> bool:
        """Whether what this thread does with the models is not looked at. Threads of torch's own, as backward has one for each GPU, are not
        muted.
        """
        return bool(getattr(self._local, "muted", False))

    def admits(self, model: str) -> bool:
        """Whether this thread may be or become the one that trains; where not, it is noted that it trains `model`."""
        if self.here or not (self._trains and self._thread.is_alive()):
            return True
        self.missed.add(model)
        return False

    def enters(self, module: nn.Module, model: str) -> bool:
        """A forward enters `model` through `module`: whether it is to be looked at. With gradients on, it is taken for a training's."""
        if getattr(module, "_is_replica", False):  # DataParallel calls its copies in threads, and one waits for them all
            return True
        if self._entered and self._number == get_ident() and torch.is_grad_enabled() and not self.foreign:
            self._local.muted = False  # as most often
            return True
        if not torch.is_grad_enabled():
            self._local.muted = not self.here and self._trains and self._thread.is_alive()
        elif self.admits(model):
            self._take()
            self._entered, self._local.muted = True, False
            self.foreign.discard(model)
        else:
            self._local.muted = True
            self.foreign.add(model)
        return not self.muted

    def trains(self) -> bool:
        """A backward begins in this thread: whether it is to be looked at."""
        self._trains = self._trains or (self.here and self._entered)
        return self.here

    def steps(self) -> None:
        """An optimizer of the models begins a step here, in a thread that is not muted."""
        if torch._C._current_graph_task_id() == -1 and (self.here or not (self._trains and self._thread.is_alive())):
            self._take()
            self._trains = True

    def _take(self) -> None:
        if not self.here:
            self._thread, self._number = threading.current_thread(), threading.get_ident()
            self._entered = self._trains = False
            self.foreign.clear()
