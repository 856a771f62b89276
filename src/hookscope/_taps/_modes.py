"""Operations of ours that no dispatch mode of the user's program sees."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_NOTHING = nullcontext()


def unseen() -> AbstractContextManager[Any]:
    """Selective checkpointing hands what it has seen in the first pass to the second one, operation by operation, and `make_fx` writes
    down all it sees: one more by a hook would give wrong values there, and a longer graph here.
    """
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else _NOTHING
