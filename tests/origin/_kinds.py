"""Small trainings with a fault as people make it: each goes wrong at one step, at the line marked `# fault`, and is sound without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Kind:
    """`loss` of one step, which goes wrong if `bad`; where the first finding has to point to: `module` None is outside the model."""

    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, bool], torch.Tensor]
    module: str | None
    op: str
    phase: str = "forward"


class Row(nn.Module):
    """A layer between two, given what it is to do with the activations and, if bad, with a second tensor."""

    def __init__(self, act: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 8), Act(act), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x), other))


class Act(nn.Module):
    """Whatever it was given to do."""

    def __init__(self, act: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.act = act
        self.register_buffer("gain", torch.ones(()))

    def forward(self, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.act(h, other)


def inside(act: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], other: Callable[[bool], torch.Tensor], op: str, phase: str) -> Kind:
    """A fault in the middle layer, whose second input `other` makes it go wrong."""
    return Kind(lambda: Row(act), lambda m, bad: m(torch.randn(5, 6), other(bad)).square().mean(), "act", op, phase)


def outside(loss: Callable[[torch.Tensor, bool], torch.Tensor], op: str, phase: str = "forward") -> Kind:
    """A fault in what the loss does with the output of a sound model."""
    return Kind(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), lambda m, bad: loss(m(torch.randn(5, 6)), bad), None, op, phase
    )


def padded(bad: bool) -> torch.Tensor:
    """A mask of 5 rows of which one is empty."""
    keep = torch.ones(5, 8, dtype=torch.bool)
    keep[:, 5:] = False
    keep[2] = not bad
    return keep


class Root(torch.autograd.Function):
    """A derivative that is not what it should be at 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / ctx.saved_tensors[0]  # fault


class Recurrent(nn.Module):
    """Its state grows at each step of time."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.weight, self.out = nn.Linear(3, 8), nn.Parameter(torch.eye(8) * 1.8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(len(x), 8)
        for t in range(x.shape[1]):
            h = torch.relu(self.given(x[:, t]) + h @ self.weight)  # fault
        return self.out(h / (1 + h.detach().abs().amax()))


class Half(nn.Module):
    """Parameters of 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8).half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.fc(x.half()) ** 2).sum(-1)  # fault


class Words(nn.Module):
    """A mean over the words that are no padding, written over in place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        weight = (ids != 0).float()
        weight /= weight.sum(1, keepdim=True)  # fault
        return self.head((self.embed(ids) * weight[..., None]).sum(1))


class Attention(nn.Module):
    """torch's own, of which one sample is padding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
        return self.head(self.attn(x, x, x, key_padding_mask=pad)[0])  # fault


class Checkpointed(nn.Module):
    """Three blocks that run once more in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Act(lambda h, s: h + torch.tanh(h) * (s / s)) for _ in range(3)]), nn.Linear(6, 1)  # fault

    def forward(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        for block, scale in zip(self.blocks, scales, strict=True):
            x = checkpoint(block, x, scale, use_reentrant=False)
        return self.head(x)


class Actor(nn.Module):
    """Logits of which those of forbidden moves are masked."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).masked_fill(torch.tensor([False, False, True, False]), float("-inf"))


def ids(bad: bool) -> torch.Tensor:
    """Words, of which one sample has none."""
    found = torch.randint(1, 9, (5, 7))
    found[3] *= not bad
    return found


def to(value: float, otherwise: float = 1.0) -> Callable[[bool], torch.Tensor]:
    """A number that is bad or not."""
    return lambda bad: torch.tensor(value if bad else otherwise)


