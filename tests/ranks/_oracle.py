"""What a run of any cell must say, by one process in float64 on the whole batch: no code of ours makes these numbers."""

from __future__ import annotations

import numpy as np
import torch

import hookscope as hs

from ._nets import STEPS, truth

ROWS = {
    "alone": "one process",
    "ddp": "`DistributedDataParallel`",
    "fsdp": "`fully_shard` (FSDP2)",
    "offload": "`fully_shard` with `CPUOffloadPolicy`",
    "fsdp1": "`FullyShardedDataParallel(use_orig_params=True)` (FSDP1)",
    "tp": "tensor parallel (column, row)",
    "hsdp": "FSDP2 with replicas (HSDP)",
    "2d": "FSDP2 and tensor parallel",
}
COLUMNS = ("plain", "bf16", "checkpoint")
# How many ranks' losses speak of different samples.
SHARES = {"alone": 1, "ddp": 2, "fsdp": 2, "offload": 2, "fsdp1": 2, "tp": 1, "hsdp": 4, "2d": 2}
QUANTITIES = ("count", "mean", "std", "rms", "l2", "min", "max", "absmax", "sum", "zeros", "nonfinite")


def numbers_of(tensor: torch.Tensor) -> dict[str, float]:
    x = tensor.double().numpy().ravel()
    return {
        "count": x.size,
        "mean": x.mean(),
        "std": x.std(),
        "rms": np.sqrt((x**2).mean()),
        "l2": np.sqrt((x**2).sum()),
        "min": x.min(),
        "max": x.max(),
        "absmax": np.abs(x).max(),
        "sum": x.sum(),
        "zeros": (x == 0).sum(),
        "nonfinite": 0,
    }


def check(run: hs.Run, shares: int, tolerance: float) -> None:
    """All numbers of all sites and steps, but for rounding.

    `shares` losses are means over a part of the batch each, so that gradients at outputs are so many times those of the one loss.
    """
    assert [e for e in run.events if e["event"] in ("switched_off", "hidden_parameters", "frames_dropped")] == []
    expected = truth()
    wrong = []
    for name in expected[0]:
        for quantity in QUANTITIES:
            series = run[name, quantity]
            assert series.steps.tolist() == list(range(STEPS)), name
            for step in range(STEPS):
                tensor = expected[step][name] * (shares if name.endswith(":output_grad") else 1)
                numbers = numbers_of(tensor)
                right = shares if (name, quantity) == ("loss", "count") else numbers[quantity]
                if name == "loss" and quantity not in ("count", "mean", "nonfinite"):
                    continue
                scale = max(abs(right), numbers["l2" if quantity in ("l2", "sum") else "absmax"], 1e-12) if quantity != "zeros" else 1
                lost = 50 if name.endswith(":update") else 1  # the difference of two float32 weights, a hundred times as large as it
                if abs(series.values[step] - right) > lost * tolerance * scale:
                    wrong.append((name, quantity, step, series.values[step], right))
    assert wrong == []


def check_halves(run: hs.Run) -> None:
    """Counts, and root mean squares to the precision of bf16."""
    expected = truth()
    for name in expected[0]:
        if name.endswith((":param", ":param_grad", ":output")):
            right = [numbers_of(step[name]) for step in expected]
            assert run[name, "count"].values.tolist() == [n["count"] for n in right], name
            np.testing.assert_allclose(run[name, "rms"].values, [n["rms"] for n in right], rtol=0.06, err_msg=name)


def word(run: hs.Run, how: str, what: str) -> str:
    """What the table in the docs says of this cell, if its run is right."""
    if what == "bf16":
        check_halves(run)
        return "right [1]"
    check(run, SHARES[how], 2e-5)
    return "right"
