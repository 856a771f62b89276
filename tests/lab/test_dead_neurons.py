"""`diagnose_dead_neurons`: the function of the hook tutorials, with the axis of the units, the mode and the scale right."""

from __future__ import annotations

import inspect
import math
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs


def linear(*rows: float) -> nn.Linear:
    """A layer of one input without bias; its outputs are the input times `rows`."""
    layer = nn.Linear(1, len(rows), bias=False)
    layer.load_state_dict({"weight": torch.tensor(rows)[:, None]})
    return layer


def conv(*channels: float, dimensions: int = 2) -> nn.Module:
    """A 1x1 convolution of one channel without bias; its channels are the input times `channels`."""
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1](1, len(channels), 1, bias=False)
    nn.init.ones_(layer.weight).data.mul_(torch.tensor(channels).reshape(-1, *[1] * (dimensions + 1)))
    return layer


def hooks_on(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_the_signature_is_the_one_people_know() -> None:
    signature = inspect.signature(hs.diagnose_dead_neurons)
    assert [(p.name, p.default) for p in signature.parameters.values()] == [
        ("model", inspect.Parameter.empty),
        ("sample_input", inspect.Parameter.empty),
        ("layer_names", None),
        ("dead_threshold", 0.01),
    ]
    assert {p.kind for p in signature.parameters.values()} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


@pytest.mark.parametrize(
    ("threshold", "share"), [(0.0, 0.25), (0.01, 0.25), (0.019, 0.25), (0.021, 0.5), (0.5, 0.5), (0.9, 0.75), (0.99, 0.75)]
)
def test_a_unit_is_dead_at_or_below_the_threshold_times_the_mean_of_the_layer(threshold: float, share: float) -> None:
    """Magnitudes 0, 0.02, 0.88, 3.1 on the input 1: their mean is 1."""
    model = nn.Sequential(linear(0.0, -0.02, 0.88, -3.1))
    assert hs.diagnose_dead_neurons(model, torch.tensor([[1.0], [-1.0]]), dead_threshold=threshold) == {"0": share}


def test_a_unit_that_fires_once_in_the_batch_is_alive() -> None:
    """ReLU units of +x and -x on three positive samples and one negative."""
    model = nn.Sequential(linear(1.0, -1.0, 0.0), nn.ReLU())
    assert hs.diagnose_dead_neurons(model, torch.tensor([[1.0], [2.0], [3.0], [-1.0]])) == {"0": 1 / 3, "1": 1 / 3}
    assert hs.diagnose_dead_neurons(model, torch.tensor([[1.0], [2.0], [3.0]])) == {"0": 1 / 3, "1": 2 / 3}


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e7])
def test_the_scale_of_a_layer_changes_nothing(scale: float) -> None:
    assert hs.diagnose_dead_neurons(nn.Sequential(linear(scale, 0.0, 2 * scale, 3 * scale)), torch.ones(2, 1)) == {"0": 0.25}


def test_a_layer_that_is_silent_altogether_is_dead_and_a_constant_one_alive() -> None:
    assert hs.diagnose_dead_neurons(nn.Sequential(linear(0.0, 0.0), nn.Sigmoid()), torch.ones(3, 1)) == {"0": 1.0, "1": 0.0}


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("batched", [True, False])
def test_units_of_a_convolution_and_of_what_follows_are_its_channels(dimensions: int, batched: bool) -> None:
    """Four of eight channels are dead; columns of the image that are dark everywhere are no units."""
    pool = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[dimensions - 1](1)
    model = nn.Sequential(conv(*[1.0, 0.0] * 4, dimensions=dimensions), pool, nn.ReLU())
    image = torch.ones(2, 1, *[5] * dimensions)
    image[..., 1:] = 0
    assert hs.diagnose_dead_neurons(model, image if batched else image[0]) == {"0": 0.5, "2": 0.5}
    alive = nn.Sequential(conv(1.0, 2.0, dimensions=dimensions), nn.ReLU())
    assert hs.diagnose_dead_neurons(alive, image if batched else image[0]) == {"0": 0.0, "1": 0.0}


