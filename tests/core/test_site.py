"""Sites are named as the user's own model names them."""

import dataclasses
import typing

import pytest

from hookscope._core._site import KINDS, MODULE_KINDS, PARAM_KINDS, Kind, Site


@pytest.mark.parametrize(
    ("site", "name"),
    [
        (Site(0, "encoder.3", "output"), "encoder.3:output"),
        (Site(0, "encoder.3", "output", output_path="[1][0]"), "encoder.3:output[1][0]"),
        (Site(0, "", "output"), "(root):output"),
        (Site(0, "", "output", model="G"), "G:output"),
        (Site(0, "0", "input", model="G"), "G.0:input"),
        (Site(0, "fc.weight", "param_grad", label="preclip"), "fc.weight:param_grad/preclip"),
        (Site(0, "x", "output", label="micro", output_path='["logits"]'), 'x:output/micro["logits"]'),
        (Site(0, "loss", "loss"), "loss"),
        (Site(0, "lr", "scalar"), "lr"),
        (Site(0, "loss", "loss", model="D"), "D.loss"),
    ],
)
def test_a_site_is_written_by_its_name(site: Site, name: str) -> None:
    assert site.name == name


@pytest.mark.parametrize(
    ("site", "path", "module"),
    [
        (Site(0, "fc.weight", "param", module="fc"), "fc.weight", "fc"),
        (Site(0, "scale", "param"), "scale", "(root)"),
        (Site(0, "scale", "param", model="G"), "G.scale", "G"),
        (Site(0, "fc.weight", "param", module="fc", model="G"), "G.fc.weight", "G.fc"),
    ],
)
def test_full_paths_name_the_model_and_are_never_empty(site: Site, path: str, module: str) -> None:
    assert (site.full_path, site.full_module) == (path, module)


def test_the_class_of_a_site_is_the_bare_name_of_the_most_derived() -> None:
    assert Site(0, "a", "output", bases=("torch.nn.modules.linear.Linear", "torch.nn.modules.module.Module")).module_class == "Linear"
    assert Site(0, "loss", "loss").module_class == ""


def test_a_site_can_be_hashed_and_not_be_changed() -> None:
    site = Site(0, "a", "output")
    assert len({site, Site(0, "a", "output"), Site(1, "a", "output")}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        site.path = "b"  # type: ignore[misc]


def test_the_kinds_are_those_of_modules_of_parameters_and_of_the_loop() -> None:
    assert typing.get_args(Kind) == KINDS
    assert {*MODULE_KINDS, *PARAM_KINDS, "loss", "scalar"} == set(KINDS)
    assert not set(MODULE_KINDS) & set(PARAM_KINDS)
