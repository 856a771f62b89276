"""Folding: like siblings become one row, and nothing that matters is hidden by it."""

from dataclasses import replace

from hookscope._report import ModuleView
from hookscope._report._fold import Row, rows


def stack(*rms: float | None) -> ModuleView:
    return ModuleView("(root)", "(root)", children=tuple(ModuleView(str(i), str(i), "Block", output_rms=x) for i, x in enumerate(rms)))


def names(shown: tuple[Row, ...]) -> list[str]:
    return [row.module.name for row in shown]


def test_four_or_more_like_siblings_become_one_row_with_their_median() -> None:
    shown = rows(stack(1.0, 2.0, 3.0, 4.0, 9.0))
    assert names(shown) == ["(root)", "0–4"]
    assert (shown[1].module.size, shown[1].module.output_rms, shown[1].about) == (5, 3.0, True)


def test_three_siblings_are_not_worth_folding() -> None:
    assert names(rows(stack(1.0, 1.0, 1.0))) == ["(root)", "0", "1", "2"]


def test_growth_through_depth_stays_visible_since_a_fold_spans_a_factor_ten_at_most() -> None:
    shown = rows(stack(*(2.0**i for i in range(12))))
    assert names(shown) == ["(root)", "0–3", "4–7", "8–11"]  # 2**3 is within ten, 2**4 is not


def test_a_module_with_a_finding_is_never_folded() -> None:
    root = stack(*[1.0] * 10)
    marked = replace(root.children[5], marks=(1,), worst="error")
    root = replace(root, children=(*root.children[:5], marked, *root.children[6:]))
    assert names(rows(root)) == ["(root)", "0–4", "5", "6–9"]


def test_a_module_that_is_not_finite_or_never_ran_is_not_folded_with_those_that_are() -> None:
    assert names(rows(stack(1.0, 1.0, 1.0, 1.0, float("nan"), 1.0, 1.0, 1.0, 1.0))) == ["(root)", "0–3", "4", "5–8"]
    root = stack(*[1.0] * 5)
    root = replace(root, children=(*root.children[:4], replace(root.children[4], fired=False)))
    assert names(rows(root)) == ["(root)", "0–3", "4"]


def test_siblings_with_names_are_not_folded() -> None:
    root = stack(*[1.0] * 5)
    named = tuple(replace(child, name=f"layer{child.name}") for child in root.children)
    assert len(rows(replace(root, children=named))) == 6


def test_two_thousand_unlike_siblings_are_shortened_but_a_finding_among_them_is_kept() -> None:
    children = [ModuleView(f"m{i}", f"m{i}", f"Class{i}") for i in range(2000)]
    children[1000] = replace(children[1000], marks=(1,), worst="error")
    shown = rows(ModuleView("(root)", "(root)", children=tuple(children)))
    assert len(shown) < 60
    assert "m1000" in names(shown)
    assert [name for name in names(shown) if name.startswith("…")] == ["… 992 more", "… 991 more"]  # 2000 - 8 - 8 - 1


def test_a_depth_cuts_the_tree_and_says_how_much_lies_below_but_keeps_findings() -> None:
    deep = ModuleView("x", "a.x", children=(ModuleView("y", "a.x.y"), ModuleView("z", "a.x.z", marks=(1,), worst="error")))
    root = ModuleView(
        "(root)", "(root)", children=(ModuleView("a", "a", children=(deep,)), ModuleView("b", "b", children=(ModuleView("c", "b.c"),)))
    )
    shown = rows(root, depth=1)
    assert [(row.module.path, row.hidden) for row in shown] == [("(root)", 0), ("a", 0), ("a.x", 1), ("a.x.z", 0), ("b", 1)]
