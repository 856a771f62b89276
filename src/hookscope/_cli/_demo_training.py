"""The three trainings of the demo, written as a user writes them: one sound, two with a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hookscope as hs

BATCH = 64
TOO_HIGH = 5.0
SHIFTS_SEED = 7  # with it, the first shift of 0 comes at step 12


@dataclass(frozen=True, slots=True)
class Digits:
    """scikit-learn's handwritten digits: 1,797 pictures of 8 by 8 with values 0 to 1, and their classes."""

    images: Tensor
    labels: Tensor

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The batch of a step, going round."""
        places = torch.arange(step * BATCH, (step + 1) * BATCH) % len(self.labels)
        return self.images[places], self.labels[places]


def digits() -> Digits:
    """Load and shuffle them, always alike."""
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(found.images, dtype=torch.float32)[order].unsqueeze(1) / 16
    return Digits(images, torch.tensor(found.target)[order])


def convnet() -> nn.Module:
    """A small convolutional network."""
    torch.manual_seed(0)
    features = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        nn.MaxPool2d(2),
    )
    head = nn.Sequential(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
    model = nn.Sequential()
    model.add_module("features", features)
    model.add_module("head", head)
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[[int], Tensor], *, to: Path, steps: int) -> None:
    """The loop of every training, and the one line that watches it."""
    with hs.watch(model, optimizer, to=to, on_finding="ignore", overwrite=True):
        for step in range(steps):
            loss = loss_of(step)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves this one without types
            optimizer.step()


def healthy(to: Path, steps: int) -> None:
    """Nothing wrong."""
    data, model = digits(), convnet()

    def loss_of(step: int) -> Tensor:
        images, labels = data.batch(step)
        return cross_entropy(model(images), labels)

    train(model, torch.optim.Adam(model.parameters(), lr=1e-3), loss_of, to=to, steps=steps)


def learning_rate_too_high(to: Path, steps: int) -> None:
    """The same network, with a learning rate a hundred times too high."""
    data, model = digits(), convnet()

    def loss_of(step: int) -> Tensor:
        images, labels = data.batch(step)
        return cross_entropy(model(images), labels)

    train(model, torch.optim.SGD(model.parameters(), lr=TOO_HIGH, momentum=0.9), loss_of, to=to, steps=steps)


def sqrt_at_zero(to: Path, steps: int) -> None:
    """An auxiliary loss asks for the same answer when the picture is shifted: it is the distance of the two answers.

    One day the random shift is 0, the answers are equal, and the slope of sqrt at 0 is infinite: infinity times 0 is NaN.
    """
    data, model = digits(), convnet()
    shifts = torch.Generator().manual_seed(SHIFTS_SEED)

    def loss_of(step: int) -> Tensor:
        images, labels = data.batch(step)
        shift = int(torch.randint(0, images.shape[-1], (), generator=shifts))
        logits, shifted = model(images), model(images.roll(shift, dims=-1))
        distance = (logits - shifted).square().sum().sqrt()
        loss: Tensor = cross_entropy(logits, labels) + 0.01 * distance
        return loss

    train(model, torch.optim.Adam(model.parameters(), lr=1e-3), loss_of, to=to, steps=steps)
