"""The analysis as a thing: merged, saved, compared, shown; and what it finds in sick and healthy models."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hookscope as hs


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.ReLU(), nn.MultiheadAttention(8, 2, batch_first=True))


class Net(nn.Module):
    """Something of everything: bounded, rectified, attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.ReLU())
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        return self.head(self.attention(h, h, h)[0])


MODEL = Net().eval()
DATA = torch.randn(24, 5, 6, generator=torch.Generator().manual_seed(1)) * torch.linspace(0.1, 4, 24)[:, None, None] + 1


def assert_same(one: hs.Analysis, other: hs.Analysis, rel: float = 1e-9) -> None:
    from hookscope._lab._analyze._view import numbers

    assert [layer.name for layer in one] == [layer.name for layer in other]
    for layer in one:
        a, b = numbers(layer), numbers(other[layer.name])
        for key, value in a.items():
            same = value == b[key] if isinstance(value, str) else value == pytest.approx(b[key], rel=rel, abs=1e-13, nan_ok=True)
            assert same, (layer.name, key, value, b[key])
    for name, found in one.attention.items():
        np.testing.assert_allclose(found.entropy, other.attention[name].entropy, rtol=1e-6)
        np.testing.assert_array_equal(found.logit_max, other.attention[name].logit_max)


@settings(max_examples=12)
@given(cuts=st.lists(st.integers(1, 23), min_size=1, max_size=4, unique=True), swap=st.booleans())
def test_any_split_over_batches_and_ranks_gives_the_numbers_of_the_whole(cuts: list[int], swap: bool) -> None:
    """In float64 forwards: those of float32 differ a little with the size of the batch."""
    model, data = Net().eval().double(), DATA.double()
    whole = hs.analyze(model, data)
    parts = [data[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), 24], strict=True)]
    ranks = [hs.analyze(model, part) for part in parts]
    merged = ranks[-1 if swap else 0]
    for rank in ranks[:-1] if swap else ranks[1:]:
        merged = merged.merge(rank)
    assert_same(hs.analyze(model, parts), whole)
    assert_same(merged, whole)
    assert merged.batches == len(parts)


@pytest.mark.parametrize("moments", [True, False])
def test_what_is_saved_is_read_without_a_loss(tmp_path: Path, moments: bool) -> None:
    analysis = hs.analyze(MODEL, [DATA[:12], DATA[12:]])
    analysis.to_json(tmp_path / "a.json", moments=moments)
    json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)  # strict
    loaded = hs.Analysis.load(tmp_path / "a.json")
    assert_same(loaded, analysis, rel=0)
    assert str(loaded) == str(analysis)
    assert (loaded.batches, loaded.blind) == (2, analysis.blind)
    if moments:
        assert_same(loaded.merge(hs.analyze(MODEL, DATA[:5])), analysis.merge(hs.analyze(MODEL, DATA[:5])), rel=0)
    else:
        with pytest.raises(hs.UsageError, match=r"second moment of body\.0 is not in both"):
            loaded.merge(analysis)


