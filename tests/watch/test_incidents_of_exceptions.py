"""An exception that ends the training is an incident; who stops it on purpose leaves none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hookscope as hs

from ._small import adam, mlp, train


def test_an_exception_that_leaves_the_watch_is_an_incident_with_its_traceback(tmp_path: Path) -> None:
    def wrong(step: int) -> None:
        if step == 3:
            raise ZeroDivisionError("mine")

    model = mlp()
    with pytest.raises(ZeroDivisionError), hs.watch(model, optimizer := adam(model), to=tmp_path):
        train(model, optimizer, before_step=wrong)
    (incident,) = hs.Run(tmp_path).incidents
    assert (incident.step, incident.reason, incident.headline) == (3, "exception", "ZeroDivisionError at step 3: mine")
    assert incident.error is not None
    assert (incident.error["type"], incident.error["message"]) == ("ZeroDivisionError", "mine")
    assert 'raise ZeroDivisionError("mine")' in incident.error["traceback"]
    assert sorted(set(incident.rows.step.tolist())) == [0, 1, 2, 3]


def test_an_exception_within_a_forward_tells_what_went_in(tmp_path: Path) -> None:
    model = mlp()
    with pytest.raises(RuntimeError), hs.watch(model, optimizer := adam(model), to=tmp_path):
        train(model, optimizer, data=lambda step: torch.ones(2, 4 if step < 2 else 5))
    (incident,) = hs.Run(tmp_path).incidents
    assert [(one["shape"], one["min"]) for one in incident.inputs] == [([2, 5], 1.0)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_who_stops_the_training_on_purpose_leaves_none(error: type[BaseException], tmp_path: Path) -> None:
    model = mlp()

    def stop(_step: int) -> None:
        raise error

    with pytest.raises(error), hs.watch(model, to=tmp_path):
        train(model, adam(model), before_step=stop)
    assert hs.Run(tmp_path).incidents == ()
