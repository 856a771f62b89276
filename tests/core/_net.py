"""A network of sites, written by hand: what selections are tried on."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from hookscope._core._select import Selectable, select_sites
from hookscope._core._site import MODULE_KINDS, PARAM_KINDS, Kind, Site

MODULE = "torch.nn.modules.module.Module"
LINEAR = ("torch.nn.modules.linear.Linear", MODULE)
RELU = ("torch.nn.modules.activation.ReLU", MODULE)
MADE_LINEAR = ("user.MyLinear", *LINEAR)
CONTAINER = ("user.Net", MODULE)


def module(path: str, bases: tuple[str, ...], *, model: str = "", aliases: tuple[str, ...] = ()) -> list[Site]:
    return [Site(0, path, kind, model=model, module=path, bases=bases, aliases=aliases) for kind in MODULE_KINDS]


def parameter(path: str, bases: tuple[str, ...] = LINEAR, *, model: str = "", aliases: tuple[str, ...] = ()) -> list[Site]:
    owner = path.rpartition(".")[0]
    return [Site(0, path, kind, model=model, module=owner, bases=bases, aliases=aliases) for kind in PARAM_KINDS]


def numbered(*groups: Sequence[Site]) -> list[Site]:
    ids = count()
    return [replace(site, id=next(ids)) for group in groups for site in group]


NET = numbered(
    module("", CONTAINER),
    module("encoder", CONTAINER),
    *[module(f"encoder.{i}", MADE_LINEAR if i == 3 else LINEAR) for i in range(4)],
    module("act", RELU),
    module("head", LINEAR),
    [Site(0, "lstm", "output", output_path=path, module="lstm", bases=CONTAINER) for path in ("[0]", "[1][0]", "[1][1]")],
    [Site(0, "out", "output", output_path=path, module="out", bases=CONTAINER) for path in ('["logits"]', ".last_hidden_state")],
    parameter("scale", CONTAINER),
    *[parameter(f"encoder.{i}.{name}", MADE_LINEAR if i == 3 else LINEAR) for i in range(4) for name in ("weight", "bias")],
    parameter("embed.weight", CONTAINER, aliases=("head.weight",)),
    [Site(0, "head.bias", "param_grad", label, module="head", bases=LINEAR) for label in ("", "preclip", "local")],
    [Site(0, "loss", "loss"), Site(0, "lr", "scalar")],
)


def names(selection: Selectable, kinds: Sequence[Kind] | None = None, sites: Sequence[Site] = NET) -> list[str]:
    return [site.name for site in select_sites(sites, selection, kinds=kinds)]


MODELS = numbered(
    *[module(path, LINEAR, model="G") for path in ("", "0", "1", "2")],
    *[module(path, LINEAR, model="D") for path in ("", "0", "1")],
    parameter("0.weight", model="G"),
    parameter("0.weight", model="D"),
)
