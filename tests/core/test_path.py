"""Path patterns: globs agree with a slow matcher, indices with Python's own slices."""

import re
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookscope._core._path import Index, Span, expression, is_exact, subject, write


def matches(pattern: str, name: str) -> bool:
    parts = tuple(pattern.split(".")) if pattern else ()
    return re.compile(expression(parts, {})).fullmatch(subject(name)) is not None


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        ("fc", ["fc"], ["", "fc1", "xfc", "fc.weight", "x.fc"]),
        ("*", ["fc", "0"], ["", "fc.weight"]),
        ("encoder.*", ["encoder.0", "encoder.norm"], ["encoder", "encoder.0.attn", "decoder.0"]),
        ("encoder.*.mlp", ["encoder.0.mlp"], ["encoder.mlp", "encoder.0.0.mlp"]),
        ("**", ["", "fc", "a.b.c"], []),
        ("**.mlp", ["mlp", "a.mlp", "a.b.mlp"], ["", "a.mlp.b", "xmlp"]),
        ("encoder.**", ["encoder", "encoder.0", "encoder.0.mlp"], ["", "encoder2", "x.encoder"]),
        ("a.**.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "z", "a.bz", "az"]),
        ("**.**", ["", "a", "a.b"], []),
        ("h?", ["h1", "hx"], ["h", "h12", "h."]),
        ("h*", ["h", "h1", "h12"], ["h.1", "xh"]),
        ("*norm*", ["norm", "layernorm1"], ["a.norm"]),
        ("enc**", ["enc", "encoder", "encoder.0.mlp"], ["xenc", "e"]),
        ("**mlp", ["mlp", "a.b.xmlp"], ["mlp.a"]),
        ("a+b", ["a+b"], ["aab", "ab"]),
        ("a(1)", ["a(1)"], ["a1"]),
    ],
)
def test_globs_match_what_the_table_says(pattern: str, found: list[str], missed: list[str]) -> None:
    assert [name for name in found if not matches(pattern, name)] == []
    assert [name for name in missed if matches(pattern, name)] == []


def slow_parts(pattern: list[str], name: list[str]) -> bool:
    """Whole parts, by trying everything."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(slow_parts(pattern[1:], name[i:]) for i in range(len(name) + 1))
    return bool(name) and slow_part(pattern[0], name[0]) and slow_parts(pattern[1:], name[1:])


def slow_part(pattern: str, part: str) -> bool:
    """One part, character by character."""
    if not pattern:
        return not part
    if pattern[0] == "*":
        return any(slow_part(pattern[1:], part[i:]) for i in range(len(part) + 1))
    return bool(part) and pattern[0] in ("?", part[0]) and slow_part(pattern[1:], part[1:])


WORD = st.text("ab1", min_size=1, max_size=3)
GLOB = st.one_of(st.just("**"), st.just("*"), st.text("ab1*?", min_size=1, max_size=4).filter(lambda part: "**" not in part))
NAMES = st.lists(WORD, max_size=4)


@given(st.lists(GLOB, max_size=4), NAMES)
def test_globs_agree_with_a_matcher_that_tries_everything(pattern: list[str], name: list[str]) -> None:
    assert matches(".".join(pattern), ".".join(name)) == slow_parts(pattern, name)


@given(NAMES, st.data())
def test_a_name_with_parts_replaced_by_wildcards_is_still_found(name: list[str], data: st.DataObject) -> None:
    pattern = list(chain.from_iterable(data.draw(st.sampled_from([[p], ["*"], ["?" * len(p)], ["**"], ["**", p]])) for p in name))
    assert matches(".".join(pattern), ".".join(name))


@given(st.integers(1, 12), *[st.none() | st.integers(-14, 14)] * 2, st.none() | st.integers(-4, 4).filter(bool))
def test_a_range_over_gapless_children_is_the_slice_of_a_list(n: int, start: int | None, stop: int | None, step: int | None) -> None:
    assert Index((Span(start, stop, step),)).chosen(range(n)) == set(list(range(n))[start:stop:step])


@given(st.sets(st.integers(0, 9), min_size=1), st.integers(-10, 12))
def test_a_number_is_a_name_and_counts_from_the_largest_when_negative(existing: set[int], number: int) -> None:
    named = number if number >= 0 else max(existing) + 1 + number
    assert Index((number,)).chosen(existing) == ({named} if named in existing else set())


def test_a_range_over_children_with_gaps_goes_by_their_names() -> None:
    assert Index((Span(3, 6),)).chosen({0, 3, 5, 7}) == {3, 5}
    assert Index((Span(-2, None),)).chosen({0, 3, 5, 7}) == {7}
    assert Index((0, 5, Span(6, None))).chosen({0, 3, 5, 7}) == {0, 5, 7}
    assert Index((0,)).chosen(()) == set()


def test_each_parent_counts_its_own_children() -> None:
    pattern = re.compile(expression(("*", Index((-1,)), "fc"), {"a": {0, 1}, "b": {0, 1, 2}}))
    assert [n for n in ["a.0.fc", "a.1.fc", "b.1.fc", "b.2.fc", "a.2.fc"] if pattern.fullmatch(subject(n))] == ["a.1.fc", "b.2.fc"]


def test_indices_of_the_root_and_of_one_another_are_resolved() -> None:
    indices = {"": {0, 1}, "0": {0, 1}, "1": {0, 1, 2}}
    pattern = re.compile(expression((Index((Span(),)), Index((-1,))), indices))
    assert [n for n in ["0", "0.0", "0.1", "1.1", "1.2"] if pattern.fullmatch(subject(n))] == ["0.1", "1.2"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), "(root)"),
        (("a", "b"), "a.b"),
        ((Index((0,)), "b"), "[0].b"),
        (("h", Index((Span(3, 6), -1)), "mlp"), "h[3:6,-1].mlp"),
        (("h", Index((Span(None, None, 2),))), "h[::2]"),
        (("h", Index((Span(-2),))), "h[-2:]"),
    ],
)
def test_a_path_is_written_as_a_user_writes_it(path: tuple[str | Index, ...], text: str) -> None:
    assert write(path) == text


def test_only_a_path_without_wildcards_and_indices_is_exact() -> None:
    assert is_exact(("a", "b"))
    assert not any(map(is_exact, [("a*",), ("a", "**"), ("?",), ("a", Index((0,)))]))
