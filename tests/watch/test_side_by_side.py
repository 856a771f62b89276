"""A watch beside other watches and beside the hooks of other people."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import hookscope as hs

from ._traces import in_process, on_model

BATCH = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)


def trained() -> tuple[nn.Sequential, torch.optim.SGD]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(BATCH).square().mean().backward()
    optimizer.step()


def numbers(run: hs.Run) -> dict[str, list[float]]:
    """All that was recorded but the time it took."""
    return {site.name: run[site, "sum"].values.tolist() for site in run.sites if site.path != "seconds"}


def alone(steps: int) -> dict[str, list[float]]:
    model, optimizer = trained()
    with hs.watch(model, optimizer) as w:
        for _ in range(steps):
            step(model, optimizer)
    return numbers(w.run)


def test_two_watches_on_one_model_each_record_all_of_it() -> None:
    model, optimizer = trained()
    with hs.watch(model, optimizer) as first, hs.watch(model, optimizer) as second:
        for _ in range(3):
            step(model, optimizer)
    assert numbers(first.run) == numbers(second.run) == alone(3)


@pytest.mark.parametrize("leaves", [0, 1])
def test_closing_one_of_two_watches_leaves_the_other(leaves: int) -> None:
    model, optimizer = trained()
    before = on_model(model)
    watches = [hs.watch(model, optimizer), hs.watch(model, optimizer)]
    step(model, optimizer)
    watches[leaves].close()
    for _ in range(2):
        step(model, optimizer)
    watches[1 - leaves].close()
    assert watches[leaves].run.steps.tolist() == [0]
    assert numbers(watches[1 - leaves].run) == alone(3)
    assert on_model(model) == before
    assert in_process() == {}


def test_a_second_watch_after_the_first_records_what_a_first_would() -> None:
    model, optimizer = trained()
    with hs.watch(model, optimizer) as first:
        step(model, optimizer)
    with hs.watch(model, optimizer) as second:
        step(model, optimizer)
        step(model, optimizer)
    whole = alone(3)
    assert numbers(first.run) == {name: values[:1] for name, values in whole.items()}
    assert numbers(second.run) == {name: values[1:] for name, values in whole.items()}


def foreign_hooks(model: nn.Module, optimizer: torch.optim.Optimizer, log: list[str], who: str) -> list[Any]:
    """Hooks of every kind there is, each of which notes that it was called."""

    def noting(what: str) -> Callable[..., None]:
        return lambda *_, **__: log.append(f"{who} {what}")

    found = [register_optimizer_step_pre_hook(noting("any optimizer")), register_optimizer_step_post_hook(noting("any optimizer done"))]
    found += [optimizer.register_step_pre_hook(noting("optimizer")), optimizer.register_step_post_hook(noting("optimizer done"))]
    for name, module in (("root", model), ("layer", model[2])):
        found += [
            module.register_forward_pre_hook(noting(f"{name} called"), with_kwargs=True),
            module.register_forward_hook(noting(f"{name} returned"), always_call=True),
            module.register_full_backward_pre_hook(noting(f"{name} gradient")),
            module.register_full_backward_hook(noting(f"{name} gradients")),
        ]
    weight = model[2].weight
    return [
        *found,
        weight.register_hook(noting("weight gradient")),
        weight.register_post_accumulate_grad_hook(noting("weight accumulated")),
    ]


def history(watch: Callable[[nn.Module], hs.watch] | None) -> tuple[list[str], list[Any]]:
    """What hooks placed before and after the attach note over two steps, the second after the watch."""
    model, optimizer = trained()
    log: list[str] = []
    hooks = foreign_hooks(model, optimizer, log, "early")
    w = watch(model) if watch is not None else None
    hooks += foreign_hooks(model, optimizer, log, "late")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
        step(model, optimizer)
        if w is not None:
            w.close()
        step(model, optimizer)
    left = [value for name, value in on_model(model).items() if "hook" in name]
    for hook in hooks:
        hook.remove()
    return log, [len(hooks) for hooks in left if isinstance(hooks, list)]


def test_hooks_of_others_fire_as_ever_in_their_order_and_stay() -> None:
    expected, left = history(None)
    assert len(expected) == 2 * 2 * 14
    assert history(lambda model: hs.watch(model, select=["**", "**:input"])) == (expected, left)
    assert in_process() == {}


def test_a_hook_of_anothers_may_replace_an_output_and_an_input() -> None:
    def doubled(watched: bool) -> torch.Tensor:
        model, _ = trained()
        model[0].register_forward_hook(lambda module, args, output: output * 2)
        with hs.watch(model, select=["**", "**:input"]) if watched else nullcontext():
            model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
            return model(BATCH)

    assert torch.equal(doubled(watched=True), doubled(watched=False))


def test_a_backward_that_another_tool_has_wrapped_meanwhile_stays_wrapped_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = trained()
    calls: list[int] = []
    w = hs.watch(model, optimizer)
    inner = torch.autograd.backward

    def theirs(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        inner(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", theirs)
    step(model, optimizer)
    w.close()
    assert torch.autograd.backward is theirs
    step(model, optimizer)
    assert len(calls) == 2
    assert w.run.steps.tolist() == [0]
    monkeypatch.undo()
    torch.autograd.backward = _original(torch.autograd.backward)
    assert in_process() == {}


def _original(wrapped: Any) -> Any:
    """`monkeypatch` puts back our wrapper, which is inert by now."""
    return wrapped.__wrapped__


@pytest.mark.parametrize(("how", "steps"), [("overwrite", 2), ("resume", 5)])
def test_a_cell_of_a_notebook_that_is_run_again_ends_the_watch_that_it_left_open(how: str, steps: int, tmp_path: Path) -> None:
    model, optimizer = trained()
    left_open = hs.watch(model, optimizer, to=tmp_path / "run")
    for _ in range(3):
        step(model, optimizer)
    again = hs.watch(model, optimizer, to=tmp_path / "run", overwrite=how == "overwrite", resume=how == "resume")
    for _ in range(2):
        step(model, optimizer)
    for watched in (again, left_open):
        watched.close()
    run = hs.Run(tmp_path / "run")
    assert run.steps.tolist() == list(range(steps))
    assert run.meta.status == "finished"
    assert on_model(model) == on_model(trained()[0])