LABELS = torch.tensor([0, 1, 2, 0, 1])
KINDS: dict[str, Kind] = {
    "softmax over a masked row": inside(
        lambda h, keep: h.masked_fill(~keep, float("-inf")).softmax(-1),  # fault
        *(padded, "_softmax", "forward"),
    ),
    "exp of a large log-variance": inside(lambda h, s: h * torch.exp(s * h.abs()), to(1e4, 0.1), "exp", "forward"),  # fault
    "a unit vector of nothing": inside(lambda h, s: (h * s) / (h * s).norm(dim=-1, keepdim=True), to(0.0), "div", "forward"),  # fault
    "a spread of one": inside(lambda h, n: h - h[: int(n)].square().sum(0) / (n - 1), to(1.0, 5.0), "div", "forward"),  # fault
    "in place": inside(lambda h, s: h.clone().div_(s), to(0.0), "div_", "forward"),  # fault
    "a power at 0": inside(lambda h, s: (h * s).abs().pow(0.3), to(0.0), "pow", "backward"),  # fault
    "a root at 0": inside(lambda h, s: torch.sqrt((h * s).square().sum(-1, keepdim=True)) + h, to(0.0), "sqrt", "backward"),  # fault
    "a branch that is not taken": inside(
        lambda h, s: torch.where(h * s != 0, torch.log((h * s).abs()), h),  # fault
        *(to(0.0), "log", "backward"),
    ),
    "a derivative of one's own": inside(lambda h, s: Root.apply(h * s), to(0.0), "Root", "backward"),
    "a state that grows with time": Kind(
        Recurrent, lambda m, bad: m(torch.randn(4, 200 if bad else 10, 3)).square().mean(), "(root)", "mm"
    ),
    "16 bits": Kind(Half, lambda m, bad: m(torch.randn(5, 6) * (3e3 if bad else 1)).float().mean(), "(root)", "pow"),
    "a mean over no word": Kind(Words, lambda m, bad: F.cross_entropy(m(ids(bad)), LABELS), "(root)", "div_"),
    "attention to nothing": Kind(Attention, lambda m, bad: m(torch.randn(5, 8, 8), ~padded(bad)).square().mean(), "attn", "_softmax"),
    "a checkpointed block": Kind(
        Checkpointed, lambda m, bad: m(torch.randn(5, 6), torch.tensor([1.0, not bad, 1.0])).square().mean(), "blocks.1", "div"
    ),
    "a forbidden move as target": Kind(
        Actor,
        lambda m, bad: F.cross_entropy(m(torch.randn(5, 6)), LABELS.clamp(max=1) + (LABELS == 2) * bad),  # fault
        *(None, "nll_loss_forward"),
    ),
    "log of a softmax": outside(lambda y, bad: -torch.log(torch.softmax(y * (1e4 if bad else 1), 1)).mean(), "log"),  # fault
    "every target ignored": outside(
        lambda y, bad: F.cross_entropy(y, LABELS * 0 - 100 if bad else LABELS),  # fault
        "nll_loss_forward",
    ),
    "a batch that counts 0": outside(
        lambda y, bad: y.sum() / ((LABELS >= 0).sum() * (not bad)),  # fault
        "div",
    ),
    "a divergence with 0": outside(
        lambda y, bad: (F.one_hot(LABELS, 3) * (F.one_hot(LABELS, 3).clamp(min=0 if bad else 1).log() - y.log_softmax(1))).mean(),  # fault
        "log",
    ),
    "a distance of 0": outside(lambda y, bad: (y - (y.detach() if bad else 0)).square().sum(1).sqrt().mean(), "sqrt", "backward"),  # fault
    "an angle of 0": outside(lambda y, bad: torch.acos(y * 0 + (1.0 if bad else 0.5)).mean(), "acos", "backward"),  # fault
    "a cosine with 0": outside(lambda y, bad: (y.sum(1) / (y.norm(dim=1) * LABELS.float().mul(not bad).norm())).mean(), "div"),  # fault
    "a logarithm in the discriminator's loss": outside(
        lambda y, bad: -torch.log(1 - torch.sigmoid(y + (99.0 if bad else 0.0))).mean(),  # fault
        "log",
    ),
    "a rate of Poisson": outside(lambda y, bad: torch.exp(y.abs() * (1e4 if bad else 0.1)).mean(), "exp"),  # fault
}
