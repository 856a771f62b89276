"""Every recorded row of whole trainings equals what plain torch finds in an unwatched twin."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import hookscope as hs

from ._oracle import Forward, Twin, check, compare, recorded, stats_of


def chain(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
    """The forward of a Sequential, every module seen."""
    for name, module in model.named_children():
        x = twin.see(f"{name}:output", module(x))
    return twin.see("(root):output", x)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU, nn.GELU, nn.Identity])
def test_a_multilayer_perceptron(activation: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(5, 7), activation(), nn.Linear(7, 6), nn.LayerNorm(6), nn.Linear(6, 3))
    compare(model, chain, torch.randn(4, 5))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_convolutional_net_in_either_memory_format(layout: torch.memory_format) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2), nn.Flatten(), nn.Linear(36, 2))
    compare(model.to(memory_format=layout), chain, torch.randn(4, 3, 9, 9).to(memory_format=layout))


class Reused(nn.Module):
    """One layer three times in one forward, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.layer(x).tanh()
        return self.head(x)


def test_a_module_called_three_times_has_three_rows() -> None:
    def by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = twin.see("layer:output", model.layer(x)).tanh()
        return twin.see("(root):output", twin.see("head:output", model.head(x)))

    compare(Reused(), by_hand, torch.randn(3, 4))


