"""An incident run again in Python, from what was stored: the operation is the one that the training's own second run named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import hookscope as hs


class Root(nn.Module):
    """Finite forward; its backward is infinite where the input is zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(x - x.detach().amin(1, keepdim=True))


class Log(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x + 20.0)


def build(bad: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), bad or nn.Tanh(), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))


def data(step: int, at: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(step)
    x, y = torch.randn(8, 4, generator=made), torch.randint(3, (8,), generator=made)
    if step == at:
        x[5] = 90.0
    return x, y


def recorded(to: Path, make: Callable[[], nn.Module], loss: Callable[..., torch.Tensor], at: int = 3, **how: Any) -> hs.Run:
    """Trains on beyond the incident, so that the weights at the end are others."""
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with hs.watch(model, optimizer, to=to, on_finding="ignore", on_nonfinite="skip", **{"incidents": "full", **how}):
        for step in range(at + 3):
            x, y = data(step, at)
            optimizer.zero_grad()
            loss(model(x), y, step == at).backward()
            optimizer.step()
    return hs.Run(to)


def plain(out: torch.Tensor, y: torch.Tensor, _bad: bool) -> torch.Tensor:
    return cross_entropy(out, y)


def of_loss(out: torch.Tensor, y: torch.Tensor, bad: bool) -> torch.Tensor:
    return cross_entropy(out, y) + (torch.log(-out.square()).sum() if bad else 0.0)


def told(verdict: hs.Verdict | None) -> tuple[Any, ...]:
    assert verdict is not None
    return verdict.op, verdict.direction, verdict.module, verdict.file, verdict.line, verdict.samples


def origin(incident: hs.Incident) -> tuple[Any, ...]:
    (one,) = incident.origins
    return tuple(tuple(one[name]) if name == "samples" else one[name] for name in ("op", "direction", "module", "file", "line", "samples"))


@pytest.mark.parametrize("bad", [Log, Root])
def test_what_is_born_in_the_model_is_named_without_the_loss(bad: type[nn.Module], tmp_path: Path) -> None:
    run = recorded(tmp_path, lambda: build(bad()), plain, at=0 if bad is Root else 3)
    incident = run.incidents[0]
    fresh = build(bad())
    verdict = hs.replay(incident.path, fresh)
    assert told(verdict) == origin(incident)
    assert verdict is not None
    assert (verdict.op, verdict.direction) == (("log", "forward") if bad is Log else ("sqrt", "backward"))
    assert (verdict.exact, verdict.notes) == (True, ())
    assert all(p.grad is None for p in fresh.parameters())
    assert fresh[2].running_mean.abs().sum() == 0 or incident.step > 0


def test_what_is_born_in_the_loss_is_named_with_it(tmp_path: Path) -> None:
    incident = recorded(tmp_path, build, of_loss).incidents[0]
    assert hs.replay(incident, build()) is None  # the model itself is healthy
    seen: list[torch.Tensor] = []

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.extend(batch.others)
        return of_loss(model(*batch.args), batch.others[0], True)

    verdict = hs.replay(incident, build(), loss_fn)
    assert told(verdict)[:3] == ("log", "forward", None)
    assert verdict is not None
    assert verdict.exact
    assert torch.equal(seen[0], data(3, 3)[1])


def test_with_the_loss_a_backward_is_named_too(tmp_path: Path) -> None:
    incident = recorded(tmp_path, lambda: build(Root()), plain, at=0).incidents[0]
    verdict = hs.replay(incident, build(Root()), lambda model, batch: cross_entropy(model(*batch.args), batch.others[0]))
    assert told(verdict)[:3] == ("sqrt", "backward", "1")


def test_a_model_that_is_mended_is_healthy(tmp_path: Path) -> None:
    class Mended(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(torch.clamp(x + 20.0, min=1e-3))

    incident = recorded(tmp_path, lambda: build(Log()), plain).incidents[0]
    assert hs.replay(incident, build(Mended())) is None


def test_weights_come_from_the_checkpoint_and_without_one_that_is_said(tmp_path: Path) -> None:
    full = recorded(tmp_path / "full", lambda: build(Log()), plain).incidents[0]
    other = build(Log())
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    assert told(hs.replay(full, other)) == origin(full)
    batch = recorded(tmp_path / "batch", lambda: build(Log()), plain, incidents="batch").incidents[0]
    verdict = hs.replay(batch, build(Log()))
    assert verdict is not None
    assert not verdict.exact
    assert "no checkpoint is stored" in verdict.notes[-1]


def test_a_batch_of_ones_own_is_used(tmp_path: Path) -> None:
    incident = recorded(tmp_path, lambda: build(Log()), plain).incidents[0]
    x, y = data(3, 3)
    verdict = hs.replay(incident, build(Log()), lambda model, batch: cross_entropy(model(batch[0]), batch[1]), batch=(x, y))
    assert told(verdict)[:3] == ("log", "forward", "1")
    assert verdict is not None
    assert verdict.notes == ("the batch is one that was given",)
    assert hs.replay(incident, build(Log()), lambda model, batch: model(batch).sum(), batch=torch.zeros(8, 4)) is None


def test_several_models_are_given_by_their_names(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def __init__(self, bad: nn.Module) -> None:
            super().__init__()
            self.inner, self.bad = nn.Linear(4, 4), bad

        def forward(self, x: torch.Tensor, *, shift: float) -> torch.Tensor:
            return self.bad(self.inner(x) + shift)

    def made() -> dict[str, nn.Module]:
        torch.manual_seed(0)
        return {"first": Pair(nn.Tanh()), "second": Pair(Log())}

    models = made()
    with hs.watch(models, to=tmp_path, on_finding="ignore", incidents="full"):
        models["second"](models["first"](torch.ones(3, 4), shift=0.0), shift=-90.0).sum().backward()
    incident = hs.Run(tmp_path).incidents[0]
    verdict = hs.replay(incident, made())
    assert told(verdict)[:3] == ("log", "forward", "second.bad")
    verdict = hs.replay(incident, made(), lambda m, batch: m["second"](m["first"](*batch.args, **batch.kwargs), shift=-90.0).sum())
    assert told(verdict)[:3] == ("log", "forward", "second.bad")


def test_autocast_and_modes_are_those_of_then(tmp_path: Path) -> None:
    model = build(Log())
    model[2].eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data(0, at=0)
    with hs.watch(model, optimizer, to=tmp_path, on_finding="ignore", incidents="full"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    incident = hs.Run(tmp_path).incidents[0]
    again = build(Log()).eval()
    verdict = hs.replay(incident, again)
    assert told(verdict) == origin(incident)
    assert verdict is not None
    assert verdict.exact
    assert not any(module.training for module in again.modules())


@pytest.mark.parametrize("loss", [None, lambda model, batch: model(*batch.args).sum()])
def test_nothing_random_is_left_changed(loss: Any, tmp_path: Path) -> None:
    incident = recorded(tmp_path, lambda: build(Log()), plain).incidents[0]
    model = build(Log())
    before = torch.get_rng_state()
    hs.replay(incident, model, loss)
    assert torch.equal(torch.get_rng_state(), before)


def test_wrong_use_says_what_would_be_right(tmp_path: Path) -> None:
    facts = recorded(tmp_path / "facts", lambda: build(Log()), plain, incidents="facts").incidents[0]
    with pytest.raises(hs.UsageError, match=r'holds no batch\.pt: watch with incidents="batch", or "full"'):
        hs.replay(facts, build(Log()))
    full = recorded(tmp_path / "full", lambda: build(Log()), plain).incidents[0]
    with pytest.raises(hs.UsageError, match=r"not built as the one of the checkpoint: .*size mismatch"):
        hs.replay(full, nn.Sequential(nn.Linear(4, 5)))
    with pytest.raises(hs.AttachError, match=r"model is a str, not a torch\.nn\.Module"):
        hs.replay(full, "net")  # type: ignore[arg-type]
    with pytest.raises(hs.RunUnreadableError, match=r"no incident at .*: give one of"):
        hs.replay(tmp_path / "full", build())
