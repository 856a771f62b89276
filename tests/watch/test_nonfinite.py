"""`on_nonfinite`: a step whose loss or gradients are not finite is reported, raised, or left out without any effect."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._core._finding import Finding

from ._small import BATCH, batch, events, mlp, told

pytestmark = pytest.mark.slow

BAD = 3  # the step that goes bad
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.1, foreach=False, weight_decay=0.1),
    "foreach adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.1, foreach=True),
    "fused adam": lambda m: torch.optim.AdamW(m.parameters(), lr=0.1, fused=True),
}
Bits = list[Any]


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> None:
    torch._dynamo.reset()


def bits(model: nn.Module, *optimizers: torch.optim.Optimizer) -> Bits:
    """Weights and everything an optimizer keeps, comparable bit for bit."""
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    kept = [(i, n, k, v) for i, state in enumerate(states) for n, entry in state.items() for k, v in entry.items()]
    return [(n, p.detach().numpy().tobytes()) for n, p in model.named_parameters()] + [
        (*key, v.numpy().tobytes() if isinstance(v, torch.Tensor) else v) for *key, v in kept
    ]


def loss_of(y: torch.Tensor, *, bad: bool) -> torch.Tensor:
    return (y - 1).square().mean() + ((y.detach() * 0 - 1).log() * y).mean() if bad else (y - 1).square().mean()


def run(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    steps: int = 6,
    micros: int = 1,
    around: Callable[[int], object] = lambda step: None,
    **settings: Any,
) -> hs.watch:
    """A training in which the last micro-batch of step `BAD` makes NaN; `around` is called after every step."""
    with hs.watch(model, optimizer, on_finding="ignore", **settings) as w:
        for step in range(steps):
            optimizer.zero_grad()
            for micro in range(micros):
                bad = step == BAD and micro == micros - 1
                (loss_of(model(batch(10 * step + micro)), bad=bad) / micros).backward()
            optimizer.step()
            around(step)
    return w


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int = 6, micros: int = 1) -> Bits:
    """The same training, unwatched, by someone who leaves that step out."""
    for step in range(steps):
        optimizer.zero_grad()
        for micro in range(micros):
            loss = loss_of(model(batch(10 * step + micro)), bad=False)
            (loss / micros).backward()
        if step != BAD:
            optimizer.step()
    return bits(model, optimizer)


@pytest.mark.parametrize("micros", [1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_has_no_effect_on_weights_and_optimizer(name: str, micros: int) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[name](model)
    seen: list[Bits] = []
    w = run(model, optimizer, micros=micros, on_nonfinite="skip", around=lambda step: seen.append(bits(model, optimizer)))
    assert seen[BAD] == seen[BAD - 1] != seen[BAD + 1]
    twin = mlp()
    assert seen[-1] == by_hand(twin, OPTIMIZERS[name](twin), micros=micros)
    assert [(event["step"], event["by"]) for event in events(w.run, "skipped")] == [(BAD, "hookscope")]
    assert w.run["skipped"].steps.tolist() == [BAD]
    assert w.run.steps.tolist() == list(range(6))


def test_the_loop_finds_the_gradients_it_left_behind_a_skipped_step() -> None:
    model = mlp()
    gradients: list[Any] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = optimizer.register_step_pre_hook(lambda *_: gradients.append([p.grad for p in model.parameters()]))
    after: list[Any] = []
    run(model, optimizer, steps=BAD + 1, on_nonfinite="skip", around=lambda step: after.append([p.grad for p in model.parameters()]))
    hook.remove()
    assert all(a is not None for a in after[BAD])
    assert any(bool(a.isnan().any()) for a in after[BAD])


@pytest.mark.parametrize("every", [1, 5])
def test_every_step_is_looked_at_whether_it_is_recorded_or_not(every: int) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = run(model, optimizer, on_nonfinite="skip", every=every)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert [event["step"] for event in events(w.run, "skipped")] == [BAD]


def test_by_default_the_step_is_taken_and_reported() -> None:
    model = mlp()
    w = run(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert not any(bool(p.isfinite().all()) for p in model.parameters())
    assert [(f.rule, f.op, f.first_step) for f in w.findings][:1] == [("nonfinite-loss", "log", BAD)]
    assert events(w.run, "skipped") == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_raise_comes_before_the_step_with_the_whole_verdict(name: str) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[name](model)
    seen: list[Bits] = []
    with pytest.raises(hs.NonFiniteError) as raised:
        run(model, optimizer, on_nonfinite="raise", around=lambda step: seen.append(bits(model, optimizer)))
    assert len(seen) == BAD
    assert bits(model, optimizer) == seen[-1]
    text = str(raised.value)
    assert "error nonfinite-loss at step 3" in text
    assert "log made it at test_nonfinite.py:" in text
    assert "from -1 " not in text  # one value: no range is told
    assert raised.value.findings[0].op == "log"
    assert isinstance(raised.value, hs.FindingError)


class OneBadSample(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(len(x))[:, None] == 5, x * 0 - 1, x * 0 + 1).sqrt() * x


def test_the_error_tells_operation_line_sample_and_module() -> None:
    model = mlp(OneBadSample())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, on_nonfinite="raise", on_finding="ignore"):
        model(batch(0)).sum().backward()
        with pytest.raises(hs.NonFiniteError) as raised:
            optimizer.step()
    text = str(raised.value)
    assert "sqrt made it at test_nonfinite.py:" in text
    assert "from values in -1 .. 1, in sample 5 of the batch" in text
    assert raised.value.findings[0].module == "1"
    assert BATCH > 5


def test_a_function_is_given_the_findings_and_decides() -> None:
    asked: list[tuple[Finding, ...]] = []

    def decide(findings: tuple[Finding, ...]) -> str:
        asked.append(findings)
        return "skip"

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[Bits] = []
    run(model, optimizer, on_nonfinite=decide, around=lambda step: seen.append(bits(model, optimizer)))
    assert [[f.rule for f in findings] for findings in asked] == [["nonfinite-loss"]]
    assert seen[BAD] == seen[BAD - 1]


@pytest.mark.parametrize("answer", [None, "report"])
def test_a_function_may_let_the_step_go_on(answer: str | None) -> None:
    model = mlp()
    run(model, torch.optim.SGD(model.parameters(), lr=0.1), on_nonfinite=lambda findings: answer)
    assert not any(bool(p.isfinite().all()) for p in model.parameters())


def test_a_function_may_raise() -> None:
    model = mlp()
    with pytest.raises(hs.NonFiniteError, match="nonfinite-loss at step 3"):
        run(model, torch.optim.SGD(model.parameters(), lr=0.1), on_nonfinite=lambda findings: "raise")


def test_an_answer_that_is_none_of_the_words_is_refused_where_it_is_given() -> None:
    model = mlp()
    with pytest.raises(hs.UsageError, match=r"on_nonfinite's function returned 'skipp': .*'report', 'raise', 'skip'"):
        run(model, torch.optim.SGD(model.parameters(), lr=0.1), on_nonfinite=lambda findings: "skipp")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("rais", "on_nonfinite='rais' is unknown: did you mean 'raise'\\? choose one of 'report', 'raise', 'skip'"),
        (None, "on_nonfinite=None is unknown"),
        (True, "on_nonfinite=True is unknown"),
        ("warn", "on_nonfinite='warn' is unknown"),
    ],
)
def test_wrong_values_are_refused_at_once(value: Any, text: str) -> None:
    with pytest.raises(hs.UsageError, match=text):
        hs.watch(mlp(), on_nonfinite=value)


@pytest.mark.parametrize("ill", [{0}, {1}, {0, 1}])
def test_of_two_optimizers_those_with_bad_gradients_are_left_out(ill: set[int]) -> None:
    nets = [mlp(), mlp()]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    before: list[list[Bits]] = []
    with hs.watch(nets, optimizers, on_finding="ignore", on_nonfinite="skip") as w:
        for step in range(BAD + 2):
            before.append([bits(net) for net in nets])
            for number, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
                optimizer.zero_grad()
                loss_of(net(batch(step)), bad=step == BAD and number in ill).backward()
                optimizer.step()
        after = [bits(net) for net in nets]
    assert {number for number in range(2) if before[BAD][number] == before[BAD + 1][number]} == ill
    assert all(before[BAD + 1][number] != after[number] for number in range(2))
    assert [event["step"] for event in events(w.run, "skipped")] == [BAD]


@pytest.mark.parametrize("how", ["skip", "raise"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scaler_that_skips_by_itself_is_left_to_it(name: str, how: Any) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[name](model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    seen = []
    with hs.watch(model, optimizer, on_finding="ignore", on_nonfinite=how) as w:
        for step in range(5):
            optimizer.zero_grad()
            loss = (model(batch(step)) - 1).square().mean() * (1e38 if step == BAD else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            seen.append(bits(model))
    assert seen[BAD] == seen[BAD - 1]
    assert [(event["step"], event["by"]) for event in events(w.run, "skipped")] == [(BAD, "GradScaler")]


def test_gradients_that_are_infinite_and_a_loss_that_is_not_are_enough() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = bits(model)
    with hs.watch(model, optimizer, on_finding="ignore", on_nonfinite="skip"):
        (model(batch(0)) * 0).sqrt().sum().backward()
        optimizer.step()
    assert bits(model) == before
    with hs.watch(model, on_finding="ignore", on_nonfinite="raise"):
        (model(batch(0)) * 0).sqrt().sum().backward()
        with pytest.raises(hs.NonFiniteError, match="the backward of sqrt made it"):
            optimizer.step()


def test_a_bad_gradient_that_no_rule_explains_is_raised_all_the_same() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, on_finding="ignore", on_nonfinite="raise", select="**:output"):
        model(batch(0)).sum().backward()
        next(p.grad for p in model.parameters() if p.grad is not None).fill_(math.inf)
        with pytest.raises(hs.NonFiniteError, match="the loss or a gradient is not finite; no rule can tell where it began"):
            optimizer.step()


def test_a_healthy_training_under_guard_has_the_bits_of_an_unwatched_one() -> None:
    def trained(**settings: Any) -> Bits:
        model = mlp()
        optimizer = OPTIMIZERS["adam"](model)
        with told() as warned:
            for how in [settings] if settings else []:
                run(model, optimizer, steps=BAD, **how)
            if not settings:
                by_hand(model, optimizer, steps=BAD)
        assert warned == []
        return bits(model, optimizer)

    assert trained() == trained(on_nonfinite="skip") == trained(on_nonfinite="raise") == trained(on_nonfinite=lambda findings: "raise")
