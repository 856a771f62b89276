"""CKA against the formulas over all samples, and against what is known of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import hookscope as hs


def exact(x: np.ndarray, y: np.ndarray) -> float:
    """Kornblith et al., 2019, over all samples at once."""
    x, y = x - x.mean(0), y - y.mean(0)
    return float(np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def hsic1(x: np.ndarray, y: np.ndarray) -> float:
    """Song et al., 2012, as a sum over all quadruples of different samples: slow, and not the formula of the code."""
    a, b = x @ x.T, y @ y.T
    n, total, count = len(a), 0.0, 0
    for i in range(n):
        for j in range(n):
            for q in range(n):
                for r in range(n):
                    if len({i, j, q, r}) == 4:
                        total += a[i, j] * (b[i, j] + b[q, r] - 2 * b[i, q])
                        count += 1
    return total / count


class Pair(nn.Module):
    """Two layers side by side."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(5, 7), nn.Sequential(nn.Linear(5, 6), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.a(x), self.b(x)], 1)


def test_batches_are_averaged_before_the_ratio_is_taken() -> None:
    """Two batches of seven samples, each HSIC over all quadruples."""
    model, batches = Pair().double(), [torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    found = hs.cka(model, batches, ["a", "b"])
    parts = [(model.a(x).detach().numpy(), model.b(x).detach().numpy()) for x in batches]
    cross, aa, bb = (sum(hsic1(p[i], p[j]) for p in parts) for i, j in ((0, 1), (0, 0), (1, 1)))
    assert found["a", "b"] == pytest.approx(cross / np.sqrt(aa * bb), rel=1e-9)
    assert found["a", "b"] == found["b", "a"]


def test_over_one_large_batch_it_nears_the_formula_over_all_samples() -> None:
    model, x = Pair(), torch.randn(3000, 5, generator=torch.Generator().manual_seed(1))
    found = hs.cka(model, x, ["a", "b"])
    with torch.no_grad():
        assert found["a", "b"] == pytest.approx(exact(model.a(x).numpy(), model.b(x).numpy()), abs=2e-3)


@pytest.mark.parametrize("size", [16, 50])
def test_a_layer_is_like_itself_and_like_its_rotations_scaled_and_shifted(size: int) -> None:
    model, other = nn.Sequential(nn.Linear(5, 8)).double(), nn.Sequential(nn.Linear(5, 8)).double()
    rotation = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    with torch.no_grad():
        other[0].weight.copy_(3 * rotation @ model[0].weight)
        other[0].bias.copy_(torch.ones(8))
    data = list(torch.randn(100, 5, dtype=torch.float64).split(size))
    assert hs.cka(model, data, "0")["0", "0"] == pytest.approx(1, rel=1e-12)
    assert hs.cka(model, data, "0", other=other)["0", "0"] == pytest.approx(1, rel=1e-9)


def test_unrelated_layers_are_about_0_whatever_the_size_of_the_batch() -> None:
    """The biased estimate would be near 1 for batches of 8 and 32 features."""

    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.randn(len(x), 32)

    torch.manual_seed(0)
    model = nn.ModuleDict({"a": Noise(), "b": Noise()})
    model.forward = lambda x: (model["a"](x), model["b"](x))  # type: ignore[method-assign]
    assert abs(hs.cka(model, [torch.zeros(8, 1)] * 300, ["a", "b"])["a", "b"]) < 0.05


def test_two_models_share_one_pass_so_a_loader_that_shuffles_does_no_harm() -> None:
    model, data = Pair(), torch.utils.data.TensorDataset(torch.randn(64, 5))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    found = hs.cka(model, loader, other=Pair())
    assert found.rows == found.columns == ("a", "b.0", "b.1", "b", "(root)")
    assert np.diag(found.values) == pytest.approx([1] * 5)
    assert found.batches == 4
    assert sum(len(m._forward_hooks) for m in model.modules()) == 0


def test_convolutions_and_padded_sequences_are_compared_by_sample() -> None:
    conv = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten())
    assert hs.cka(conv, torch.randn(10, 1, 6, 6), "*")["0", "1"] == pytest.approx(1)

    class Taker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(9, 4)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.token(input_ids)

    ids, mask = torch.randint(1, 9, (8, 5)), torch.ones(8, 5).long()
    mask[:, 3:] = 0
    padded = ids.clone()
    padded[:, 3:] = torch.randint(1, 9, (8, 2))  # what stands in the padding must not matter
    one, two = Taker(), Taker()
    found = [hs.cka(one, {"input_ids": each, "attention_mask": mask}, "*", other=two)["token", "token"] for each in (ids, padded)]
    assert found[0] == found[1] < 1


def test_bad_input_is_told() -> None:
    model = Pair()
    with pytest.raises(hs.UsageError, match="no batch had 4 samples"):
        hs.cka(model, [torch.randn(3, 5)])
    found = hs.cka(model, [torch.randn(8, 5), torch.randn(3, 5)], "a")
    assert (found.batches, found.skipped) == (1, 1)
    with pytest.raises(hs.SelectionError, match="did you mean"):
        hs.cka(model, torch.randn(8, 5), "aa")
    with pytest.raises(hs.SelectionError, match="no layer 'c' was compared"):
        found["a", "c"]
    with pytest.raises(hs.AttachError, match="model is a int"):
        hs.cka(model, torch.randn(8, 5), other=3)  # type: ignore[arg-type]


def test_a_constant_layer_is_like_nothing() -> None:
    model = Pair()
    nn.init.zeros_(model.a.weight)
    assert np.isnan(hs.cka(model, torch.randn(8, 5), ["a", "b"]).values[0]).all()
