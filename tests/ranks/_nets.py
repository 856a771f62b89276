"""The model and the data that every cell of the table trains, and what a single process in float64 says of it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = 3
BATCH = 8
RATE = 0.05


class Block(nn.Module):
    def __init__(self, width: int, hidden: int, out: int) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))


class Net(nn.Module):
    """Two blocks; `recompute` checkpoints them."""

    def __init__(self, *, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.first, self.second = Block(4, 8, 6), Block(6, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (self.first, self.second):
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x


def net(*, recompute: bool = False) -> Net:
    torch.manual_seed(0)
    return Net(recompute=recompute)


def batches() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield torch.randn(BATCH, 4, generator=generator)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.float().square().mean() if output.dtype == torch.bfloat16 else output.square().mean()


def truth(*, steps: int = STEPS) -> list[dict[str, torch.Tensor]]:
    """By site, the tensors of each step of the whole batch, in float64, by torch's own means."""
    model = net().double()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    found = []
    for x in list(batches())[:steps]:
        seen: dict[str, torch.Tensor] = {}

        def keep(name: str, seen: dict[str, torch.Tensor] = seen):  # type: ignore[no-untyped-def]
            def hook(_module: nn.Module, _args: object, output: torch.Tensor) -> None:
                output.retain_grad()
                seen[name] = output

            return hook

        handles = [
            module.register_forward_hook(keep(name)) for name, module in model.named_modules() if isinstance(module, (nn.Linear, nn.ReLU))
        ]
        optimizer.zero_grad()
        loss = loss_of(model(x.double()))
        loss.backward()
        step = {"loss": loss.detach()}
        for name, tensor in seen.items():
            assert tensor.grad is not None
            step[f"{name}:output"], step[f"{name}:output_grad"] = tensor.detach(), tensor.grad
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            step[f"{name}:param"], step[f"{name}:param_grad"] = parameter.detach().clone(), parameter.grad.clone()
        optimizer.step()
        for name, parameter in model.named_parameters():
            step[f"{name}:update"] = parameter.detach() - step[f"{name}:param"]
        found.append(step)
        for handle in handles:
            handle.remove()
    return found