@pytest.mark.parametrize(
    ("text", "why"),
    [("{", "not JSON"), ("{}", "write one with analysis.to_json"), ('{"kind": "hookscope analysis", "format": 99}', "update hookscope")],
)
def test_a_file_that_is_no_analysis_says_so(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(hs.UsageError, match=why):
        hs.Analysis.load(tmp_path / "a.json")


def test_a_table_for_pandas_has_a_row_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    analysis = hs.analyze(MODEL, DATA)
    table = analysis.to_pandas()
    assert list(table.index) == [layer.name for layer in analysis]
    assert table.loc["body.2", "effective_rank"] == analysis["body.2"].effective_rank
    without(monkeypatch, "pandas")
    with pytest.raises(hs.UsageError, match="pip install pandas"):
        analysis.to_pandas()


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = builtins.__import__

    def imported(name: str, *args: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == package:
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", imported)


def test_pictures_ask_for_plotly_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "plotly")
    with pytest.raises(hs.UsageError, match=r"pip install 'hookscope\[report\]'"):
        hs.analyze(MODEL, DATA).html(tmp_path / "a.html")
    assert not (tmp_path / "a.html").exists()


def test_the_page_needs_no_network_and_escapes_names(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    model = nn.Sequential()
    model.add_module("<b>", nn.Linear(6, 4))
    text = hs.analyze(model, DATA).html(tmp_path / "a.html").read_text()
    assert "<td>&lt;b&gt;</td>" in text
    assert "eigenvalues of the covariance" in text
    assert 'src="http' not in text


def test_a_comparison_names_the_layers_that_moved_and_the_units_that_died() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    x = torch.randn(200, 4)
    before = hs.analyze(model, x, "*")
    with torch.no_grad():
        model[2].bias += 10 * torch.ones(3)
        model[0].weight[1] = 0
        model[0].bias[1] = -1
    after = hs.analyze(model, x, "*")
    comparison = before.compare(after)
    assert comparison.changes[0].layer == "2"
    assert comparison["0"].died == comparison["1"].died == (1,)
    assert comparison["1"].woke == ()
    moved = (after["2"].stats.mean - before["2"].stats.mean) / np.sqrt(before["2"].stats.m2 / 200)
    assert comparison["2"].shift == pytest.approx(np.sqrt((moved**2).mean()))
    assert "0 → 16.7 %" in str(comparison)
    assert all(change.shift == 0 for change in before.compare(before).changes)
    assert before.compare(hs.analyze(model, x, "0")).only_before == ("1", "2")
    with pytest.raises(hs.UsageError, match="6 units before and 5 after"):
        before.compare(hs.analyze(nn.Sequential(nn.Linear(4, 5)), x, "*"))
    with pytest.raises(hs.UsageError, match="6 units here and 5 there"):
        before.merge(hs.analyze(nn.Sequential(nn.Linear(4, 5)), x, "*"))


def sick(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    with torch.no_grad():
        if kind == "dead-units":
            model[0].bias[:20] -= 50
        elif kind == "saturated":
            model[2].weight *= 200
        elif kind == "float16-overflow":
            model[4].weight *= 1e6
        elif kind == "nonfinite":
            model[4].bias[1] = float("nan")
        elif kind == "constant":
            model[4].weight.zero_()
        elif kind == "massive-activations":
            model[4].weight *= 1e-3
            model[4].bias.copy_(torch.tensor([0.0, 500.0, 0.0, 0.0]))
    return model


@pytest.mark.parametrize(
    ("rule", "module"),
    [
        ("dead-units", "0"),
        ("saturated", "3"),
        ("float16-overflow", "4"),
        ("nonfinite", "4"),
        ("constant", "4"),
        ("massive-activations", "4"),
    ],
)
def test_a_sick_layer_is_found_and_named_first(rule: str, module: str) -> None:
    analysis = hs.analyze(sick(rule), [torch.randn(64, 8) for _ in range(4)], "*")
    first = next(f for f in analysis.findings if f.severity != "info" or f.rule == rule)
    assert (first.rule, first.module) == (rule, module)
    assert rule in str(analysis)
    if rule == "dead-units":
        assert first.message == "20 of 32 units of 0 (read behind 1) never fire in 256 positions"
        assert [f.rule for f in analysis.findings] == ["dead-units"]  # once, not for the activation again


def test_nothing_is_found_in_healthy_models() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    models = [
        (sick("none"), torch.randn(256, 8)),
        (nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.GELU()), torch.randn(16, 3, 12, 12)),
        (nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(8, 12, 32)),
        (nn.LSTM(8, 16, batch_first=True), torch.randn(8, 20, 8)),
        (nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 1), nn.Sigmoid()), torch.randn(128, 8)),
    ]
    for model, x in models:
        assert [f.headline for f in hs.analyze(model, x).findings] == []


def test_outlier_features_are_large_in_a_quarter_of_the_layers_and_six_percent_of_the_positions() -> None:
    """Ten layers of 40 units: dimension 7 reaches 6 in three of them, dimension 9 in two only, dimension 3 in too few positions."""

    class Planted(nn.Module):
        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.zeros_like(x) + 0.1 * self.index
            y[:, 7] = 6.0 if self.index < 3 else 5.9
            y[:, 9] = -8.0 if self.index < 2 else 0.0
            y[:5, 3] = 9.0
            return y

    analysis = hs.analyze(nn.Sequential(*(Planted(i) for i in range(10))), torch.randn(100, 40), "*")
    [finding] = [f for f in analysis.findings if f.rule == "outlier-features"]
    assert finding.evidence["features"] == [7]
