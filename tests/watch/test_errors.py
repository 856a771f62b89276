"""Wrong use is one sentence that names the value and what would be right, before any hook is placed or a file written."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import hookscope as hs

from ._small import adam, batch, bits, hooks_on, mlp, train, trained_bits

SGD = torch.optim.SGD
backward, scaler_step = torch.autograd.backward, torch.amp.GradScaler.step


def refused(kind: type[hs.HookscopeError], model: Any, *args: Any, **kwargs: Any) -> str:
    """The text of the error; nothing of the attempt may be left in the process."""
    with pytest.raises(kind) as caught:
        hs.watch(model, *args, **kwargs)
    assert type(caught.value) is kind
    assert (torch.autograd.backward, torch.amp.GradScaler.step) == (backward, scaler_step)
    text = str(caught.value)
    assert "\n" not in text
    return text


NO_MODEL = {
    "a number": (lambda: 3, "model is a int: pass a torch.nn.Module, or a list or a dict of them"),
    "parameters": (lambda: mlp().parameters(), "model is a generator: pass a torch.nn.Module, or a list or a dict of them"),
    "a class": (lambda: nn.Linear, "model is a type: pass a torch.nn.Module, or a list or a dict of them"),
    "an optimizer": (lambda: SGD(mlp().parameters()), "model is a SGD: pass a torch.nn.Module, or a list or a dict of them"),
    "an empty list": (list, "there is no model to watch: the list is empty"),
    "an empty dict": (dict, "there is no model to watch: the list is empty"),
    "no module in a list": (lambda: [mlp(), 3], "model 'int' is a int, not a torch.nn.Module"),
    "no module in a dict": (lambda: {"G": mlp(), "D": None}, "model 'D' is a NoneType, not a torch.nn.Module"),
}


@pytest.mark.parametrize("case", NO_MODEL)
def test_what_is_no_model_is_named_by_its_type(case: str, tmp_path: Path) -> None:
    make, text = NO_MODEL[case]
    assert refused(hs.AttachError, make(), to=tmp_path / "run") == text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", ["adam", 0.1, SGD, {"a": 1}, [SGD(mlp().parameters()), 3], mock.MagicMock()])
def test_what_is_no_optimizer_is_named_by_its_type(wrong: Any, tmp_path: Path) -> None:
    model = mlp()
    named = type(wrong[1] if isinstance(wrong, list) else wrong).__name__
    text = refused(hs.AttachError, model, wrong, to=tmp_path / "run")
    assert text.replace("a str", f"a {named}") == (
        f"optimizer is a {named}, not a torch.optim.Optimizer; leave it out and it is recognised by itself"
    )
    assert (hooks_on(model), list(tmp_path.iterdir())) == (0, [])


class Wrapper:
    """As Accelerate has one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


@pytest.mark.parametrize(
    "wrap", [Wrapper, lambda o: [Wrapper(Wrapper(o))], lambda o: torch.optim.lr_scheduler.StepLR(o, 1), lambda o: (None, o)]
)
def test_an_optimizer_is_found_inside_what_holds_it(wrap: Any) -> None:
    """The step of a named optimizer is closed at once; that of one nobody named only by its next step."""
    model = mlp()
    optimizer = adam(model)
    with hs.watch(model, wrap(optimizer)) as watched:
        train(model, optimizer, 1)
        assert watched.run.steps.tolist() == [0]
    with hs.watch(model) as watched:
        train(model, optimizer, 1)
        assert watched.run.steps.tolist() == []
        assert watched.step == 1


WRONG_SETTINGS: list[tuple[str, Any, str]] = [
    ("on_finding", "rase", "on_finding='rase' is unknown: did you mean 'raise'? choose one of 'warn', 'raise', 'ignore' or a function "),
    ("on_finding", None, "on_finding=None is unknown: choose one of 'warn', 'raise', 'ignore' or a function that takes a Finding"),
    ("updates", "ful", "updates='ful' is unknown: did you mean 'full'? choose one of 'sample', 'full'"),
    ("updates", [], "updates=[] is unknown: choose one of 'sample', 'full'"),
    *[("every", value, f"every={value!r} is no schedule: give a whole number of steps, 1 or more") for value in (0, -1, "x", 2.0, True)],
    *[
        ("grad_norm_threshold", value, f"grad_norm_threshold={value!r} is no limit: give a norm above 0, or None for no fixed limit")
        for value in (-1, 0, "x", float("nan"))
    ],
    *[("to", value, f"to={value!r} is no directory: give the path of a new one, such as 'runs/base', or None") for value in (5, "", b"x")],
]


