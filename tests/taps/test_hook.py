"""A hook works where it was put and nowhere else."""

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookscope._taps._hook import Hook


def hooked(calls: list[Any]) -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_forward_hook(Hook(lambda *args: calls.append(args)), with_kwargs=True)
    module.register_forward_pre_hook(Hook(lambda *args: calls.append(args)))
    return module


def test_it_passes_on_what_torch_passes() -> None:
    calls: list[Any] = []
    module, x = hooked(calls), torch.ones(1, 2)
    y = module(x)
    assert [len(args) for args in calls] == [2, 4]
    assert calls[0][0] is module
    assert calls[1][1:] == ((x,), {}, y)


def test_it_never_replaces_what_it_sees() -> None:
    module = nn.Linear(2, 2)
    plain = module(torch.ones(1, 2))
    module.register_forward_hook(Hook(lambda *_: torch.zeros(9)))  # type: ignore[arg-type, return-value]  # the mistake it guards against
    module.register_forward_pre_hook(Hook(lambda *_: (torch.zeros(9),)))  # type: ignore[arg-type, return-value]
    assert torch.equal(module(torch.ones(1, 2)), plain)


def test_a_deep_copy_reports_nothing() -> None:
    calls: list[Any] = []
    twin = copy.deepcopy(hooked(calls))
    twin(torch.ones(1, 2)).sum().backward()
    assert calls == []


def test_a_deep_copy_of_a_deep_copy_works_too() -> None:
    calls: list[Any] = []
    assert copy.deepcopy(copy.deepcopy(hooked(calls)))(torch.ones(1, 2)).shape == (1, 2)
    assert calls == []


def test_a_pickled_module_reports_nothing() -> None:
    calls: list[Any] = []
    loaded = pickle.loads(pickle.dumps(hooked(calls)))
    loaded(torch.ones(1, 2))
    assert calls == []


def test_a_module_saved_whole_loads_and_runs() -> None:
    calls: list[Any] = []
    file = io.BytesIO()
    torch.save(hooked(calls), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    loaded(torch.ones(1, 2))
    assert calls == []


def test_a_module_pickled_under_watch_loads_where_hookscope_is_not_installed(tmp_path: Path) -> None:
    # nn.Linear itself would need torch, a second to import: what is pickled for the hook is the point
    file = tmp_path / "hook.pickle"
    file.write_bytes(pickle.dumps(Hook(lambda *_: None)))
    load = f"import pickle; hook = pickle.load(open({str(file)!r}, 'rb')); print(hook(1, 2, 3), hook.__self__.__class__.__module__)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", load], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "contextlib"]


def test_a_copy_takes_any_number_of_arguments_and_returns_nothing() -> None:
    copied = copy.deepcopy(Hook(lambda *_: 1 / 0))
    assert copied(None, None, None) is None
