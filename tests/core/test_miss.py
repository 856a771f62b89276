"""A selection that matches nothing says why, clause by clause."""

import re

import pytest
from torch import nn

from hookscope._core._errors import SelectionError, UsageError
from hookscope._core._select import Selectable, select, select_sites
from hookscope._core._site import Kind, Site

LINEAR = ("torch.nn.modules.linear.Linear", "torch.nn.modules.module.Module")
SITES = [
    *[Site(0, f"encoder.{i}", kind, module=f"encoder.{i}", bases=LINEAR) for i in range(3) for kind in ("input", "output")],
    Site(0, "encoder.0.mlp", "output", module="encoder.0.mlp", bases=LINEAR),
    Site(0, "encoder.0.weight", "param_grad", "preclip", module="encoder.0", bases=LINEAR),
    Site(0, "lstm", "output", output_path="[0]", module="lstm", bases=("user.Net", LINEAR[1])),
    Site(0, "lstm", "output", output_path="[1][0]", module="lstm", bases=("user.Net", LINEAR[1])),
    Site(0, "loss", "loss"),
]


def message(selection: Selectable, kinds: list[Kind] | None = None, sites: list[Site] = SITES) -> str:
    with pytest.raises(SelectionError) as caught:
        select_sites(sites, selection, kinds=kinds)
    assert isinstance(caught.value, UsageError)
    return str(caught.value)


@pytest.mark.parametrize(
    ("selection", "text"),
    [
        ("encodr.0", "no site matches 'encodr.0': did you mean 'encoder.0'?"),
        ("encodr.0:output", "no site matches 'encodr.0:output': did you mean 'encoder.0:output'?"),
        ("0.mlp", "no site matches '0.mlp': did you mean 'encoder.0.mlp'?"),
        ("encodr.*", "no site matches 'encodr.*': did you mean 'encoder.*'?"),
        ("encoder.*.mpl:output", "no site matches 'encoder.*.mpl:output': did you mean 'encoder.*.mlp:output'?"),
        ("encodr[1:]", "no site matches 'encodr[1:]': did you mean 'encoder[1:]'?"),
        ("encoder[7]", "no site matches 'encoder[7]': 'encoder' has the children 0 to 2"),
        ("encoder[0,2,7]", "no site matches 'encoder[7]': 'encoder' has the children 0 to 2"),
        ("encoder[5:]", "no site matches 'encoder[5:]': 'encoder' has the children 0 to 2"),
        ("lstm[0]", "no site matches 'lstm[0]': 'lstm' has no children that are named by whole numbers"),
        ("los", "no site matches 'los': did you mean 'loss'?"),
        (
            "zzzz",
            "no site matches 'zzzz': the paths are 'encoder.0', 'encoder.1', 'encoder.2', 'encoder.0.mlp', 'encoder.0.weight' and 2 more",
        ),
        (
            "encoder.1:output_grad",
            "no site matches 'encoder.1:output_grad': there is only 'encoder.1:input', 'encoder.1:output'",
        ),
        (
            "encoder.0.weight:param_grad",
            "no site matches 'encoder.0.weight:param_grad': there is only 'encoder.0.weight:param_grad/preclip'",
        ),
        ("lstm:output[2]", "no site matches 'lstm:output[2]': there is only 'lstm:output[0]', 'lstm:output[1][0]'"),
        ("(root)", "no site matches '(root)': nothing is there itself, but below it there is 'encoder.0:input', 'encoder.0:output',"),
        ("encoder", "no site matches 'encoder': nothing is there itself, but below it there is 'encoder.0:input', 'encoder.0:output',"),
        ("encodr:output", "no site matches 'encodr:output': did you mean 'encoder.2:output'"),
        (["encoder.0", "encodr.1"], "no site matches 'encodr.1': did you mean 'encoder.1'?"),
        (["encoder.*", "~encodr.1"], "no site matches 'encodr.1': did you mean 'encoder.1'?"),
        ("~encodr.1", "no site matches 'encodr.1': did you mean 'encoder.1'?"),
        (select("encoder.*") & "encodr.1", "no site matches 'encodr.1': did you mean 'encoder.1'?"),
        (["encoder.*", ~select(nn.ReLU)], "no site matches torch.nn.modules.activation.ReLU: the modules are of class"),
        (nn.ReLU, "no site matches torch.nn.modules.activation.ReLU: the modules are of class torch.nn.modules.linear.Linear, user.Net"),
        (re.compile("q.q"), "no site matches re.compile('q.q'): it is found in none of the paths 'encoder.0', 'encoder.1',"),
        ("module.encodr.0", "no site matches 'module.encodr.0': did you mean 'encoder.0'?"),
    ],
)
def test_a_miss_names_what_was_meant_or_what_there_is(selection: Selectable, text: str) -> None:
    assert message(selection).startswith(text)


