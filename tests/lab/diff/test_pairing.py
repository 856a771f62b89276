"""Maps as users write them, and what is proposed where they write none."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._lab._diff._pairing import given

A = ("", "h", "h.0", "h.0.attn", "h.0.attn.c_attn", "h.1", "h.1.attn", "h.1.attn.c_attn", "ln_f")
B = (
    *("", "layers", "layers.0", "layers.0.attn", "layers.0.attn.q", "layers.0.attn.k"),
    *("layers.1", "layers.1.attn", "layers.1.attn.q", "layers.1.attn.k", "final"),
)


def as_dict(wanted: Any) -> dict[Any, Any]:
    return {(p.a if len(p.a) > 1 else p.a[0]): (p.b if len(p.b) > 1 else p.b[0]) for p in given(wanted, A, B).found.values()}


def test_a_path_stands_for_all_below_it() -> None:
    assert as_dict({"h": "layers"}) == {
        "h": "layers", "h.0": "layers.0", "h.0.attn": "layers.0.attn", "h.1": "layers.1", "h.1.attn": "layers.1.attn",
    }  # fmt: skip


def test_a_star_is_one_part_of_a_path_the_same_on_both_sides() -> None:
    assert as_dict({"h.*.attn": "layers.*.attn"}) == {"h.0.attn": "layers.0.attn", "h.1.attn": "layers.1.attn"}


def test_a_tuple_is_several_modules_that_do_the_work_of_one() -> None:
    fused = {"h.*.attn.c_attn": ("layers.*.attn.q", "layers.*.attn.k")}
    assert as_dict(fused) == {f"h.{i}.attn.c_attn": (f"layers.{i}.attn.q", f"layers.{i}.attn.k") for i in range(2)}
    [pair, _] = given({("layers.*.attn.q", "layers.*.attn.k"): "h.*.attn.c_attn"}, B, A).found.values()
    assert (pair.a, pair.b) == (("layers.0.attn.q", "layers.0.attn.k"), ("h.0.attn.c_attn",))


def test_none_leaves_a_module_out_and_the_root_has_its_name() -> None:
    assert given({"h.0": None}, A, B).skipped == {"h.0", "h.0.attn", "h.0.attn.c_attn"}
    assert as_dict({"(root)": "(root)", "ln_f": "final"}) == {"": "", "ln_f": "final"}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"ln": "final"}, r"map names 'ln', which is no module of model_a: did you mean 'ln_f'"),
        ({"ln_f": "finale"}, r"map names 'finale', which is no module of model_b: did you mean 'final'"),
        ({"ln_f": ("final", "fin")}, r"map names 'fin', which is no module of model_b: did you mean 'final'"),
        ({"ln_f": 3}, r"map holds 3: pass a module's path"),
    ],
)
def test_a_wrong_map_is_told_with_near_misses(wanted: Any, said: str) -> None:
    with pytest.raises(hs.UsageError, match=said):
        given(wanted, A, B)


class Block(nn.Module):
    def __init__(self, names: tuple[str, str, str]) -> None:
        super().__init__()
        self.names = list(names)
        for name, module in zip(names, (nn.LayerNorm(4), nn.Linear(4, 4), nn.ReLU()), strict=True):
            self.add_module(name, module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            x = getattr(self, name)(x)
        return x


def test_blocks_of_equal_norms_are_told_apart_by_what_else_is_in_them() -> None:
    torch.manual_seed(0)
    one = nn.Sequential(*(Block(("norm", "fc", "act")) for _ in range(4)))
    other = nn.Sequential(*(Block(("a", "b", "c")) for _ in range(4)))
    for mine, theirs in zip(one, other, strict=True):
        theirs.b.load_state_dict(mine.fc.state_dict())  # type: ignore[union-attr,operator]
    shuffled = nn.Sequential(nn.Identity(), *other)
    found = hs.diff(one, shuffled, torch.randn(3, 4))
    assert found, found.verdict
    assert all(found.map[f"{i}.{a}"] == f"{i + 1}.{b}" for i in range(4) for a, b in (("norm", "a"), ("fc", "b"), ("act", "c")))


def test_weights_that_moved_are_followed_and_what_the_map_says_goes_first() -> None:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    other = nn.Sequential(nn.Identity(), *copy.deepcopy(one))
    x = torch.randn(3, 4)
    assert dict(hs.diff(one, other, x).map) == {"(root)": "(root)", "0": "1", "1": "2"}
    assert hs.diff(one, other, x, map={"0": "2"}).map["0"] == "2"
    assert "0" not in hs.diff(one, other, x, map={"0": None}).map


def test_models_that_share_nothing_are_compared_as_wholes() -> None:
    found = hs.diff(nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 4)), torch.randn(3, 4))
    assert not found
    assert found.sites[-1].status == "added"


def test_norms_that_rounding_makes_alike_keep_their_names() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.LayerNorm(64) for _ in range(12)))
    with torch.no_grad():
        for layer in model:
            layer.weight.add_(torch.randn(64) * 0.05)  # type: ignore[union-attr,operator]
    found = hs.diff(model, copy.deepcopy(model).bfloat16(), torch.randn(3, 64), batch_b=torch.randn(3, 64).bfloat16())
    assert all(one == other for one, other in found.map.items())
    renamed = nn.Sequential(nn.Sequential(*copy.deepcopy(model).bfloat16()))
    found = hs.diff(model, renamed, torch.randn(3, 64), batch_b=torch.randn(3, 64).bfloat16())
    assert all(other == f"0.{one}" for one, other in found.map.items() if one != "(root)")
