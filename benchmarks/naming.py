"""What each tool says of the same small faults: torch's anomaly mode, `DebugUnderflowOverflow` of transformers, nansense, msprobe where
they are installed, and hookscope.

Every program trains a small net, and goes bad at its third step. A tool names the line if the file and line of the fault stand in what it
says, the module if its path does, the step if it says in which one. Nothing is measured in seconds. Prints a table in Markdown.
`python benchmarks/naming.py --says` prints the first lines of what each tool said instead.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from _naming_peers import installed
from torch import nn

import hookscope as hs

AT = 2
NAN = float("nan")


class Root(torch.autograd.Function):
    """A backward of one's own, that divides by 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / (ctx.saved_tensors[0] * 0)  # fault: custom


class Net(nn.Module):
    """The fault, if it is one of the model's, is in `odd`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.odd, self.last = nn.Linear(6, 6), Odd(kind), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As it says."""
        return self.last(torch.tanh(self.odd(self.first(x))))


class Odd(nn.Module):
    """One operation that goes wrong when `on`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.on = kind, False

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """As `kind` says."""
        if h.numel() * self.on == 0:  # a tool that traces the model would keep a plain flag as it is at first
            return h
        if self.kind == "log":
            h = h + torch.log(h * 0 - 1)  # fault: log
        if self.kind == "inf":
            h = h + torch.exp(h * 0 + 200)  # fault: inf
        if self.kind == "root":
            h = h + torch.sqrt(h * 0)  # fault: root
        if self.kind == "where":
            h = torch.where(h > 1e9, torch.log(h * 0), h)  # fault: where
        if self.kind == "custom":
            h = Root.apply(h)
        if self.kind == "mask":
            h = h.masked_fill(h < 1e9, -torch.inf).softmax(-1)  # fault: mask
        if self.kind == "leap":
            h = h * 1e6  # fault: leap
        return h


@dataclass(frozen=True)
class Fault:
    """Its kind, where it lies (a module's path, or None), and what it is, in words."""

    kind: str
    module: str | None
    text: str

    @property
    def line(self) -> int:
        """Of the comment that marks it."""
        return next(n for n, text in enumerate(LINES, 1) if text.rstrip().endswith(f"# fault: {self.kind}"))


FAULTS = [
    Fault("log", "odd", "logarithm of -1, forward"),
    Fault("inf", "odd", "exp overflows to Inf, forward"),
    Fault("mask", "odd", "softmax over a row masked everywhere"),
    Fault("root", "odd", "root of 0, backward"),
    Fault("where", "odd", "logarithm of 0 in the branch not taken, backward"),
    Fault("custom", "odd", "a backward of one's own divides by 0"),
    Fault("loss", None, "0 / 0 in the loss"),
    Fault("written", "last", "a weight is set to NaN between steps"),
    Fault("rate", None, "the learning rate becomes NaN"),
    Fault("leap", "odd", "finite values become a million times as large"),
]
LINES = inspect.getsource(sys.modules[__name__]).splitlines()


def train(fault: Fault, around: Callable[[nn.Module, torch.optim.Optimizer], contextlib.AbstractContextManager[object]]) -> None:
    """Six steps, the tool around them, and around each if it asks for that."""
    torch.manual_seed(0)
    model = Net(fault.kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with around(model, optimizer) as each:
        for step in range(6):
            with each() if callable(each) else contextlib.nullcontext():
                _step(fault, model, optimizer, step)


def _step(fault: Fault, model: Net, optimizer: torch.optim.Optimizer, step: int) -> None:
    model.odd.on = step == AT
    if fault.kind == "written" and step == AT:
        with torch.no_grad():
            model.last.weight[0, 0] = NAN  # fault: written
    if fault.kind == "rate" and step == AT:
        optimizer.param_groups[0]["lr"] = NAN  # fault: rate
    loss = model(torch.randn(5, 6)).square().mean()
    if fault.kind == "loss" and step == AT:
        loss = loss * 0 / (loss * 0)  # fault: loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@contextlib.contextmanager
def anomaly(_model: nn.Module, _optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """`torch.autograd.detect_anomaly`."""
    with torch.autograd.detect_anomaly():
        yield


@contextlib.contextmanager
def underflow_overflow(model: nn.Module, _optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """`transformers.debug_utils.DebugUnderflowOverflow`."""
    from transformers.debug_utils import DebugUnderflowOverflow

    DebugUnderflowOverflow(model)
    yield


@contextlib.contextmanager
def hookscope(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """`hookscope.watch`; the first finding."""
    with hs.watch(model, optimizer, on_finding="ignore") as w:
        yield
    for finding in hs.diagnose(w.run).findings[:1]:
        source = finding.source
        print(finding.headline, f"module {finding.module}", f'File "{__file__}", line {source["line"]}' if source else "", sep="\n")


TOOLS = {"anomaly mode": anomaly, "DebugUnderflowOverflow": underflow_overflow, **installed(), "hookscope": hookscope}


def said(fault: Fault, tool: Callable[..., contextlib.AbstractContextManager[object]]) -> str:
    """Everything it printed, warned of or raised."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: print(message)
        try:
            train(fault, tool)
        except Exception as error:  # noqa: BLE001  # it is how they tell
            print("".join(traceback.format_exception_only(error)))
    noise = ("Anomaly Detection has been enabled", "[INFO]", "Full backward hook is firing")
    lines = [line for line in out.getvalue().splitlines() if not any(words in line for words in noise)]
    return "\n".join(lines)


def mark(fault: Fault, text: str) -> str:
    """What of the fault is in the text."""
    if not text.strip():
        return "nothing"
    line = f'naming.py", line {fault.line}' in text
    named = fault.module is not None and any(f"{word}{fault.module}" in text for word in ("module ", " of ", "\n", "  "))
    step = f"step {AT}" in text or f"batch_number={AT}" in text
    found = [name for name, there in (("line", line), ("module", named), ("step", step)) if there]
    return ", ".join(found) or "that something is bad"


def alone(fault: Fault, tool: str) -> str:
    """What it said in a process of its own: some tools change torch for good."""
    command = [sys.executable, __file__, "--one", str(FAULTS.index(fault)), tool]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # this very file


def main() -> None:
    """The table."""
    if "--one" in sys.argv:
        print(said(FAULTS[int(sys.argv[-2])], TOOLS[sys.argv[-1]]))
        return
    print("| fault | " + " | ".join(TOOLS) + " |\n|" + "---|" * (len(TOOLS) + 1))
    for fault in FAULTS:
        texts = {name: alone(fault, name) for name in TOOLS}
        print(f"| {fault.text} | " + " | ".join(mark(fault, text) for text in texts.values()) + " |", flush=True)
        if "--says" in sys.argv:
            print(*(f"--- {name}\n{text[-900:]}" for name, text in texts.items()), sep="\n")


if __name__ == "__main__":
    main()
