"""A hook that is inert in every copy of the module it sits on.

`copy.deepcopy(model)` (an EMA copy), `pickle` and `torch.save` carry a module's hooks along. A live hook in a copy would report the
copy's tensors as the original's, or fail to pickle. So every copy of this hook becomes a callable of the standard library that takes
anything and returns None: the copy loads where hookscope is not installed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

_NOTHING = contextlib.nullcontext()


class Hook:
    """Calls `action` with whatever torch passes, and always returns None, so it can never replace an output."""

    __slots__ = ("__weakref__", "action")

    def __init__(self, action: Callable[..., None]) -> None:
        self.action = action

    def __call__(self, *args: Any) -> None:
        if not torch.compiler.is_compiling():  # first of all: what a compiler traces here it would compile, or fail to
            self.action(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _NOTHING.__exit__

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, str]]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def leave_as_it_is(code: CodeType) -> None:
    """Around a module compiled in place, by `module.compile()`, torch calls that module's hooks outside the graph and would compile each by
    itself, into one that does nothing. Told so, the compiler runs this code and what it calls; inlined in a graph it is traced as ever.
    """
    with contextlib.suppress(ImportError, AttributeError):  # not in every torch; then such a module is as blind as one inside a graph
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))


leave_as_it_is(Hook.__call__.__code__)
