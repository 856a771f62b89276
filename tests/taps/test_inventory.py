"""Sites are named as the user's own model names its parts, whatever has been put around them."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import hookscope as hs
from hookscope._taps._inventory import candidates, modules, parameters


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 1)))


PATHS = ["", "0", "1", "2", "2.0"]
PARAMETERS = ["0.weight", "0.bias", "2.0.weight", "2.0.bias"]


def module_paths(model: nn.Module) -> list[str]:
    return [named.path for named in modules(model)]


def parameter_paths(model: nn.Module) -> list[str]:
    return [named.path for named in parameters(model)]


def compiled(model: nn.Module) -> nn.Module:
    """Dynamo's wrapper; inductor, which takes seconds to import, is not what names depend on."""
    return torch.compile(model, backend="eager")


def in_ddp(model: nn.Module) -> nn.Module:
    """As DDP holds a model, without the process group that its constructor asks for."""
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module = model
    return wrapped


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: model,
        nn.DataParallel,
        in_ddp,
        compiled,
        checkpoint_wrapper,
        lambda model: compiled(nn.DataParallel(model)),
        lambda model: in_ddp(compiled(checkpoint_wrapper(model))),
    ],
    ids=["bare", "DataParallel", "DDP", "compiled", "checkpointed", "compiled DataParallel", "DDP of compiled of checkpointed"],
)
def test_a_wrapper_around_the_model_changes_no_name(wrap: object) -> None:
    wrapped = wrap(net())  # type: ignore[operator]
    assert module_paths(wrapped) == PATHS
    assert parameter_paths(wrapped) == PARAMETERS


@pytest.mark.parametrize("wrap", [compiled, checkpoint_wrapper])
def test_a_wrapper_inside_the_model_changes_no_name(wrap: object) -> None:
    model = net()
    model[2][0] = wrap(model[2][0])  # type: ignore[operator]
    model[0] = wrap(model[0])  # type: ignore[operator]
    assert module_paths(model) == PATHS
    assert parameter_paths(model) == PARAMETERS


def test_a_wrapper_and_what_it_wraps_are_one_module_the_inner_one() -> None:
    inner = net()
    assert modules(nn.DataParallel(inner))[0].module is inner
    assert modules(compiled(inner))[0].module is inner


def test_a_child_of_the_users_that_is_called_module_keeps_its_name() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    assert module_paths(Holder()) == ["", "module"]
    assert module_paths(nn.DataParallel(Holder())) == ["", "module"]
    assert parameter_paths(nn.DataParallel(Holder())) == ["module.weight", "module.bias"]


def test_a_module_in_two_places_is_one_with_an_alias() -> None:
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(nn.ReLU(), shared)})
    found = {named.path: named.aliases for named in modules(model)}
    assert found == {"": (), "a": ("b.1",), "b": (), "b.0": ()}
    assert [(p.path, p.aliases) for p in parameters(model)] == [("a.weight", ("b.1.weight",)), ("a.bias", ("b.1.bias",))]


def test_a_tied_parameter_is_one_with_an_alias() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    assert [(p.path, p.aliases, p.owner) for p in parameters(model)] == [("0.weight", ("1.weight",), "0")]
    assert [site.aliases for site in hs.sites(model, "0.weight:param")] == [("1.weight",)]


def test_a_parameter_of_the_root_itself_belongs_to_the_root() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

    (named,) = parameters(Scale())
    assert (named.path, named.owner) == ("scale", "")
    (site,) = hs.sites(Scale(), "scale:param")
    assert (site.module, site.module_class) == ("", "Scale")


def test_parametrized_weights_have_the_names_that_named_parameters_gives_them() -> None:
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert sorted(parameter_paths(model)) == sorted(name for name, _ in model.named_parameters())
    # Reading model.weight would run a power iteration and change these.
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


def test_a_lazy_modules_parameters_have_no_shape_yet() -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    weight = hs.sites(model, "0.weight:param")[0]
    assert (weight.shape, weight.numel, weight.trainable) == (None, None, True)
    model(torch.ones(1, 3))
    weight = hs.sites(model, "0.weight:param")[0]
    assert (weight.shape, weight.numel, weight.module_class) == ((4, 3), 12, "Linear")


def test_every_module_has_three_sites_and_every_parameter_three() -> None:
    model = net()
    found = list(candidates(model))
    assert [(s.path, s.kind) for s in found[:3]] == [("", "input"), ("", "output"), ("", "output_grad")]
    assert [(s.path, s.kind) for s in found[-3:]] == [("2.0.bias", "param"), ("2.0.bias", "param_grad"), ("2.0.bias", "update")]
    assert len(found) == 3 * len(PATHS) + 3 * len(PARAMETERS)
    assert {s.id for s in found} == {-1}


def test_a_site_says_what_it_is_of() -> None:
    model = net().double()
    model[2].requires_grad_(False)
    site = hs.sites(model, "2.0.weight:param_grad")[0]
    assert (site.shape, site.numel, site.dtype, site.device, site.trainable) == ((1, 3), 3, "float64", "cpu", False)
    assert (site.module, site.bases) == ("2.0", ("torch.nn.modules.linear.Linear", "torch.nn.modules.module.Module"))


def test_sites_shows_what_a_selection_would_match_without_running_the_model() -> None:
    model = net()
    model.forward = None  # type: ignore[assignment, method-assign]  # a call would fail
    assert [site.name for site in hs.sites(model, nn.Linear)][:2] == ["0:input", "0:output"]
    assert [site.name for site in hs.sites(model, "2.*:output")] == ["2.0:output"]
    assert len(hs.sites(model)) == 27
    assert not model[0]._forward_hooks


def test_sites_of_what_is_no_module_says_what_it_was_given() -> None:
    with pytest.raises(hs.AttachError, match=r"model is a list, not a torch\.nn\.Module"):
        hs.sites([nn.Linear(1, 1)])  # type: ignore[arg-type]


def test_a_selection_that_matches_nothing_names_near_misses() -> None:
    with pytest.raises(hs.SelectionError, match=r"2\.0"):
        hs.sites(net(), "2.O")


def test_a_child_that_keeps_its_parent_as_a_module_does_not_end_in_endless_names() -> None:
    model = net()
    model[2].parent = model
    assert module_paths(model) == PATHS
    assert parameter_paths(model) == PARAMETERS
    with hs.watch(model, torch.optim.SGD(model.parameters(), lr=0.1)) as watched:
        nn.Sequential.forward(model[:2], torch.ones(4, 2)).sum().backward()
    assert watched.run["0:output", "count"].values.tolist() == [12.0]