def test_units_of_norms_and_of_transposed_convolutions_are_channels() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(1, 4, 1, bias=False), nn.GroupNorm(4, 4), nn.InstanceNorm2d(4, affine=True), nn.GELU())
    nn.init.ones_(model[0].weight)
    for norm in (model[1], model[2]):
        nn.init.zeros_(norm.weight[1:].data)
    x = torch.arange(12.0).reshape(1, 1, 3, 4)
    assert hs.diagnose_dead_neurons(model, x) == {"0": 0.0, "1": 0.75, "2": 0.75, "3": 0.75}
    without_batch = nn.Sequential(nn.ConvTranspose2d(1, 4, 1, bias=False), nn.InstanceNorm2d(4, affine=True), nn.ReLU())
    without_batch.load_state_dict({"0.weight": model[0].weight, "1.weight": model[2].weight, "1.bias": model[2].bias})
    assert hs.diagnose_dead_neurons(without_batch, x[0]) == {"0": 0.0, "1": 0.75, "2": 0.75}


def test_units_of_a_transformer_are_the_last_dimension() -> None:
    """(batch, time, features): one feature of four is off in the norm; time steps that are zero are no units."""
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2))
    nn.init.zeros_(model[1].weight[:1].data)
    nn.init.eye_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    x = torch.zeros(2, 3, 4)
    x[:, 0] = torch.tensor([1.0, 2.0, 3.0, 9.0])
    found = hs.diagnose_dead_neurons(model, x)
    assert (found["0"], found["1"], found["2"]) == (0.0, 0.25, 0.25)


def test_flattening_makes_entries_of_the_channels_and_linear_layers_go_by_the_last_dimension() -> None:
    model = nn.Sequential(conv(1.0, 0.0), nn.Flatten(), nn.ReLU(), nn.Linear(8, 3), nn.ReLU())
    model[3].load_state_dict({"weight": torch.ones(3, 8), "bias": torch.tensor([0.0, -100.0, 0.0])})
    assert hs.diagnose_dead_neurons(model, torch.ones(2, 1, 2, 2)) == {"0": 0.5, "2": 0.5, "3": 0.0, "4": 1 / 3}


def test_one_sample_without_a_batch_is_taken() -> None:
    assert hs.diagnose_dead_neurons(nn.Sequential(linear(1.0, 0.0), nn.ReLU()), torch.ones(1)) == {"0": 0.5, "1": 0.5}


def test_recurrent_layers_and_embeddings_go_by_the_last_dimension() -> None:
    embedding = nn.Embedding.from_pretrained(torch.tensor([[1.0, 0.0, 2.0, 0.0], [3.0, 0.0, 1.0, 0.0]]), freeze=False)
    lstm = nn.LSTM(4, 5, batch_first=True)
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter.zero_()
    assert hs.diagnose_dead_neurons(nn.Sequential(embedding, lstm), torch.tensor([[0, 1, 1]])) == {"0": 0.5, "1": 1.0}


def norm_model() -> nn.Sequential:
    """The running statistics put every unit far below zero; those of the batch do not."""
    model = nn.Sequential(linear(1.0, 2.0), nn.BatchNorm1d(2), nn.ReLU())
    model[1].running_mean.fill_(1000.0)
    return model


@pytest.mark.parametrize(("training", "share"), [(True, 0.0), (False, 1.0)])
def test_a_batch_norm_is_measured_in_the_mode_it_is_in_and_not_changed(training: bool, share: float) -> None:
    model = norm_model().train(training)
    model[0].train(not training)  # a mix of modes stays one
    before = {name: value.clone() for name, value in model.state_dict().items()}
    buffers = [buffer.data_ptr() for buffer in model.buffers()]
    assert hs.diagnose_dead_neurons(model, torch.tensor([[-1.0], [1.0], [3.0]]))["2"] == share
    assert [m.training for m in model] == [not training, training, training]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [buffer.data_ptr() for buffer in model.buffers()] == buffers


def test_nothing_of_the_training_changes() -> None:
    model = nn.Sequential(nn.Linear(1, 3), nn.Dropout(0.5), nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)))
    model(torch.ones(2, 1)).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    hs.diagnose_dead_neurons(model, torch.ones(2, 1))
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(map(torch.equal, gradients, [p.grad for p in model.parameters() if p.grad is not None]))
    assert torch.is_grad_enabled()


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("the model's own")


def test_an_exception_is_the_models_own_and_leaves_hooks_mode_and_buffers_as_they_were() -> None:
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1), Fails())
    with pytest.raises(ZeroDivisionError, match="the model's own"):
        hs.diagnose_dead_neurons(model, torch.randn(4, 1))
    assert hooks_on(model) == 0
    assert model.training
    assert model[0].num_batches_tracked == 0
    assert torch.equal(model[0].running_mean, torch.zeros(1))


