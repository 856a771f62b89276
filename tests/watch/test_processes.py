"""Children of a watched process: they run the model and write nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import hookscope as hs

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def trained() -> tuple[nn.Sequential, torch.optim.SGD]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def recorded(run: hs.Run) -> list[dict[str, Any]]:
    """All rows but those of the time it took."""
    return [row for row in run.arrow().to_pylist() if row["path"] != "seconds"]


def alone(to: Path) -> list[dict[str, Any]]:
    model, optimizer = trained()
    with hs.watch(model, optimizer, to=to) as w:
        for i in range(3):
            step(model, optimizer, torch.full((2, 4), float(i + 1)))
    return recorded(w.run)


def test_a_forked_child_may_train_and_end_its_watch_and_writes_nothing(tmp_path: Path) -> None:
    model, optimizer = trained()
    with hs.watch(model, optimizer, to=tmp_path / "run") as w:
        step(model, optimizer, torch.full((2, 4), 1.0))
        child = os.fork()
        if not child:
            code = 1
            try:
                for _ in range(4):
                    step(model, optimizer, torch.ones(2, 4))
                w.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        step(model, optimizer, torch.full((2, 4), 2.0))
        step(model, optimizer, torch.full((2, 4), 3.0))
    assert recorded(w.run) == alone(tmp_path / "alone")
    assert [event["event"] for event in w.run.events] == ["closed"]
    assert w.run.unread_bytes == 0


class Embedded(Dataset[torch.Tensor]):
    """Runs the model that is being trained in the workers, with gradients on, as a careless program does."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        x = torch.full((4,), float(index // 2 + 1))
        assert self.model(x).shape == (2,)
        return x


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_whose_workers_run_the_model_does_not_disturb_the_run(workers: int, tmp_path: Path) -> None:
    model, optimizer = trained()
    loader = DataLoader(Embedded(model), batch_size=2, num_workers=workers, multiprocessing_context="fork" if workers else None)
    with hs.watch(model, optimizer, to=tmp_path / "run") as w:
        for batch in loader:
            step(model, optimizer, batch)
    assert w.run.steps.tolist() == [0, 1, 2]
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    calls = {(row["step"], row["call"]) for row in recorded(w.run) if row["path"] == "0" and row["kind"] == "output"}
    if workers:
        assert recorded(w.run) == alone(tmp_path / "alone")
    else:  # in this very process they are calls like any other
        assert calls == {(step, call) for step in range(3) for call in range(3)}
