"""`diff` on torch's own modules: honest pairs, what it leaves alone, wrong use."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hookscope as hs


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(256, 2))


def rows(seed: int = 1) -> torch.Tensor:
    return torch.randn(9, 6, generator=torch.Generator().manual_seed(seed))


class Attending(nn.Module):
    """Attention whose batch comes first, or not."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        out: torch.Tensor = self.norm(x + self.attention(x, x, x)[0])
        return out


class Renamed(nn.Module):
    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__()
        self.first, self.norm, self.act, self.last = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.act(self.norm(self.first(x))))
        return out


def mean_square(model: nn.Module, batch: Any) -> torch.Tensor:
    out: torch.Tensor = model(batch).square().mean()
    return out


def test_a_copy_is_equal_to_the_last_bit_and_so_is_its_backward() -> None:
    model = mlp()
    found = hs.diff(model, copy.deepcopy(model), rows(), loss_fn=mean_square)
    assert found.verdict == "equal to the last bit at all 5 sites and in every gradient"
    assert [row.a for row in found.gradients if row.kind == "output"] == ["3", "(root)", "2", "1", "0"]
    assert all(row.values == "equal" for row in found.parameters)


@pytest.mark.parametrize("frozen", ["a", "b"])
def test_a_gradient_that_one_side_alone_has_is_a_divergence_and_named(frozen: str) -> None:
    a, b = mlp(), mlp()
    dict((a if frozen == "a" else b).named_parameters())["3.bias"].requires_grad_(False)
    found = hs.diff(a, b, rows(), loss_fn=mean_square)
    other = "b" if frozen == "a" else "a"
    assert not found
    assert found.verdict == (
        f"outputs are equal within tolerance; first divergence in the backward: 3.bias has a gradient in {other} and none in {frozen}"
    )
    assert [(row.a, row.lacking) for row in found.gradients if row.diverges] == [("3.bias", frozen)]


def test_a_tied_parameter_has_its_gradient_under_every_name() -> None:
    def tied(*order: str) -> nn.Module:
        torch.manual_seed(0)
        shared = nn.Linear(6, 6)
        model = nn.ModuleDict({name: nn.Linear(6, 6) for name in order})
        for layer in model.values():
            layer.weight, layer.bias = shared.weight, shared.bias
        return model

    def through(model: nn.Module, batch: Any) -> torch.Tensor:
        assert isinstance(model, nn.ModuleDict)
        out: torch.Tensor = model["y"](torch.tanh(model["x"](batch))).square().mean()
        return out

    assert hs.diff(tied("x", "y"), tied("y", "x"), rows(), loss_fn=through)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("length", [7, 3])  # 3 is the batch, too: which axis is which is then not told by the sizes
def test_batch_first_is_equal_to_batch_second(kind: type[nn.RNNBase], length: int) -> None:
    torch.manual_seed(0)
    one, other = kind(4, 6, 2, batch_first=True), kind(4, 6, 2)
    other.load_state_dict(one.state_dict())
    x = torch.randn(3, length, 4)
    found = hs.diff(one, other, x, batch_b=x.transpose(0, 1).contiguous())
    assert found, found.verdict
    assert hs.diff(one, one, x, batch_b=x.flip(1)).agrees is False


def test_attention_with_its_batch_first_is_equal_and_a_wrong_projection_is_named_though_it_is_never_called() -> None:
    torch.manual_seed(0)
    one, other = Attending(batch_first=True), Attending(batch_first=False)
    other.load_state_dict(one.state_dict())
    x = torch.randn(3, 7, 4)
    found = hs.diff(one, other, x, batch_b=x.transpose(0, 1).contiguous())
    assert found, found.verdict
    with torch.no_grad():
        other.attention.out_proj.weight[0, 0] += 1
    found = hs.diff(one, other, x, batch_b=x.transpose(0, 1).contiguous())
    assert found.first is not None
    assert found.first.a == "attention"
    assert found.first.likely[0].startswith("parameter attention.out_proj.weight differs")


