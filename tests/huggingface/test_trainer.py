"""The training loop of transformers' Trainer, watched from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs

from ._bits import Bits, differing, left_behind
from ._models import LENGTH, VOCABULARY, gpt2

pytest.importorskip("accelerate", reason="Trainer needs it")
pytestmark = [
    pytest.mark.slow,  # importing transformers takes seconds
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),  # its new name is younger than the releases we support
]

STEPS, MICROS, RATE = 4, 2, 1e-3


def trainer(folder: Path, **options: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(3)
    model = gpt2().model
    rows = torch.randint(3, VOCABULARY, (32, LENGTH))
    where = {"output_dir": str(folder), "report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    sizes = {"max_steps": STEPS, "per_device_train_batch_size": 2, "gradient_accumulation_steps": MICROS, "learning_rate": RATE}
    arguments = TrainingArguments(**where, **sizes, lr_scheduler_type="linear", dataloader_pin_memory=False, seed=1, **options)
    data = [{"input_ids": row, "labels": row} for row in rows]
    return Trainer(model, arguments, train_dataset=data, eval_dataset=data[:4])


def left(trained: Any) -> Bits:
    model, optimizer = trained.model, trained.optimizer
    assert isinstance(model, nn.Module)
    return left_behind(model, optimizer)


def watched(folder: Path, **options: Any) -> tuple[Any, hs.Run]:
    training = trainer(folder, **options)
    with hs.watch(training.model, updates="full") as w:
        training.train()
    return training, w.run


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"max_grad_norm": 0.01},
    "bf16": {"bf16": True},
    "checkpointed": {"gradient_checkpointing": True},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 2},
}


@pytest.mark.parametrize("way", WAYS)
def test_it_ends_with_the_bits_of_an_unwatched_training(way: str, tmp_path: Path) -> None:
    training, run = watched(tmp_path, **WAYS[way])
    twin = trainer(tmp_path, **WAYS[way])
    twin.train()
    assert differing(left(training), left(twin)) == []
    assert [event for event in run.events if event["event"] == "switched_off"] == []


@pytest.mark.parametrize("way", WAYS)
def test_its_steps_are_those_of_the_optimizer_and_its_micro_batches_are_kept_apart(way: str, tmp_path: Path) -> None:
    training, run = watched(tmp_path, **WAYS[way])
    assert training.state.global_step == STEPS
    assert run.steps.tolist() == list(range(STEPS))
    rows, loss = run.rows(), run["loss"]
    assert loss.steps.tolist() == list(range(STEPS))
    (number,) = [site.id for site in run.sites if site.name == "loss"]
    for step in range(STEPS):
        assert rows.micro[(rows.site == number) & (rows.step == step)].tolist() == list(range(MICROS))


def test_the_learning_rates_are_those_of_the_schedule(tmp_path: Path) -> None:
    _, run = watched(tmp_path)
    assert run["lr"].values.tolist() == pytest.approx([RATE * (1 - step / STEPS) for step in range(STEPS)])


def test_the_gradients_are_those_after_the_clipping_and_the_factor_is_told(tmp_path: Path) -> None:
    limit = 0.01
    _, run = watched(tmp_path, max_grad_norm=limit)
    squares = sum(series.values**2 for series in run.series("**:param_grad", "l2").values())
    assert (squares**0.5).tolist() == pytest.approx([limit] * STEPS, rel=1e-4)  # clip_grad_norm_ adds 1e-6 to the norm
    before = sum(run[site, "l2"].values ** 2 for site in run.sites if site.kind == "param_grad" and site.label == "preclip") ** 0.5
    assert run["clip"].values.tolist() == pytest.approx((limit / before).tolist(), rel=1e-4)