@pytest.mark.parametrize(("name", "value", "text"), WRONG_SETTINGS)
def test_a_setting_that_cannot_be_right_says_what_would_be(name: str, value: Any, text: str, tmp_path: Path) -> None:
    model = mlp()
    assert refused(hs.UsageError, model, **{"to": tmp_path / "run", name: value}).startswith(text)
    assert (hooks_on(model), list(tmp_path.iterdir())) == (0, [])


WRONG_SELECTIONS: list[tuple[Any, str]] = [
    ("00", "no site matches '00': did you mean '0'?"),
    ("0.wieght", "no site matches '0.wieght': did you mean '0.weight'?"),
    ("encoder.*", "no site matches 'encoder.*': the paths are '(root)', '0', '1', '2', '0.weight' and 4 more"[:60]),
    (["0", "nope"], "no site matches 'nope': "),
    (["**", "~nope"], "no site matches 'nope': "),
    (nn.Conv2d, "no site matches torch.nn.modules.conv.Conv2d: the modules are of class "),
    (re.compile("attn"), "no site matches "),
    (lambda site: False, "no site matches "),
    ("0:outptu", "malformed selection '0:outptu' at position 2: unknown kind 'outptu': did you mean 'output'?"),
    ("h[3:", "malformed selection 'h[3:' at position 1: '[' is never closed"),
    ([], "an empty selection selects nothing: pass at least one path, such as '**' for every site"),
    (None, "cannot select by None, a NoneType: pass a path, "),
    (3, "cannot select by 3, a int: pass a path, "),
]


@pytest.mark.parametrize(("selection", "text"), WRONG_SELECTIONS)
def test_a_selection_that_selects_nothing_leaves_no_run_behind(selection: Any, text: str, tmp_path: Path) -> None:
    model = mlp()
    assert refused(hs.SelectionError, model, to=tmp_path / "run", select=selection).startswith(text)
    assert (hooks_on(model), list(tmp_path.iterdir())) == (0, [])


def test_a_misspelt_selection_does_not_cost_the_run_that_was_to_be_overwritten(tmp_path: Path) -> None:
    model = mlp()
    with hs.watch(model, adam(model), to=tmp_path) as watched:
        train(model, adam(model), 3)
    refused(hs.SelectionError, model, to=tmp_path, select="00", overwrite=True)
    assert len(hs.Run(tmp_path).steps) == 3 == watched.step


def test_an_existing_run_is_refused_overwritten_or_resumed_as_asked(tmp_path: Path) -> None:
    def run(**how: bool) -> list[int]:
        model = mlp()
        optimizer = adam(model)
        with hs.watch(model, optimizer, to=tmp_path, **how):
            train(model, optimizer, 2)
        return list(hs.Run(tmp_path).steps.tolist())

    assert run() == [0, 1]
    model = mlp()
    assert refused(hs.RunExistsError, model, to=tmp_path) == (
        f"a run is already in {tmp_path}: pass resume=True to continue it, or overwrite=True to replace it"
    )
    assert hooks_on(model) == 0
    assert run(resume=True) == [0, 1, 2, 3]
    assert run(overwrite=True) == [0, 1]
    assert refused(hs.UsageError, model, to=tmp_path, overwrite=True, resume=True) == (
        "overwrite=True and resume=True contradict each other: choose one"
    )


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("file", "cannot write a run to {}: a file of that name is in the way: choose another directory"),
        ("file/run", "cannot write a run to {}: Not a directory: choose a directory that can be written"),
        (
            "foreign",
            "cannot write a run to {}: it holds events.jsonl, but no run.json of hookscope: choose an empty or new directory such as ",
        ),
    ],
)
def test_what_is_in_the_way_is_named_and_left_alone(place: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "events.jsonl").write_text("mine")
    model = mlp()
    assert refused(hs.RunError, model, to=tmp_path / place).startswith(text.format(tmp_path / place))
    kept = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*"))
    assert (hooks_on(model), kept) == (0, ["file", "foreign", "foreign/events.jsonl"])


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no users to speak of")
def test_a_directory_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    place = Path("/proc/run") if os.geteuid() == 0 and Path("/proc").exists() else tmp_path / "locked" / "run"
    if place.parent.parent == tmp_path:
        place.parent.mkdir(mode=0o500)
    model = mlp()
    assert refused(hs.RunError, model, to=place).startswith(f"cannot write a run to {place}: ")
    assert hooks_on(model) == 0


