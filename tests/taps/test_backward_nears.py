"""`Tensor.backward` is told of before any mode sees the call."""

import torch

from hookscope._taps._events import subscribe

from ._heard import Heard


def test_what_nears_is_told_before_a_mode_sees_it_and_tensor_backward_is_its_own_again_afterwards() -> None:
    class Seeing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: object, types: object, args: tuple[object, ...] = (), kwargs: object = None) -> object:
            if getattr(func, "__name__", "") == "backward":
                order.append("mode")
            return func(*args, **(kwargs or {}))  # type: ignore[operator]

    class Near(Heard):
        def backward_nears(self) -> None:
            order.append("near")

    order: list[str] = []
    original = torch.Tensor.backward
    listener = Near()
    stop = subscribe(listener)
    with Seeing():
        torch.ones(2, requires_grad=True).sum().backward()
    stop()
    assert order == ["near", "mode", "near"]  # the mode calls it once more
    assert torch.Tensor.backward is original
