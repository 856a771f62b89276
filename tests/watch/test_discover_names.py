"""Models that were found have the names that the program gives them, and looking for those leaves no trace."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from torch import nn

from ._discovering import discovered, of_modules, of_parameters, present, sgd, step, two_layers


class GAN(nn.Module):
    """A holder that is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Identity(), nn.Linear(2, 1))


def test_networks_inside_a_holder_that_is_never_called_have_the_names_they_have_in_it(tmp_path: Path) -> None:
    def program() -> None:
        gan = GAN()
        of_d, of_g = sgd(gan.discriminator), sgd(gan.generator)
        step(lambda x: gan.discriminator(gan.generator(x).detach()), of_d)
        step(lambda x: gan.discriminator(gan.generator(x)), of_g)

    run = discovered(tmp_path, program)
    modules = {"generator", "generator.0", "generator.1", *(f"discriminator{tail}" for tail in ("", ".0", ".1", ".2", ".3"))}
    assert {site.path for site in run.sites if site.kind == "output"} == modules
    assert {f"{path}:output" for path in modules} <= present(run, 0)
    assert {"generator.1.weight:param_grad", "discriminator.3.bias:param_grad"} <= present(run, 0) | present(run, 1)
    assert {"generator:input", "discriminator:input"} <= present(run, 0)


def test_two_models_are_called_by_their_variables(tmp_path: Path) -> None:
    def program() -> None:
        encoder, decoder = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1))
        optimizer = sgd(encoder, decoder)
        for _ in range(2):
            step(lambda x: decoder(encoder(x)), optimizer)

    run = discovered(tmp_path, program)
    assert present(run, 0) == present(run, 1)
    assert of_modules("encoder", "decoder", "decoder.0") | of_parameters("encoder.weight", "decoder.0.bias") <= present(run, 0)


def test_a_model_kept_in_an_attribute_is_called_by_that(tmp_path: Path) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.network, self.critic = nn.Linear(2, 2), nn.Linear(2, 1)

        def fit(self) -> None:
            step(lambda x: self.critic(self.network(x)), sgd(self.network, self.critic))

    run = discovered(tmp_path, lambda: Trainer().fit())
    assert of_modules("network", "critic") <= present(run)


def test_two_models_of_one_variable_are_told_apart(tmp_path: Path) -> None:
    def program() -> None:
        for _ in range(2):
            net = nn.Linear(2, 1)
            step(net, sgd(net))

    run = discovered(tmp_path, program)
    assert {site.full_path for site in run.sites if site.kind == "output"} == {"net", "net2"}


def test_looking_for_a_name_keeps_nothing_alive_and_leaves_the_result_of_locals_alone(tmp_path: Path) -> None:
    seen: list[object] = []

    def train(lr: float) -> dict[str, object]:
        settings = locals()
        net = nn.Linear(2, 1)
        step(net, sgd(net))
        return settings

    def program() -> None:  # without an assert of its own: pytest would put a call of locals() in
        seen.append(train(0.1))
        big = two_layers()
        gone = weakref.ref(big)
        net = nn.Linear(2, 1)
        step(net, sgd(net))
        del big
        gc.collect()
        seen.append(gone())

    discovered(tmp_path, program)
    assert seen == [{"lr": 0.1}, None]
