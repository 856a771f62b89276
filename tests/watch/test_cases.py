"""The programs of shared/cases, as people write them: watched, each ends with the same bits and no trained parameter is missed."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import hookscope as hs

from ._bits import flat

CASES = Path(__file__).parents[3] / "shared" / "cases"
PROGRAMS = sorted([*CASES.glob("cases/*.py"), *CASES.glob("controls/*.py")])
QUICK = {"02_where_log_zero_count", "27_lora_reentrant_checkpoint", "05_frozen_backbone_head_only"}
Norms = dict[str, list[float]]
absent = pytest.mark.skipif(not PROGRAMS, reason="the cases are not here: they lie in shared/cases, beside the checkout")
pytestmark = [absent, pytest.mark.filterwarnings("ignore::UserWarning")]  # torch warns of two of the faults


def loaded(program: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"case_{program.stem}", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Trained:
    """A program that has run in this process: how it ended, and the gradients its optimizers were given, taken down by a hook of ours."""

    def __init__(self, case: ModuleType, *, fixed: bool, watched: bool) -> None:
        torch.manual_seed(7)
        built = case.build(fixed) if inspect.signature(case.build).parameters else case.build()
        self.model: nn.Module = built[0]
        self.names = {id(p): name for name, p in self.model.named_parameters()}
        self.given: Norms = {}
        self.ended, self.run = "well", None
        watch = hs.watch(self.model, on_finding="ignore") if watched else None
        hook = register_optimizer_step_pre_hook(self._note)
        try:
            for _ in case.train(*built):
                pass
        except (ValueError, RuntimeError) as error:
            self.ended = repr(error)
        hook.remove()
        if watch is not None:
            watch.close()
            self.run = watch.run
        optimizers = built[1] if isinstance(built[1], (list, tuple)) else [built[1]]
        states = [optimizer.state_dict() for optimizer in optimizers]
        self.bits = dict(flat("", [dict(self.model.state_dict()), states, torch.get_rng_state()]))

    def _note(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if parameter.grad is not None and id(parameter) in self.names:
                grad = parameter.grad.double()
                norm = grad[grad.isfinite()].square().sum().sqrt().item()
                self.given.setdefault(self.names[id(parameter)], []).append(norm)


def recorded(run: hs.Run, names: Norms) -> Norms:
    """The same from the run, without the steps that a scaler left out: for those there was no attempt that our hook could see."""
    skipped = run["skipped"].steps if any(site.name == "skipped" for site in run.sites) else []
    series = {name: run[f"{name}:param_grad", "l2"] for name in names}
    return {name: one.values[~np.isin(one.steps, skipped)].tolist() for name, one in series.items()}


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("program", [pytest.param(p, id=p.stem, marks=[] if p.stem in QUICK else pytest.mark.slow) for p in PROGRAMS])
def test_a_program_ends_with_the_same_bits_and_every_gradient_it_uses_is_recorded(program: Path, *, fixed: bool) -> None:
    case = loaded(program)
    alone, watched = (Trained(case, fixed=fixed, watched=watched) for watched in (False, True))
    assert watched.ended == alone.ended
    assert watched.bits == alone.bits
    assert watched.run is not None
    assert {event["event"] for event in watched.run.events} & {"switched_off", "lost_calls"} == set()
    assert len(alone.given) > 0
    got = recorded(watched.run, alone.given)
    for name, norms in alone.given.items():
        np.testing.assert_allclose(got[name], norms, rtol=1e-5, atol=1e-30, err_msg=name)
