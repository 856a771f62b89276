"""Selections over hand-written sites: what each sentence of the language picks."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hookscope._core._errors import SelectionError
from hookscope._core._select import Selectable, select, select_sites
from hookscope._core._site import KINDS, MODULE_KINDS, Kind, Site

from ._net import LINEAR, MODELS, NET, module, names, numbered, parameter


@pytest.mark.parametrize(
    ("selection", "found"),
    [
        ("encoder.1:output", ["encoder.1:output"]),
        ("(root):output", ["(root):output"]),
        (":output", ["(root):output"]),
        ("(root)", ["(root):input", "(root):output", "(root):output_grad", "scale:param", "scale:param_grad", "scale:update"]),
        ("act", ["act:input", "act:output", "act:output_grad"]),
        ("encoder", ["encoder:input", "encoder:output", "encoder:output_grad"]),
        ("encoder.*:output", [f"encoder.{i}:output" for i in range(4)]),
        ("*:output_grad", ["encoder:output_grad", "act:output_grad", "head:output_grad"]),
        ("encoder[1:3]:output", ["encoder.1:output", "encoder.2:output"]),
        ("encoder[-2:]:output", ["encoder.2:output", "encoder.3:output"]),
        ("encoder[-1]:output", ["encoder.3:output"]),
        ("encoder[::2]:output", ["encoder.0:output", "encoder.2:output"]),
        ("encoder[0,3]:output", ["encoder.0:output", "encoder.3:output"]),
        ("encoder[1:3].bias:param", ["encoder.1.bias:param", "encoder.2.bias:param"]),
        ("**[0]:output", ["encoder.0:output"]),
        ("act:input,output", ["act:input", "act:output"]),
        ("**.bias:update", [f"encoder.{i}.bias:update" for i in range(4)]),
        ("encoder.?.bias:param_grad", [f"encoder.{i}.bias:param_grad" for i in range(4)]),
        ("encoder.2.weight", ["encoder.2.weight:param", "encoder.2.weight:param_grad", "encoder.2.weight:update"]),
        ("encoder.1:param", ["encoder.1.weight:param", "encoder.1.bias:param"]),
        ("encoder:update", [f"encoder.{i}.{p}:update" for i in range(4) for p in ("weight", "bias")]),
        ("(root):param", [s.name for s in NET if s.kind == "param"]),
        (":update", [s.name for s in NET if s.kind == "update"]),
        ("scale:param", ["scale:param"]),
        ("lstm", ["lstm:output[0]", "lstm:output[1][0]", "lstm:output[1][1]"]),
        ("lstm:output", ["lstm:output[0]", "lstm:output[1][0]", "lstm:output[1][1]"]),
        ("lstm:output[1]", ["lstm:output[1][0]", "lstm:output[1][1]"]),
        ("lstm:output[1][0]", ["lstm:output[1][0]"]),
        ('out:output["logits"]', ['out:output["logits"]']),
        ("out:output.logits", ['out:output["logits"]']),
        ("out:output.last_hidden_state", ["out:output.last_hidden_state"]),
        ("head.bias:param_grad", ["head.bias:param_grad"]),
        ("head.bias:param_grad/preclip", ["head.bias:param_grad/preclip"]),
        ("head.bias:param_grad/*", ["head.bias:param_grad", "head.bias:param_grad/preclip", "head.bias:param_grad/local"]),
        ("head.weight:param", ["embed.weight:param"]),
        ("head:param", ["embed.weight:param"]),
        ("loss", ["loss"]),
        ("l*", ["lstm:output[0]", "lstm:output[1][0]", "lstm:output[1][1]", "loss", "lr"]),
        ("**:loss,scalar", ["loss", "lr"]),
        ("act@2:output", ["act:output"]),
        ("module._orig_mod.encoder.0:output", ["encoder.0:output"]),
        ("_orig_mod.module.act:output", ["act:output"]),
        ("module:output", ["(root):output"]),
        ("encoder._checkpoint_wrapped_module.1:output", ["encoder.1:output"]),
        (re.compile(r"^encoder\.[01]$"), [f"encoder.{i}:{kind}" for i in (0, 1) for kind in MODULE_KINDS]),
        (re.compile(r"head\.weight"), ["embed.weight:param", "embed.weight:param_grad", "embed.weight:update"]),
        (re.compile(r"^\(root\)$"), ["(root):input", "(root):output", "(root):output_grad"]),
        (nn.ReLU, ["act:input", "act:output", "act:output_grad"]),
        (lambda site: site.path == "lr", ["lr"]),
        (["act:output", "lr"], ["act:output", "lr"]),
        (("lr", "act:output"), ["act:output", "lr"]),
        ({"lr", "act:output"}, ["act:output", "lr"]),
        (["act:output", ["lr", ["loss"]]], ["act:output", "loss", "lr"]),
        (["encoder.*:output", "~encoder[1:]"], ["encoder.0:output"]),
        (["~encoder.0", "encoder[:2]:output"], ["encoder.1:output"]),
        (["encoder.*:output", ["~encoder.0", "~encoder.1"]], ["encoder.2:output", "encoder.3:output"]),
        (["head.bias", "~head.bias:param_grad"], ["head.bias:param_grad/preclip", "head.bias:param_grad/local"]),
    ],
)
def test_each_sentence_of_the_language_picks_what_the_table_says(selection: Selectable, found: list[str]) -> None:
    assert names(selection) == found


def test_two_stars_are_every_site() -> None:
    assert select_sites(NET, "**") == NET


def test_only_exclusions_mean_everything_but_them() -> None:
    assert names(["~**:param,param_grad,param_grad/*,update", "~encoder.**", "~loss"], kinds=["output", "loss"]) == [
        name for name in names("**:output") if not name.startswith("encoder")
    ]
    assert len(select_sites(NET, "~loss")) == len(NET) - 1


def test_a_class_finds_its_subclasses_and_the_parameters_they_own() -> None:
    found = names(nn.Linear)
    assert "encoder.3:output" in found
    assert "encoder.3.weight:param" in found
    assert "act:output" not in found
    assert names(select(nn.Module) & select("act:output")) == ["act:output"]


def test_a_class_is_found_among_the_bases_that_a_real_module_has() -> None:
    class Mine(nn.Linear):
        pass

    bases = tuple(f"{c.__module__}.{c.__qualname__}" for c in Mine.__mro__ if issubclass(c, nn.Module))
    sites = [Site(0, "fc", "output", module="fc", bases=bases)]
    assert names(Mine, sites=sites) == names(nn.Linear, sites=sites) == names(nn.Module, sites=sites) == ["fc:output"]
    with pytest.raises(SelectionError):
        names(nn.ReLU, sites=sites)


def test_default_kinds_hold_where_none_are_written() -> None:
    assert names("head", kinds=["output"]) == ["head:output"]
    assert names("head:input", kinds=["output"]) == ["head:input"]
    assert names(["head", "act:input"], kinds=["output"]) == ["act:input", "head:output"]
    assert names(nn.ReLU, kinds=["output"]) == ["act:output"]
    assert names(re.compile("^act$"), kinds=["input"]) == ["act:input"]
    assert names(lambda site: site.path == "act", kinds=["input"]) == ["act:input"]
    assert names(["encoder.*", "~encoder[1:]"], kinds=["output"]) == ["encoder.0:output"]
    assert names(["act:input", "head:input", "~act"], kinds=["output"]) == ["head:input"]
    assert names("head.bias", kinds=["param_grad"]) == [f"head.bias:param_grad{label}" for label in ("", "/preclip", "/local")]


@pytest.mark.parametrize(
    ("selection", "found"),
    [
        ("G.0:output", ["G.0:output"]),
        ("0:output", ["G.0:output", "D.0:output"]),
        ("G:output", ["G:output"]),
        ("(root):output", ["G:output", "D:output"]),
        ("*.1:output", ["G.1:output", "D.1:output"]),
        ("[-1]:output", ["G.2:output", "D.1:output"]),
        ("D[-1]:output", ["D.1:output"]),
        ("D[0].weight:param", ["D.0.weight:param"]),
        ("D:param", ["D.0.weight:param"]),
        ("G.module.0:output", ["G.0:output"]),
        ("module.0:output", ["G.0:output", "D.0:output"]),
        (re.compile("^G.*:?1$"), ["G.1:input", "G.1:output", "G.1:output_grad"]),
    ],
)
def test_a_path_may_name_its_model(selection: Selectable, found: list[str]) -> None:
    assert names(selection, sites=MODELS) == found


def test_a_child_that_is_called_module_is_not_taken_for_a_wrapper() -> None:
    sites = numbered(*[module(path, LINEAR) for path in ("module", "module.fc", "fc")])
    assert names("module.fc:output", sites=sites) == ["module.fc:output"]
    with pytest.raises(SelectionError):
        names("module.x:output", sites=sites)


def test_a_shared_module_and_a_tied_parameter_answer_to_each_of_their_names() -> None:
    sites = numbered(module("a", LINEAR, model="G", aliases=("b.0",)), parameter("a.weight", model="G", aliases=("b.0.weight",)))
    assert names("b.0", sites=sites) == [site.name for site in sites]
    assert names(re.compile(r"^G\.b\.0"), sites=sites) == [site.name for site in sites]
    for text in ("b.0.weight:param", "G.b[0]:param", "b:param", "G.b.*.weight:param", "G.a:param"):
        assert names(text, sites=sites) == ["G.a.weight:param"]


def test_output_paths_are_passed_over_while_they_are_not_known() -> None:
    sites = [Site(0, "lstm", "output", module="lstm")]
    assert select_sites(sites, "lstm:output[1][0]", leaves=False) == sites
    with pytest.raises(SelectionError):
        select_sites(sites, "lstm:output[1][0]")


def test_a_matcher_answers_for_sites_that_are_found_later() -> None:
    matcher = select("h[-1]:output[1]").among([Site(0, "h.0", "output"), Site(1, "h.7", "output")], leaves=True)
    assert matcher.matches(Site(2, "h.7", "output", output_path="[1][0]"))
    assert not matcher.matches(Site(2, "h.7", "output", output_path="[0]"))
    assert not matcher.matches(Site(2, "h.0", "output", output_path="[1]"))


@pytest.mark.parametrize("site", [*NET, *MODELS], ids=lambda site: site.name)
def test_the_name_of_a_site_selects_it(site: Site) -> None:
    sites = NET if site in NET else MODELS
    assert site in select_sites(sites, site.name)
    assert all(found.path == site.path for found in select_sites(sites, site.name) if site.path and site.kind in MODULE_KINDS)


PARTS = st.text("abc01", min_size=1, max_size=3)


@given(
    st.lists(PARTS, max_size=4), st.sampled_from(KINDS[:6]), st.sampled_from(["", "local"]), st.sampled_from(["", "[0]", '["a b"]', ".y"])
)
def test_the_name_of_any_site_selects_it(path: list[str], kind: Kind, label: str, output_path: str) -> None:
    site = Site(0, ".".join(path), kind, label, output_path, module=".".join(path[:-1]))
    assert select_sites([site], site.name) == [site]
