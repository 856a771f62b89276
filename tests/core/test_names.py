"""Names without wrapper parts, and the names that come near."""

import pytest

from hookscope._core._names import near, strip_wrappers


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        ("", ""),
        ("encoder.0", "encoder.0"),
        ("_orig_mod", ""),
        ("_orig_mod.encoder.0.weight", "encoder.0.weight"),
        ("encoder._orig_mod.0._checkpoint_wrapped_module.attn", "encoder.0.attn"),
        ("_fsdp_wrapped_module.encoder._fsdp_wrapped_module.0", "encoder.0"),
        ("module.encoder", "module.encoder"),
        ("encoder.my_orig_mod", "encoder.my_orig_mod"),
    ],
)
def test_wrapper_parts_are_removed_anywhere_and_only_as_whole_parts(path: str, clean: str) -> None:
    assert strip_wrappers(path) == clean


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        ("module", ""),
        ("module.fc", "fc"),
        ("module._orig_mod.fc", "fc"),
        ("_orig_mod.module.fc", "fc"),
        ("module.module.fc", "module.fc"),
        ("fc.module", "fc.module"),
    ],
)
def test_one_leading_module_is_removed_when_the_caller_knows_the_wrapper(path: str, clean: str) -> None:
    assert strip_wrappers(path, leading_module=True) == clean


@pytest.mark.parametrize(
    ("name", "candidates", "found"),
    [
        ("encodr.0", ["head", "encoder.0"], ["encoder.0"]),
        ("layers.3", ["x", "encoder.layers.3"], ["encoder.layers.3"]),
        ("model.encoder.layers.3", ["encoder.layers.3", "q"], ["encoder.layers.3"]),
        ("FC", ["fc", "zz"], ["fc"]),
        ("qqqq", ["fc", "head"], []),
        ("fc", [], []),
        ("fc", ["fc"], []),
        ("fc", ["", "fc1"], ["fc1"]),
    ],
)
def test_near_finds_misspelt_shortened_and_lengthened_names(name: str, candidates: list[str], found: list[str]) -> None:
    assert near(name, candidates) == found


def test_near_puts_a_shared_ending_first_and_names_each_candidate_once() -> None:
    found = near("attn.q", ["attn.p", "block.attn.q", "attn.p"])
    assert found == ["block.attn.q", "attn.p"]


def test_near_names_at_most_three_of_each_sort() -> None:
    assert len(near("x.y", [f"{i}.x.y" for i in range(20)])) <= 6
    assert len(near("layer0", [f"layer{i}" for i in range(1, 20)])) == 3