def test_channels_last_is_equal_to_contiguous_and_running_statistics_stay_as_they_were() -> None:
    one = cnn()
    other = copy.deepcopy(one).to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 12, 12)
    before = {name: value.clone() for name, value in one.state_dict().items()}
    found = hs.diff(one, other, x, batch_b=x.to(memory_format=torch.channels_last), loss_fn=mean_square)
    assert found, found.verdict
    assert all(torch.equal(value, before[name]) for name, value in one.state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


def test_other_names_are_matched_and_shown() -> None:
    model = mlp()
    found = hs.diff(model, Renamed(copy.deepcopy(model)), rows())
    assert found
    assert dict(found.map) == {"0": "first", "1": "norm", "2": "act", "3": "last", "(root)": "(root)"}


def test_a_data_parallel_wrapper_is_looked_through() -> None:
    model = mlp()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        found = hs.diff(model, DistributedDataParallel(copy.deepcopy(model)), rows(), loss_fn=mean_square)
    finally:
        torch.distributed.destroy_process_group()
    assert found.verdict.startswith("equal to the last bit at all 5 sites")
    assert found.notes == ()


def test_a_compiled_model_is_compared_by_its_own_modules_and_by_what_the_compiler_made() -> None:
    model = mlp()
    found = hs.diff(model, torch.compile(copy.deepcopy(model), backend="eager"), rows())
    assert found, found.verdict
    assert [row.b for row in found] == ["0", "1", "2", "3", "(root)", "model_b, compiled"]
    assert "b is compiled: its inner sites are those of its original modules, run eagerly" in found.notes


def test_a_compiler_that_is_wrong_is_blamed() -> None:
    def wrong(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Any:
        return lambda *args: tuple(part * 1.001 for part in graph(*args))

    model = mlp()
    found = hs.diff(model, torch.compile(copy.deepcopy(model), backend=wrong), rows())
    assert found.first is not None
    assert found.first.b == "model_b, compiled"
    assert found.first.likely == ("the compiler: the same modules, run eagerly, agree",)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importing torch's compiler warns of torch's own
def test_inductor_is_equal_within_tolerance() -> None:
    model = mlp()
    found = hs.diff(model, torch.compile(copy.deepcopy(model)), rows())
    assert found, found.verdict
    assert found.sites[-1].b == "model_b, compiled"


def test_random_numbers_are_the_same_on_both_sides_and_a_mode_that_differs_is_named() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True), 2)
    x, state = torch.randn(2, 5, 16), torch.get_rng_state()
    assert hs.diff(model, copy.deepcopy(model), x).verdict.startswith("equal to the last bit")
    assert torch.equal(torch.get_rng_state(), state)
    found = hs.diff(model, copy.deepcopy(model).eval(), x)
    assert found.first is not None
    assert found.first.a == "layers.0.self_attn"
    assert found.first.likely[0] == "a is in training mode and b in evaluation mode"
    assert model.training


def test_different_inputs_are_not_the_modules_fault() -> None:
    model = mlp()
    found = hs.diff(model, copy.deepcopy(model), rows(), batch_b=rows(2))
    assert not found
    assert found.verdict.startswith("the modules agree, but the two models were given inputs that differ by")


def test_nothing_is_left_on_a_model_that_fails() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("table")

    model, other = mlp(), nn.Sequential(nn.BatchNorm1d(6), Broken())
    heard: list[int] = []
    model[0].register_forward_hook(lambda *_: heard.append(1))
    state = torch.get_rng_state()
    with pytest.raises(hs.UsageError, match=r"model_b, a Sequential, cannot take the batch: KeyError: 'table'"):
        hs.diff(model, other, rows())
    assert all(not m._forward_pre_hooks for m in (*model.modules(), *other.modules()))
    assert [len(m._forward_hooks) for m in model.modules()] == [0, 1, 0, 0, 0]
    assert torch.equal(other[0].running_mean, torch.zeros(6))  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), state)
    assert heard == [1]


def test_wrong_use_is_told() -> None:
    model = mlp()
    with pytest.raises(hs.AttachError, match=r"model_b is a str, not a torch\.nn\.Module"):
        hs.diff(model, "net", rows())  # type: ignore[arg-type]
    with pytest.raises(hs.UsageError, match="map names 'frist', which is no module of model_b: did you mean 'first'"):
        hs.diff(model, Renamed(copy.deepcopy(model)), rows(), map={"0": "frist"})
    with pytest.raises(hs.UsageError, match="map names 'O', which is no module of model_a"):
        hs.diff(model, Renamed(copy.deepcopy(model)), rows(), map={"O": "first"})
    with pytest.raises(hs.UsageError, match="model_a, a Sequential, cannot take the batch: RuntimeError"):
        hs.diff(model, copy.deepcopy(model), torch.ones(2, 5))
    with pytest.raises(hs.UsageError, match="loss_fn returned a float for model_a that has no gradient"):
        hs.diff(model, copy.deepcopy(model), rows(), loss_fn=lambda model, batch: 1.0)  # type: ignore[arg-type,return-value]