def wide(dtype: torch.dtype) -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 33, dtype=dtype), nn.Tanh(), nn.Linear(33, 2, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_in_other_floats(dtype: torch.dtype) -> None:
    compare(wide(dtype), chain, torch.randn(8, 16, dtype=dtype))


def test_a_complex_model_is_read_by_absolute_values() -> None:
    compare(wide(torch.complex64), chain, torch.randn(4, 16, dtype=torch.complex64))


def test_a_sparse_gradient_of_an_embedding_counts_every_element_and_sums_duplicates_first() -> None:
    model = nn.Sequential(nn.Embedding(50, 3, sparse=True), nn.Linear(3, 2))
    compare(model, chain, torch.tensor([[3, 3, 7], [49, 3, 0]]))


class Frozen(nn.Module):
    """A frozen layer below, one in the middle, and a detached branch beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.trained, self.middle = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.branch = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.middle.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        trunk = self.middle(self.trained(self.frozen(x)).tanh())
        return trunk + self.branch(trunk).detach()


def frozen_by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
    trained = twin.see("trained:output", model.trained(twin.see("frozen:output", model.frozen(x))))
    trunk = twin.see("middle:output", model.middle(trained.tanh()))
    return twin.see("(root):output", trunk + twin.see("branch:output", model.branch(trunk)).detach())


def test_frozen_and_detached_parts_have_outputs_and_no_gradients() -> None:
    run = compare(Frozen(), frozen_by_hand, torch.randn(3, 4))
    names = {name for _, _, name, _ in recorded(run, kinds=("output_grad", "param_grad", "param", "update"))}
    assert "frozen:output_grad" not in names
    assert "branch:output_grad" not in names
    assert "middle:output_grad" in names
    assert "middle.weight:param_grad" not in names
    assert {"frozen.weight:param", "branch.weight:param"} <= names
    assert "frozen.weight:update" not in names


class Segments(nn.Module):
    """One block in three checkpointed segments: once, twice within one segment, and once without a checkpoint."""

    def __init__(self, how: bool | None) -> None:
        super().__init__()
        self.how = how
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.segment(self.block, self.stem(x))
        x = self.segment(lambda x: self.block(self.block(x)), x)
        return self.head(self.segment(self.block, self.block(x)))

    def segment(self, run: Any, x: torch.Tensor) -> torch.Tensor:
        return run(x) if self.how is None else checkpoint(run, x, use_reentrant=self.how)


def segments_by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
    x = twin.see("stem:output", model.stem(x))
    for _ in range(5):
        x = twin.see("block.0:output", model.block[0](x))
        x = twin.see("block:output", twin.see("block.1:output", model.block[1](x)))
    return twin.see("(root):output", twin.see("head:output", model.head(x)))


@pytest.mark.parametrize("how", [None, True, False], ids=["plain", "reentrant", "non-reentrant"])
def test_checkpointed_segments_are_counted_once_and_have_each_gradient_once(how: bool | None) -> None:
    compare(Segments(how), segments_by_hand, torch.randn(3, 4))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of the inner one, in the first run of the outer one
@pytest.mark.parametrize(("outer", "inner"), [(True, True), (False, False), (True, False), (False, True)])
def test_a_checkpoint_within_a_checkpoint_has_each_gradient_once(outer: bool, inner: bool) -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(
                lambda y: checkpoint(lambda z: self.b(self.b(z)), self.a(y), use_reentrant=inner), self.c(x), use_reentrant=outer
            )

    def by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
        x = twin.see("a:output", model.a(twin.see("c:output", model.c(x))))
        x = twin.see("b:output", model.b(twin.see("b:output", model.b(x))))
        return twin.see("(root):output", x)

    compare(Nested(), by_hand, torch.randn(3, 4))


def test_a_whole_model_under_a_reentrant_checkpoint_has_outputs_and_gradients() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x.requires_grad_(), use_reentrant=True)

    def by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
        x = twin.see("inner.0:output", model.inner[0](x))
        x = twin.see("inner:output", twin.see("inner.1:output", model.inner[1](x)))
        return twin.see("(root):output", x)

    compare(Wrapper(), by_hand, torch.randn(3, 4))


def autocast(by_hand: Forward) -> Forward:
    def forward(model: Any, twin: Twin, x: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return by_hand(model, twin, x)

    return forward


def test_autocast_is_read_in_the_dtype_that_it_computes_in() -> None:
    class Autocast(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    model = Autocast(nn.Linear(5, 7), nn.LayerNorm(7), nn.ReLU(), nn.Linear(7, 3))
    run = compare(model, autocast(chain), torch.randn(4, 5))
    assert {site.name: site.dtype for site in run.sites}["0:output"] == "bfloat16"


def test_what_is_clipped_is_what_the_optimizer_used() -> None:
    model = wide(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer) as watched:
        (model(torch.randn(8, 16)) * 100).square().mean().backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.5) > 10
        optimizer.step()
    gradients = {(0, -1, f"{n}:param_grad", 0): stats_of(p.grad) for n, p in model.named_parameters() if p.grad is not None}
    check(recorded(watched.run, kinds=("param_grad",)), gradients)
    assert sum(s.sumsq for s in gradients.values()) == pytest.approx(0.25, rel=1e-5)


def test_an_inf_that_clipping_hides_is_there_as_it_was_before() -> None:
    model = wide(torch.float32)
    first = next(model.parameters())
    first.register_hook(lambda grad: grad * torch.inf)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, on_finding="ignore") as watched:
        model(torch.randn(8, 16)).square().mean().backward()
        expected = stats_of(first.grad)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
    name = next(name for name, _ in model.named_parameters())
    assert watched.run[f"{name}:param_grad", "inf"].values.tolist() == [0.0]
    assert watched.run[f"{name}:param_grad/preclip", "inf"].values.tolist() == [expected.inf]
    assert expected.inf > 0
    assert [finding.rule for finding in watched.findings] == ["nonfinite-backward"]


def test_a_sampled_update_is_that_of_a_few_thousand_elements_and_close_to_the_whole() -> None:
    model = nn.Linear(300, 400)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().double().clone()
    with hs.watch(model, optimizer) as watched:
        functional.mse_loss(model(torch.randn(64, 300)), torch.randn(64, 400)).backward()
        optimizer.step()
    whole = stats_of(model.weight.detach().double() - before)
    rows = recorded(watched.run, kinds=("update",))
    sampled = rows[0, -1, "weight:update", 0]
    assert 4096 <= sampled.count < 2 * 4096
    assert rows[0, -1, "bias:update", 0].count == 400
    site = watched.run.sites.one("weight:update")[0]
    assert (site.sampled, site.numel) == (sampled.count, 120_000)
    # Of a root mean square over n elements of a Gaussian the standard error is 1 / sqrt(2 n), here 1.1 %.
    assert watched.run["weight:update", "rms"].values[0] == pytest.approx((whole.sumsq / whole.count) ** 0.5, rel=0.06)
    assert watched.run["weight:update", "count"].values[0] == 120_000
