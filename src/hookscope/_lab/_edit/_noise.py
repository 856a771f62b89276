"""Noise that is a function of seed, site, step and call, so that a checkpoint that runs a forward again draws the same."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from ..._core._errors import UsageError
from ._op import Op
from ._place import Place


@dataclass(frozen=True, repr=False)
class Noise(Op):
    """`hookscope.noise`."""

    std: float
    seed: int = 0

    @property
    def timed(self) -> bool:
        return True

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        if not value.is_floating_point():
            raise UsageError(f"noise cannot be added to {place.site.name}, which holds {value.dtype}: floating-point numbers are needed")
        key = f"{self.seed}|{place.site.name}|{place.step}|{place.call}".encode()
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little", signed=True)
        generator = torch.Generator(value.device).manual_seed(seed)
        wide = torch.float32 if value.element_size() < 4 else value.dtype
        drawn = torch.randn(value.shape, generator=generator, device=value.device, dtype=wide)
        return value + (self.std * drawn).to(value.dtype)


def noise(std: float, *, seed: int = 0) -> Op:
    """The value plus independent normal numbers of standard deviation `std`; the gradient passes unchanged.

    What is drawn depends on `seed`, the site, and which call of which forward of the model it is: the same again in every run of the
    program and in the recompute of activation checkpointing. The random state of the program is not touched.

    >>> import torch
    >>> import hookscope as hs
    >>> with hs.edit(torch.nn.Identity(), {"(root)": hs.noise(0.1, seed=3)}) as e:
    ...     bool((e.model(torch.zeros(1000)).std() - 0.1).abs() < 0.01)
    True
    """
    if not std >= 0:
        raise UsageError(f"std={std!r} is no standard deviation: give a number from 0 up")
    return Noise(float(std), seed)