def test_a_miss_for_the_want_of_a_default_kind_names_the_kinds_and_what_is_there() -> None:
    assert message("encoder.1", ["output_grad", "update"]) == (
        "no site of kind output_grad or update matches 'encoder.1': there is only 'encoder.1:input', 'encoder.1:output'"
    )
    assert message(nn.Linear, ["update"]).startswith(
        "no site of kind update matches torch.nn.modules.linear.Linear: there is only 'encoder.0:input',"
    )


def test_a_class_of_nearly_that_name_is_named() -> None:
    class Linear(nn.Module):
        pass

    assert message(Linear).endswith("did you mean torch.nn.modules.linear.Linear?")


def test_a_predicate_that_holds_nowhere_is_named_with_its_place() -> None:
    text = message(lambda site: False)
    assert re.fullmatch(r"no site matches <.*<lambda> at test_miss.py:\d+>: it is true of none of the 11 sites", text)


def test_a_predicate_that_raises_names_the_site() -> None:
    with pytest.raises(SelectionError, match=r"the predicate .* raised AttributeError on site 'encoder.0:input': 'Site' object") as caught:
        select_sites(SITES, lambda site: site.colour)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_no_sites_at_all_is_said() -> None:
    assert message("fc", sites=[]) == "no site matches 'fc': there are no sites"
    assert message(nn.ReLU, sites=[]) == "no site matches torch.nn.modules.activation.ReLU: there are no sites"


def test_sites_that_no_module_owns_have_no_classes() -> None:
    assert message(nn.ReLU, sites=SITES[-1:]).endswith("no site belongs to a module")


def test_everything_excluded_again_is_an_error() -> None:
    assert message(["lstm", "~lstm"]) == (
        "select('lstm', '~lstm') selects nothing: each part matches some site, but no site is in all of them and not excluded"
    )
    assert message(select("lstm") & "loss").startswith("select('lstm') & select('loss') selects nothing")


def test_an_index_that_exists_under_one_of_several_parents_is_no_miss() -> None:
    sites = [Site(0, path, "output") for path in ("a.0", "a.1", "b.0")]
    assert len(select_sites(sites, "*[0,1]")) == 3
    assert message("*[0,9]", sites=sites) == "no site matches '*[9]': '*' has the children 0 to 1"


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (3, "cannot select by 3, a int: pass a path, a compiled regular expression of text, a module class, a function of a site"),
        (None, "cannot select by None, a NoneType: pass a path"),
        ({"a": 1}, "cannot select by {'a': 1}, a dict: pass a path"),
        (re.compile(b"x"), "cannot select by re.compile(b'x'), a Pattern: pass a path"),
        (nn.ReLU(), "cannot select by a ReLU object, which does not know its name: pass its path or its class"),
        ([], "an empty selection selects nothing: pass at least one path, such as '**' for every site"),
        ("~a@1", "cannot exclude 'a@1': a call can be chosen, not excluded; name the calls that are wanted"),
    ],
)
def test_a_part_that_selects_nothing_by_its_nature_is_refused(part: Selectable, text: str) -> None:
    with pytest.raises(SelectionError) as caught:
        select(part)
    assert str(caught.value).startswith(text)


def test_a_selection_of_a_call_cannot_be_complemented() -> None:
    with pytest.raises(SelectionError, match="cannot exclude 'a@1'"):
        ~(select("b") & "a@1")