def test_hooks_are_gone_and_the_users_own_stay() -> None:
    model = nn.Sequential(linear(1.0), nn.ReLU())
    calls: list[str] = []
    model[0].register_forward_hook(lambda *_: calls.append("mine"))
    hs.diagnose_dead_neurons(model, torch.ones(1, 1))
    model(torch.ones(1, 1))
    assert (hooks_on(model), calls) == (1, ["mine", "mine"])


class Two(nn.Module):
    """Takes two arguments; its layer is called twice, and a third layer never."""

    def __init__(self) -> None:
        super().__init__()
        self.late, self.layer, self.unused = linear(1.0), linear(1.0, 0.0), linear(1.0)

    def forward(self, a: torch.Tensor, *, b: torch.Tensor) -> torch.Tensor:
        return self.late(self.layer(a)[:, :1] + self.layer(b)[:, :1])


class TwoPositional(Two):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(a, b=b)


@pytest.mark.parametrize("wrap", [dict, UserDict])
def test_a_dict_is_keyword_arguments_a_tuple_positional_ones_and_anything_else_one_argument(wrap: Any) -> None:
    a, b = torch.zeros(2, 1), torch.ones(3, 1)[:2]
    assert hs.diagnose_dead_neurons(Two(), wrap(a=a, b=b)) == {"layer": 0.5, "late": 0.0}
    assert hs.diagnose_dead_neurons(TwoPositional(), (a, b)) == {"layer": 0.5, "late": 0.0}
    assert hs.diagnose_dead_neurons(linear(1.0, 0.0), b) == {"": 0.5}


def test_all_calls_of_a_reused_layer_count() -> None:
    """Unit 0 fires in the first call only, unit 1 in the second only, unit 2 in none."""

    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.act = linear(1.0, -1.0, 0.0), nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(self.layer(x)) + self.act(self.layer(-x))

    assert hs.diagnose_dead_neurons(Reused(), torch.ones(4, 1)) == {"layer": 1 / 3, "act": 1 / 3}


def test_chosen_layers_may_be_containers_and_come_in_order_of_execution() -> None:
    model = nn.Sequential(nn.Sequential(linear(1.0, 0.0), nn.ReLU()), nn.Linear(2, 1))
    x = torch.ones(2, 1)
    assert hs.diagnose_dead_neurons(model, x, ["0", "0.0"]) == {"0.0": 0.5, "0": 0.5}
    assert hs.diagnose_dead_neurons(model, x, "0.1") == {"0.1": 0.5}  # type: ignore[arg-type]
    assert hs.diagnose_dead_neurons(model, x, []) == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_unit_that_is_not_finite_is_alive_and_does_not_decide_about_the_others(bad: float) -> None:
    assert hs.diagnose_dead_neurons(nn.Sequential(linear(bad, 1.0, 0.0, 2.0)), torch.ones(2, 1)) == {"0": 0.25}
    assert hs.diagnose_dead_neurons(nn.Sequential(linear(bad)), torch.ones(2, 1)) == {"0": 0.0}


def test_wrong_use_names_what_would_have_been_right() -> None:
    model = nn.Sequential()
    model.add_module("encoder", nn.Sequential(linear(1.0), nn.ReLU()))
    x = torch.ones(1, 1)
    with pytest.raises(hs.SelectionError, match=r"^no layer is called 'encodr\.0': did you mean 'encoder\.0'( or '[^']+')*\?$"):
        hs.diagnose_dead_neurons(model, x, ["encodr.0"])
    with pytest.raises(
        hs.UsageError, match=r"^dead_threshold=1 is no share of the layer's mean: give a number from 0 up to, not including, 1$"
    ):
        hs.diagnose_dead_neurons(model, x, dead_threshold=1)
    with pytest.raises(hs.UsageError, match=r"dead_threshold=-0\.1 is no share"):
        hs.diagnose_dead_neurons(model, x, dead_threshold=-0.1)
    with pytest.raises(hs.AttachError, match=r"^model is a function, not a torch\.nn\.Module$"):
        hs.diagnose_dead_neurons(linear, x)  # type: ignore[arg-type]
    assert hooks_on(model) == 0
