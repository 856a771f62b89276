"""What happens while dynamo traces a hook: slots are made before the graph looks for them.

Dynamo calls `meet_whole` and `meet_part` as it comes by, with the tensors that stand for the real ones, and takes what `readable` returns
as a constant of the graph, without a guard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._compiled_checkpoints import admit
from ._compiled_op import Toll

if TYPE_CHECKING:
    from ._compiled_hook import Place

_latest = [False]


def meet_whole(context: Any) -> None:
    """Called in `_compiled_hook.read`."""
    _meet(context, lambda place: place.traced.meets_whole(place, context.get_local("output").as_fake()))


def meet_part(context: Any) -> None:
    """Called in `_compiled_hook._read_parts`."""
    path, number = (context.get_local(name).as_python_constant() for name in ("path", "number"))
    _meet(context, lambda place: place.traced.meets_part(place, context.get_local("value").as_fake(), path, number))


def readable() -> bool:
    """Whether the tensor that was met last has slots, and may be read."""
    return _latest[0]


readable._dynamo_marked_constant = True  # type: ignore[attr-defined]  # what `torch.compiler.assume_constant_result` does; it loads dynamo


def _meet(context: Any, meeting: Callable[[Place], bool]) -> None:
    _latest[0] = False
    try:
        place = context.get_local("place")._i_will_not_complain_if_bc_breaks_VariableTracker().value
        _latest[0] = meeting(place)
        admit()
    except Exception as error:  # it would end the training
        Toll.errors.append(error)
