"""The training loop of Lightning, watched from outside."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs

from ._bits import differing, left_behind

pytest.importorskip("lightning")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Lightning warns of small things of its own, and imports for seconds

STEPS, MICROS, LIMIT = 4, 2, 0.01


def start(*, by_hand: bool = False, **options: Any) -> tuple[Any, Any, Any]:
    import lightning

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = not by_hand
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(8, 1))

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            loss = self.net(batch).square().mean()
            if by_hand:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def validation_step(self, batch: torch.Tensor, index: int) -> None:
            self.log("val", self.net(batch).mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    torch.manual_seed(2)
    task = Task()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_steps=STEPS, **quiet, **options)
    data = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)
    return task, trainer, data


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulate_grad_batches": MICROS},
    "clipped": {"gradient_clip_val": LIMIT},
    "bf16": {"precision": "bf16-mixed"},
    "by hand": {"by_hand": True},
}


def watched(**options: Any) -> tuple[Any, Any, hs.Run]:
    task, trainer, data = start(**options)
    with hs.watch(task, updates="full") as w:
        trainer.fit(task, data)
    return task, trainer, w.run


@pytest.mark.parametrize("way", WAYS)
def test_it_ends_with_the_bits_of_an_unwatched_training(way: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=hs.HookscopeWarning)
        task, trainer, run = watched(**WAYS[way])
    twin, other, data = start(**WAYS[way])
    other.fit(twin, data)
    assert differing(left_behind(task, trainer.optimizers[0]), left_behind(twin, other.optimizers[0])) == []
    assert [event for event in run.events if event["event"] == "switched_off"] == []


@pytest.mark.parametrize("way", WAYS)
def test_its_steps_are_those_of_the_optimizer(way: str) -> None:
    _, trainer, run = watched(**WAYS[way])
    assert trainer.global_step == STEPS
    assert run.steps.tolist() == list(range(STEPS))
    for name in ("loss", "net.0.weight:param", "net.0.weight:param_grad", "net.0.weight:update", "net.3:output_grad"):
        assert run[name].steps.tolist() == list(range(STEPS)), name


def test_accumulated_micro_batches_are_those_of_their_step() -> None:
    _, _, run = watched(accumulate_grad_batches=MICROS)
    rows = run.rows()
    (number,) = [site.id for site in run.sites if site.name == "loss"]
    for step in range(STEPS):
        assert rows.micro[(rows.site == number) & (rows.step == step)].tolist() == list(range(MICROS))


def test_the_gradients_are_those_after_the_clipping() -> None:
    _, _, run = watched(gradient_clip_val=LIMIT)
    squares = sum(series.values**2 for series in run.series("**:param_grad", "l2").values())
    assert (squares**0.5).tolist() == pytest.approx([LIMIT] * STEPS, rel=1e-3)  # clip_grad_norm_ adds 1e-6 to the norm
