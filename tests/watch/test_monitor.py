"""`GradientMonitor`: the class of the hook tutorials, with their numbers right and their faults mended."""

from __future__ import annotations

import gc
import inspect
import math
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs

pytestmark = pytest.mark.slow


def fixed(weight: list[list[float]]) -> nn.Linear:
    """A linear layer without bias and with this weight."""
    layer = nn.Linear(len(weight[0]), len(weight), bias=False)
    layer.load_state_dict({"weight": torch.tensor(weight)})
    return layer


def hooks_on(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


def followed(model: nn.Module, loss: Callable[[], torch.Tensor], **options: Any) -> hs.GradientMonitor:
    """One backward of `loss()`, followed; anomalies do not warn."""
    with warnings.catch_warnings(), hs.GradientMonitor(model, **options) as monitor:
        warnings.simplefilter("ignore", hs.FindingWarning)
        loss().backward()
    return monitor


def test_the_signature_is_the_one_people_know() -> None:
    parameters = inspect.signature(hs.GradientMonitor).parameters.values()
    assert [(p.name, p.default, p.kind) for p in parameters] == [
        ("model", inspect.Parameter.empty, inspect.Parameter.POSITIONAL_OR_KEYWORD),
        ("grad_norm_threshold", 10.0, inspect.Parameter.POSITIONAL_OR_KEYWORD),
        ("log_grad_norms", True, inspect.Parameter.POSITIONAL_OR_KEYWORD),
    ]


def test_the_norms_are_those_of_the_gradients_at_the_outputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    outputs = []
    for layer in model:
        outputs.append(layer(outputs[-1] if outputs else x))
        outputs[-1].retain_grad()
    outputs[-1].pow(2).sum().backward()
    expected = {str(i): pytest.approx(y.grad.norm().item(), rel=1e-6) for i, y in enumerate(outputs) if y.grad is not None}
    monitor = followed(model, lambda: model(x).pow(2).sum())
    assert {layer: norms[0] for layer, norms in monitor.grad_stats.items()} == expected
    assert list(map(len, monitor.grad_stats.values())) == [1, 1, 1]


def test_the_report_is_over_all_backwards_and_the_history_can_be_left_out() -> None:
    model = nn.Sequential(fixed([[1.0]]))
    with hs.GradientMonitor(model, log_grad_norms=False) as monitor:
        for factor in (3.0, 1.0, 2.0):  # the gradient at the output
            (factor * model(torch.ones(1, 1))).sum().backward()
    assert monitor.grad_stats == {}
    assert monitor.get_gradient_report() == {"0": {"mean": 2.0, "max": 3.0, "min": 1.0, "latest": 2.0}}


def test_an_anomaly_is_told_in_full_during_that_backward() -> None:
    """The gradient at the output is 3, 3, 3, -3: norm 6, mean 1.5, variance 9 - 2.25. The weight's is 3 (1 + 2 + 4 - 8) = -3."""
    model = nn.Sequential(fixed([[2.0]]), nn.Identity())
    signs = torch.tensor([[3.0], [3.0], [3.0], [-3.0]])
    with hs.GradientMonitor(model, grad_norm_threshold=5.0) as monitor:
        loss = (signs * model[0](torch.tensor([[1.0], [2.0], [4.0], [8.0]]))).sum()
        with pytest.warns(hs.FindingWarning) as caught:
            loss.backward()
    assert [str(w.message) for w in caught] == ["gradient at layer '0' has norm 6, above the threshold 5, at step 0"]
    assert caught[0].filename == __file__
    (event,) = monitor.anomaly_events
    expected = {"layer": "0", "call": 0, "step": 0, "grad_norm": 6.0, "grad_mean": 1.5, "grad_max": 3.0, "weight_grad_norm": 3.0}
    assert {**event, "grad_std": None} == {**expected, "grad_std": None}
    assert event["grad_std"] == pytest.approx(math.sqrt(9 - 2.25))


def test_a_norm_that_equals_the_threshold_is_none() -> None:
    model = nn.Sequential(fixed([[1.0]]))
    assert followed(model, lambda: 2 * model(torch.ones(1, 1)), grad_norm_threshold=2.0).anomaly_events == []
    assert followed(model, lambda: 2 * model(torch.ones(1, 1)), grad_norm_threshold=1.999).anomaly_events != []


def test_the_step_is_that_of_the_optimizer() -> None:
    model = nn.Sequential(fixed([[1.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with warnings.catch_warnings(), hs.GradientMonitor(model, 0.5) as monitor:
        warnings.simplefilter("ignore", hs.FindingWarning)
        for _ in range(3):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
    assert [event["step"] for event in monitor.anomaly_events] == [0, 1, 2]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_weights_gradient_of_a_first_layer_is_this_backwards_and_not_the_last_ones(set_to_none: bool) -> None:
    model = nn.Sequential(fixed([[1.0]]), fixed([[1.0]]))
    with warnings.catch_warnings(), hs.GradientMonitor(model, 0.5) as monitor:
        warnings.simplefilter("ignore", hs.FindingWarning)
        for x in (3.0, 5.0):
            model.zero_grad(set_to_none=set_to_none)
            model(torch.full((1, 1), x)).sum().backward()
    assert [e["weight_grad_norm"] for e in monitor.anomaly_events if e["layer"] == "0"] == [3.0, 5.0]


class Reused(nn.Module):
    """y = w (w x), so dL/dy = 1, dL/d(wx) = w and dL/dw = 2 w x."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = fixed([[3.0]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x))


def test_each_call_of_a_reused_layer_counts_and_its_weights_gradient_is_whole() -> None:
    model = Reused()
    monitor = followed(model, lambda: model(torch.ones(1, 1)).sum(), grad_norm_threshold=0.5)
    assert sorted(monitor.grad_stats["layer"]) == [1.0, 3.0]
    assert {(e["call"], e["grad_norm"], e["weight_grad_norm"]) for e in monitor.anomaly_events} == {(0, 3.0, 6.0), (1, 1.0, 6.0)}


def test_tied_weights_have_their_whole_gradient() -> None:
    model = nn.Sequential(fixed([[3.0]]), fixed([[3.0]]))
    model[1].weight = model[0].weight
    monitor = followed(model, lambda: model(torch.ones(1, 1)).sum(), grad_norm_threshold=0.5)
    assert {e["layer"]: e["weight_grad_norm"] for e in monitor.anomaly_events} == {"0": 6.0, "1": 6.0}


def test_activations_in_place_are_followed_and_not_broken() -> None:
    model = nn.Sequential(fixed([[1.0], [-1.0]]), nn.ReLU(inplace=True), fixed([[2.0, 2.0]]))
    monitor = followed(model, lambda: model(torch.ones(1, 1)).sum())
    assert monitor.grad_stats == {"0": [2.0], "1": [pytest.approx(math.sqrt(8))], "2": [1.0]}


class Structured(nn.Module):
    """Returns two tensors of one layer in some structure; the loss takes the second."""

    def __init__(self, pack: Callable[[torch.Tensor, torch.Tensor], Any], take: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.leaf, self.take = Leaf(pack), take

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.take(self.leaf(x))


class Leaf(nn.Module):
    def __init__(self, pack: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.pack, self.weight = pack, nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> Any:
        first, second = (x * self.weight).chunk(2)
        return self.pack(first, second)


@pytest.mark.parametrize(
    ("pack", "take", "name"),
    [
        (lambda a, b: (a, b), lambda y: y[1], "leaf[1]"),
        (lambda a, b: [a, {"b": b}], lambda y: y[1]["b"], 'leaf[1]["b"]'),
        (lambda a, b: {"a": a, "b": b}, lambda y: y["b"], 'leaf["b"]'),
    ],
    ids=["tuple", "nested", "dict"],
)
def test_any_structure_of_outputs_is_followed_and_an_unused_one_has_no_row(pack: Any, take: Any, name: str) -> None:
    model = Structured(pack, take)
    monitor = followed(model, lambda: 4 * model(torch.ones(2)))
    assert monitor.grad_stats == {name: [4.0]}


def test_attention_and_parametrized_layers_have_rows_though_they_have_children() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.ones(1, 3, 4)
    monitor = followed(attention, lambda: 2 * attention(x, x, x)[0].sum())
    assert monitor.grad_stats["(root)[0]"] == [pytest.approx(2 * math.sqrt(12))]

    model = nn.Sequential(nn.utils.parametrizations.weight_norm(fixed([[1.0]])))
    assert followed(model, lambda: 3 * model(torch.ones(1, 1))).grad_stats["0"] == [3.0]


def test_a_frozen_prefix_has_no_row_and_what_comes_after_it_has() -> None:
    model = nn.Sequential(fixed([[1.0]]), fixed([[1.0]]))
    model[0].requires_grad_(False)
    assert followed(model, lambda: model(torch.ones(1, 1)).sum()).grad_stats == {"1": [1.0]}


def test_a_gradient_penalty_is_not_mixed_into_the_gradients_of_the_loss() -> None:
    """The loss is D + (d 5D/dx)^2: the gradient that arrives at D is 1, the one that the penalty takes, on the way, is 5."""

    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = fixed([[2.0]])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale(x * x)

    x = torch.full((1, 1), 3.0, requires_grad=True)

    def loss(model: nn.Module) -> torch.Tensor:
        y = model(x)
        (slope,) = torch.autograd.grad(5 * y.sum(), x, create_graph=True)
        return y.sum() + slope.pow(2).sum()

    model = Square()
    gone = weakref.ref(model)
    monitor = followed(model, partial(loss, model))
    assert monitor.grad_stats == {"scale": [1.0]}
    del model, monitor
    gc.collect()
    assert gone() is None


def test_a_loss_scale_is_no_part_of_the_norms() -> None:
    model = nn.Sequential(fixed([[1.0]]))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitor = followed(model, lambda: scaler.scale(3 * model(torch.ones(1, 1))), grad_norm_threshold=2.0)
    assert monitor.grad_stats == {"0": [3.0]}
    assert [(e["grad_norm"], e["weight_grad_norm"]) for e in monitor.anomaly_events] == [(3.0, 3072.0)]


def test_nan_and_inf_are_anomalies_and_the_report_is_over_the_finite() -> None:
    model = nn.Sequential(fixed([[1.0]]))
    with warnings.catch_warnings(), hs.GradientMonitor(model) as monitor:
        warnings.simplefilter("ignore", hs.FindingWarning)
        for factor in (2.0, math.nan, math.inf):
            (factor * model(torch.ones(1, 1))).sum().backward()
    norms = [event["grad_norm"] for event in monitor.anomaly_events]
    assert len(norms) == 2
    assert math.isnan(norms[0])
    assert norms[1] == math.inf
    assert monitor.get_gradient_report() == {"0": {"mean": 2.0, "max": 2.0, "min": 2.0, "latest": math.inf}}


def test_three_monitors_leave_no_hook_and_a_second_attach_counts_nothing_twice() -> None:
    model = nn.Sequential(fixed([[1.0]]))
    monitors = [hs.GradientMonitor(model) for _ in range(3)]
    assert hooks_on(model) == 0
    for monitor in monitors:
        assert monitor.attach().attach() is monitor
    model(torch.ones(1, 1)).sum().backward()
    for monitor in monitors:
        monitor.detach()
        monitor.detach()
    assert hooks_on(model) == 0
    model(torch.ones(1, 1)).sum().backward()
    assert [monitor.grad_stats for monitor in monitors] == [{"0": [1.0]}] * 3


def test_an_exception_takes_the_hooks_off_and_is_the_programs_own() -> None:
    model = nn.Sequential(fixed([[1.0]]), fixed([[1.0, 1.0]]))
    with pytest.raises(RuntimeError, match="shapes"), hs.GradientMonitor(model):
        model(torch.ones(1, 1))
    assert hooks_on(model) == 0


def test_warnings_turned_into_errors_do_not_reach_the_training() -> None:
    model = nn.Sequential(fixed([[1.0]]))
    with warnings.catch_warnings(), hs.GradientMonitor(model, 0.5) as monitor:
        warnings.simplefilter("error")
        model(torch.ones(1, 1)).sum().backward()
    assert len(monitor.anomaly_events) == 1


def test_wrong_use_is_told_when_it_is_made() -> None:
    with pytest.raises(hs.UsageError, match=r"^grad_norm_threshold=-1 is no limit: give a norm above 0, such as 10\.0$"):
        hs.GradientMonitor(nn.Linear(1, 1), -1)
    with pytest.raises(hs.UsageError, match="grad_norm_threshold=nan is no limit"):
        hs.GradientMonitor(nn.Linear(1, 1), math.nan)
    with pytest.raises(hs.AttachError, match=r"^model is a list, not a torch\.nn\.Module$"):
        hs.GradientMonitor([nn.Linear(1, 1)])  # type: ignore[arg-type]
