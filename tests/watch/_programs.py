"""Small seeded trainings, each of a kind that a careless observer changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

Make = Callable[[], "Training"]


@dataclass
class Training:
    """`step` runs one step and returns the loss that the program would print."""

    model: Any  # as `watch` takes it
    optimizers: list[torch.optim.Optimizer]
    step: Callable[[int], torch.Tensor]
    scaler: torch.amp.GradScaler | None = None
    others: list[nn.Module] = field(default_factory=list)

    @property
    def models(self) -> list[nn.Module]:
        return [self.model] if isinstance(self.model, nn.Module) else list(self.model)


def draw(*shape: int) -> torch.Tensor:
    """A batch for which all three random generators are asked."""
    noise = torch.from_numpy(np.random.standard_normal(shape)).float()  # noqa: NPY002  # the global generator is what must not be disturbed
    return torch.randn(shape) + 0.1 * noise + 0.01 * random.random()


def supervised(model: nn.Module, shape: tuple[int, ...], *, micros: int = 1, **optimizer: Any) -> Training:
    adam = torch.optim.AdamW(model.parameters(), lr=0.01, **optimizer)

    def step(number: int) -> torch.Tensor:
        adam.zero_grad()
        total = torch.zeros(())
        for _ in range(micros):
            batch = draw(*shape)
            loss = model(batch).square().mean() + 0.1 * batch.mean()
            (loss / micros).backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        adam.step()
        return total

    return Training(model, [adam], step)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3))


def cnn() -> nn.Sequential:
    first = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout2d(0.2), nn.MaxPool2d(2)]
    return nn.Sequential(*first, nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 3))


class Attention(nn.Module):
    """Its input goes to q, k and v: whether their gradients are summed before the residual's is added shows in the bits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = (self.q(x) @ self.k(x).transpose(-1, -2) / x.shape[-1] ** 0.5).softmax(-1)
        return self.out(weights @ self.v(x))


class Block(nn.Module):
    def __init__(self, width: int, *, pre: bool) -> None:
        super().__init__()
        self.pre = pre
        self.attention = Attention(width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.pre:
            x = x + self.attention(self.norm1(x))
            return x + self.ff(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.ff(x))


def blocks(*, pre: bool) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), *(Block(8, pre=pre) for _ in range(3)))


def torch_encoder(*, pre: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=pre)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 6, num_layers=2, dropout=0.2, bidirectional=True, batch_first=True)
        self.cell = nn.GRUCell(12, 4)  # called once for each time step
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, [4, 3, 2], batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        state = torch.zeros(len(x), 4)
        for t in range(out.shape[1]):
            state = self.cell(out[:, t], state)
        return self.head(state)


def gan(*, holder: bool) -> Training:
    generator, critic = (
        nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)),
        nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1)),
    )
    first, second = (torch.optim.Adam(net.parameters(), lr=0.01) for net in (generator, critic))

    def step(number: int) -> torch.Tensor:
        fake = generator(draw(5, 3))
        second.zero_grad()
        told = (critic(draw(5, 4)) - 1).square().mean() + critic(fake.detach()).square().mean()
        told.backward()
        second.step()
        first.zero_grad()
        fooled = (critic(fake) - 1).square().mean()
        fooled.backward()
        first.step()
        return torch.stack([told.detach(), fooled.detach()])

    model: Any = nn.ModuleDict({"generator": generator, "critic": critic}) if holder else [generator, critic]
    return Training(model, [first, second], step)


def autocast_bf16() -> Training:
    model = nn.Sequential(*blocks(pre=True), nn.Linear(8, 3))
    adam = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(number: int) -> torch.Tensor:
        adam.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(draw(4, 5, 8)).float().square().mean()
        loss.backward()
        adam.step()
        return loss.detach()

    return Training(model, [adam], step)


def scaled_fp16() -> Training:
    """The third step overflows: the scaler skips it and halves its scale."""
    model = mlp()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)

    def step(number: int) -> torch.Tensor:
        sgd.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(draw(4, 6)).float().square().mean() * (1e38 if number == 2 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(sgd)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(sgd)
        scaler.update()
        return loss.detach()

    return Training(model, [sgd], step, scaler)


class Checkpointed(nn.Module):
    """Blocks that are run again in the backward, in one of torch's ways of doing so."""

    def __init__(self, around: Callable[..., torch.Tensor], inside: nn.Sequential) -> None:
        super().__init__()
        self.around = around
        self.stem, self.blocks = nn.Linear(8, 8), inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = self.around(block, x)
        return x


def nested(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: checkpoint(block, y, use_reentrant=False) + y, x, use_reentrant=False)


def selective(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operation is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE

    return checkpoint(block, x, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, policy))


class Summing(nn.Module):
    """Uses the sum of what its child returns, as statistics of it would."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.inner(x)
        return torch.tanh(inner * inner.sum() + inner.square().sum() + inner.detach().isnan().sum())


def saving_all(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Every operation's result is kept for the second pass, which takes them from a list."""

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE

    return checkpoint(block, x, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, policy))


def closures() -> Training:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def step(number: int) -> torch.Tensor:
        batch, target = draw(6, 4), draw(6, 2)

        def closure() -> torch.Tensor:
            lbfgs.zero_grad()
            loss = mse_loss(model(batch), target)
            loss.backward()
            return loss

        return torch.as_tensor(lbfgs.step(closure))

    return Training(model, [lbfgs], step)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.abs().mul(100).long() % 7
        return self.head(self.body(self.body(self.embed(tokens))))


def parametrized() -> nn.Module:
    return nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(5, 6)),
        nn.ReLU(inplace=True),
        parametrizations.weight_norm(nn.Linear(6, 6)),
        parametrizations.orthogonal(nn.Linear(6, 6)),
        nn.utils.spectral_norm(nn.Linear(6, 3)),  # the older kind: a forward pre-hook that writes buffers
    )


def checkpointed(around: Callable[..., torch.Tensor]) -> Make:
    return lambda: supervised(Checkpointed(around, blocks(pre=False)[1:]), (3, 4, 8))


PROGRAMS: dict[str, Make] = {
    "mlp": lambda: supervised(mlp(), (5, 6)),
    "cnn": lambda: supervised(cnn(), (3, 2, 8, 8)),
    "pre-norm": lambda: supervised(blocks(pre=True), (3, 4, 8)),
    "post-norm": lambda: supervised(blocks(pre=False), (3, 4, 8)),
    "torch pre-norm": lambda: supervised(torch_encoder(pre=True), (3, 4, 8)),
    "torch post-norm": lambda: supervised(torch_encoder(pre=False), (3, 4, 8)),
    "recurrent": lambda: supervised(Recurrent(), (3, 4, 5)),
    "gan in one holder": lambda: gan(holder=True),
    "gan of two models": lambda: gan(holder=False),
    "accumulation": lambda: supervised(mlp(), (5, 6), micros=3),
    "bf16 autocast": autocast_bf16,
    "fp16 scaler": scaled_fp16,
    "re-entrant checkpoint": checkpointed(partial(checkpoint, use_reentrant=True)),
    "checkpoint": checkpointed(partial(checkpoint, use_reentrant=False)),
    "nested checkpoint": checkpointed(nested),
    "selective checkpoint": checkpointed(selective),
    "all-saving checkpoint": lambda: supervised(Checkpointed(saving_all, nn.Sequential(Summing(), Summing())), (3, 8)),
    "lbfgs": closures,
    "tied": lambda: supervised(Tied(), (3, 5)),
    "parametrized": lambda: supervised(parametrized(), (4, 5)),
}
