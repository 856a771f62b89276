"""Tensors of classes of the user's own."""

from __future__ import annotations

from typing import Any

import torch

import hookscope as hs

from ._small import adam, mlp, train


class Noticing(torch.Tensor):
    """A subclass that writes down what is done with it."""

    seen: list[str] = []  # noqa: RUF012  # shared on purpose

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def noticed(*, watch: bool) -> list[str]:
    """In a training whose loss is computed with a subclass."""
    model = mlp()
    optimizer = adam(model)
    Noticing.seen.clear()
    watched = hs.watch(model, optimizer) if watch else None
    train(model, optimizer, 3, loss=lambda y: (y.as_subclass(Noticing) * 2 - 1).float().square().mean())
    if watched is not None:
        watched.close()
    return list(Noticing.seen)


def test_a_subclass_in_the_loss_sees_what_it_sees_without_the_watch() -> None:
    alone = noticed(watch=False)
    assert {"mul", "sub", "square", "mean", "backward"} <= set(alone)
    assert noticed(watch=True) == alone
