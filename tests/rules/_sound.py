"""Sound trainings that a rule on leaps could mistake for sick ones: each is a step, called again and again, and what is to be watched."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as f

from ._sound_models import Experts, LayerDrop, Masked, Recurrent, Rezero, Scheduled, batch, mlp


@dataclass
class Sound:
    model: nn.Module | dict[str, nn.Module]
    step: Callable[[int], None]


def classified(model: nn.Module, optimizer: torch.optim.Optimizer, before: Callable[[int], None] = lambda step: None) -> Sound:
    def step(number: int) -> None:
        before(number)
        x, label = batch()
        optimizer.zero_grad()
        f.cross_entropy(model(x), label).backward()
        optimizer.step()

    return Sound(model, step)


def scheduled(factor: Callable[[int], float], lr: float = 0.1) -> Sound:
    model = mlp()
    sgd = torch.optim.SGD(model.parameters(), lr, momentum=0.9)

    def set_rate(step: int) -> None:
        sgd.param_groups[0]["lr"] = lr * factor(step)

    return classified(model, sgd, set_rate)


def tiny_start() -> Sound:
    """A last layer that begins at next to nothing, and wakes up."""
    model = mlp(nn.Tanh())
    nn.init.normal_(model[-1].weight, std=1e-7)  # type: ignore[arg-type]
    return classified(model, torch.optim.Adam(model.parameters(), 1e-2))


def gan() -> Sound:
    models = nn.ModuleDict({"g": mlp(nn.LeakyReLU(0.2)), "d": nn.Sequential(nn.Linear(4, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))})
    optimizers = [torch.optim.Adam(m.parameters(), 2e-3, betas=(0.5, 0.9)) for m in models.values()]

    def step(_: int) -> None:
        fake = models["g"](torch.randn(16, 8))
        real = torch.randn(16, 4) * 0.5 + 2
        optimizers[1].zero_grad()
        (f.softplus(-models["d"](real)).mean() + f.softplus(models["d"](fake.detach())).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        f.softplus(-models["d"](fake)).mean().backward()
        optimizers[0].step()

    return Sound(dict(models.items()), step)


def wgan() -> Sound:
    sound = gan()
    critic = sound.model["d"]  # type: ignore[index]

    def step(number: int) -> None:
        sound.step(number)
        for p in critic.parameters():
            p.data.clamp_(-0.1, 0.1)

    return Sound(sound.model, step)


def rare_reward() -> Sound:
    policy = mlp(nn.Tanh())
    adam = torch.optim.Adam(policy.parameters(), 3e-3)

    def step(_: int) -> None:
        choice = torch.distributions.Categorical(logits=policy(torch.randn(8, 8)))
        action = choice.sample()
        reward = ((torch.rand(8) < 0.02) & (action == 0)).float() * 10
        adam.zero_grad()
        (-(choice.log_prob(action) * reward).mean() - 1e-3 * choice.entropy().mean()).backward()
        adam.step()

    return Sound(policy, step)


def values() -> Sound:
    """A value function whose targets begin near 0 and become large with the first success."""
    net = mlp()
    adam = torch.optim.Adam(net.parameters(), 1e-3)

    def step(number: int) -> None:
        target = torch.full((16, 4), 100.0) if number > 30 and number % 7 == 0 else torch.zeros(16, 4)
        adam.zero_grad()
        f.mse_loss(net(torch.randn(16, 8)), target).backward()
        adam.step()

    return Sound(net, step)


def q_learning() -> Sound:
    net = mlp()
    target = copy.deepcopy(net)
    adam = torch.optim.Adam(net.parameters(), 1e-3)

    def step(number: int) -> None:
        if number % 10 == 0:
            target.load_state_dict(net.state_dict())
        x, action = batch()
        with torch.no_grad():
            wanted = 0.9 * target(torch.randn(16, 8)).max(1).values + (torch.rand(16) < 0.1).float()
        adam.zero_grad()
        f.smooth_l1_loss(net(x).gather(1, action[:, None])[:, 0], wanted).backward()
        adam.step()

    return Sound(net, step)


def clipped() -> Sound:
    model = Recurrent()
    adam = torch.optim.Adam(model.parameters(), 1e-2)

    def step(_: int) -> None:
        x, label = batch()
        adam.zero_grad()
        f.cross_entropy(model(x), label).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        adam.step()

    return Sound(model, step)


def faded() -> Sound:
    model = Scheduled()
    adam = torch.optim.Adam(model.parameters(), 3e-3)

    def fade(step: int) -> None:
        model.share = max(0.0, 1 - step / 30)

    return classified(model, adam, fade)


def vae() -> Sound:
    encoder, decoder = nn.Linear(8, 8), nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 8))
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    adam = torch.optim.Adam(model.parameters(), 3e-3)

    def step(_: int) -> None:
        x, _label = batch()
        mean, log = encoder(x).chunk(2, -1)
        back = decoder(mean + torch.randn_like(mean) * (0.5 * log).exp())
        adam.zero_grad()
        (f.mse_loss(back, x) + 0.1 * (mean.square() + log.exp() - log - 1).mean()).backward()
        adam.step()

    return Sound(dict(model.items()), step)


def hinge() -> Sound:
    """Separable: from some step on the loss, and so every gradient, is exactly 0 now and then."""
    model = nn.Linear(8, 4)
    sgd = torch.optim.SGD(model.parameters(), 0.5)

    def step(_: int) -> None:
        label = torch.randint(4, (8,))
        sgd.zero_grad()
        f.multi_margin_loss(model(3 * f.one_hot(label, 8).float() + 0.1 * torch.randn(8, 8)), label).backward()
        sgd.step()

    return Sound(model, step)


def contrastive() -> Sound:
    model = nn.ModuleDict({"a": nn.Linear(8, 16), "b": nn.Linear(8, 16)})
    scale = nn.Parameter(torch.tensor(2.6))
    adam = torch.optim.Adam([*model.parameters(), scale], 1e-2)

    def step(_: int) -> None:
        x, _label = batch()
        a, b = (f.normalize(model[k](x + 0.1 * torch.randn_like(x)), dim=-1) for k in "ab")
        adam.zero_grad()
        f.cross_entropy(scale.exp() * a @ b.T, torch.arange(16)).backward()
        adam.step()

    return Sound(dict(model.items()), step)


def accumulated() -> Sound:
    model = mlp(nn.GELU())
    adam = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(_: int) -> None:
        adam.zero_grad()
        for _micro in range(3):
            x, label = batch()
            (f.cross_entropy(model(x), label) / 3).backward()
        adam.step()

    return Sound(model, step)


def low_precision() -> Sound:
    model = mlp(nn.GELU())
    adam = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(_: int) -> None:
        x, label = batch()
        adam.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = f.cross_entropy(model(x), label)
        loss.backward()
        adam.step()

    return Sound(model, step)


def thawed() -> Sound:
    """The body is frozen at first."""
    model = mlp()
    adam = torch.optim.Adam(model.parameters(), 1e-3)

    def thaw(step: int) -> None:
        if step in (0, 30):
            model[:-1].requires_grad_(step == 30)

    return classified(model, adam, thaw)


def harder_data() -> Sound:
    """A curriculum: the inputs become ten times as large."""
    model = mlp()
    sgd = torch.optim.SGD(model.parameters(), 1e-3)

    def step(number: int) -> None:
        x, label = batch()
        sgd.zero_grad()
        f.cross_entropy(model(x * (10.0 if number > 30 else 1.0)), label).backward()
        sgd.step()

    return Sound(model, step)


def words() -> Sound:
    model = nn.Sequential(nn.EmbeddingBag(200, 16, sparse=True), nn.Linear(16, 4))
    sgd = torch.optim.SGD(model.parameters(), 0.1)

    def step(_: int) -> None:
        token = (torch.rand(8, 5) ** 4 * 200).long()
        sgd.zero_grad()
        f.cross_entropy(model(token), token[:, 0] % 4).backward()
        sgd.step()

    return Sound(model, step)


def normed() -> Sound:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.8), nn.Linear(16, 4))
    return classified(model, torch.optim.SGD(model.parameters(), 0.3))


def plain(model: nn.Module, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam, **how: float) -> Sound:
    return classified(model, optimizer(model.parameters(), **(how or {"lr": 3e-3})))


SOUND: dict[str, Callable[[], Sound]] = {
    "warm-up": lambda: scheduled(lambda step: min(1.0, (step + 1) / 20)),
    "steps of the learning rate": lambda: scheduled(lambda step: 0.1 ** (step // 20)),
    "warm restarts": lambda: scheduled(lambda step: 1.0 if step % 15 == 0 else 0.05),
    "residuals that begin at 0": lambda: plain(Rezero()),
    "a layer that begins at next to nothing": tiny_start,
    "deep, without normalisation": lambda: plain(mlp(depth=12)),
    "deep sigmoids": lambda: plain(mlp(nn.Sigmoid(), depth=5)),
    "adversaries": gan,
    "adversaries with clipped weights": wgan,
    "a rare reward": rare_reward,
    "values that become large": values,
    "q-learning": q_learning,
    "recurrent, clipped": clipped,
    "a mask that comes late": lambda: plain(Masked()),
    "dropped layers": lambda: plain(LayerDrop()),
    "experts": lambda: plain(Experts()),
    "a branch that is faded out": faded,
    "variational": vae,
    "hinge": hinge,
    "contrastive": contrastive,
    "accumulated": accumulated,
    "bfloat16": low_precision,
    "frozen at first": thawed,
    "a curriculum": harder_data,
    "rare words": words,
    "batch norm, much dropout": normed,
    "momentum": lambda: plain(mlp(depth=1), torch.optim.SGD, lr=0.03, momentum=0.9),
}