def test_a_model_without_parameters_is_watched() -> None:
    model = nn.Sequential(nn.Tanh(), nn.Flatten())
    x = torch.ones(2, 3, requires_grad=True)
    with hs.watch(model) as watched:
        model(x).sum().backward()
    assert (watched.run["0:output", "max"].values.tolist(), hooks_on(model)) == ([torch.tanh(torch.ones(())).item()], 0)


@pytest.mark.parametrize("model", [nn.Module(), nn.ModuleList(), nn.ModuleDict({"a": nn.Tanh()})])
def test_a_model_that_is_only_a_holder_is_watched(model: nn.Module) -> None:
    with hs.watch(model) as watched:
        pass
    assert (len(watched.run.steps), hooks_on(model)) == (0, 0)


def scripted(model: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit as such
        return torch.jit.script(model)


@pytest.mark.parametrize("inside", [True, False])
def test_what_is_scripted_takes_no_hooks_and_is_watched_by_its_parameters(inside: bool) -> None:
    script = scripted(mlp())
    model = nn.Sequential(script, nn.Linear(1, 1)) if inside else script
    optimizer = adam(model)
    with hs.watch(model, optimizer) as watched:
        train(model, optimizer, 2)
    names = {site.name for site in watched.run.sites}
    wanted = {"1:output_grad", "0.0.weight:update"} if inside else {"0.weight:param_grad", "2.bias:update"}
    assert (wanted - names, watched.run.steps.tolist()) == (set(), [0, 1])


class Hookless(nn.Linear):
    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no hooks here")


@pytest.mark.parametrize(
    ("holder", "where", "way"),
    [(lambda m: nn.Sequential(m, nn.ReLU()), "0", ["**", "~0.**"]), (lambda m: {"G": mlp(), "D": nn.Sequential(m)}, "0", ["**", "~0.**"])],
)
def test_a_module_that_takes_no_hook_is_named_and_the_way_out_works(holder: Any, where: str, way: list[str], tmp_path: Path) -> None:
    model = holder(Hookless(4, 1))
    text = refused(hs.AttachError, model, to=tmp_path / "run")
    assert text == f"module {where!r}, a Hookless, takes no hook (no hooks here); leave it out: select={way}"
    models = list(model.values()) if isinstance(model, dict) else [model]
    assert (hooks_on(*models), list(tmp_path.iterdir())) == (0, [])
    with hs.watch(model, to=tmp_path / "run", select=way):
        assert hooks_on(*models) > 0
    assert hooks_on(*models) == 0


def test_lazy_modules_are_watched_from_before_they_have_shapes() -> None:
    def lazy() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(1))

    model = lazy()
    optimizer = adam(model)
    with hs.watch(model, optimizer) as watched:
        train(model, optimizer)
    run = watched.run
    assert [site.shape for site in run.sites if site.path == "0.weight"] == [(8, 4)] * 3
    assert len(run["0.weight:update"].values) == 6
    assert (bits(model), hooks_on(model)) == (trained_bits(lazy), 0)


def test_a_lazy_model_that_has_run_before_is_like_any_other() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(1))
    model(batch(0))
    with hs.watch(model, adam(model)) as watched:
        train(model, adam(model), 1)
    assert len(watched.run["0:output_grad", "rms"].values) == 1


def test_an_optimizer_of_another_model_is_warned_of() -> None:
    """Most often the model was made anew after its optimizer."""
    with pytest.warns(hs.HookscopeWarning, match="the Adam updates no parameter of the model"):
        hs.watch(mlp(), adam(mlp())).close()
