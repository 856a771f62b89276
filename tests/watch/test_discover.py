"""Models are found as the program calls them, whole, before their first forward has run."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import hookscope as hs
from hookscope._record import Meta, RunWriter
from hookscope._watch import Discovery, Settings, discover

Program = Callable[..., hs.Run]


@pytest.fixture
def discovering(tmp_path: Path) -> Iterator[Callable[..., hs.Run]]:
    """Runs a program under discovery and returns what was recorded."""
    opened: list[Discovery] = []

    def run(program: Callable[[], object], select: object = "**") -> hs.Run:
        opened.append(discover(Settings(hs.select(select), on_finding="ignore"), RunWriter(tmp_path / "run", Meta())))
        program()
        opened[-1].close()
        return hs.Run(tmp_path / "run")

    before = [dict(hooks) for hooks in _global_hooks()]
    yield run
    for discovery in opened:
        discovery.close()
    assert [dict(hooks) for hooks in _global_hooks()] == before


def _global_hooks() -> list[dict[int, object]]:
    return [
        torch_module._global_forward_pre_hooks,
        torch_module._global_module_registration_hooks,
        torch_module._global_parameter_registration_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    ]


def sgd(*models: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)


def step(model: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer, x: torch.Tensor | None = None) -> None:
    optimizer.zero_grad()
    model(torch.ones(3, 2) if x is None else x).pow(2).mean().backward()
    optimizer.step()


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def present(run: hs.Run, step: int = 0) -> set[str]:
    """Names of the sites with a row at a step, without those of the step itself."""
    sites = [run.sites[number] for number in set(run.rows(step, step).site.tolist())]
    return {site.name for site in sites if site.kind not in ("loss", "scalar")}


def of_modules(*paths: str) -> set[str]:
    return {f"{path}:{kind}" for path in paths for kind in ("output", "output_grad")}


def of_parameters(*paths: str) -> set[str]:
    return {f"{path}:{kind}" for path in paths for kind in ("param", "param_grad", "update")}


WHOLE = (
    {"(root):input"}
    | of_modules("(root)", "0", "1", "2")
    | of_parameters(*(f"{layer}.{name}" for layer in (0, 2) for name in ("weight", "bias")))
)


def test_a_model_called_directly_is_complete_at_its_first_step(discovering: Program) -> None:
    def program() -> None:
        model = two_layers()
        optimizer = sgd(model)
        for _ in range(2):
            step(model, optimizer)

    run = discovering(program)
    assert run.steps.tolist() == [0, 1]
    assert present(run, 0) == present(run, 1) == WHOLE


def test_the_numbers_of_the_first_forward_are_right(discovering: Program) -> None:
    x = torch.randn(3, 2)
    model = two_layers()
    expected = model(x).double().pow(2).mean().sqrt().item()
    run = discovering(lambda: step(model, sgd(model), x))
    assert run["2:output", "rms"].values.tolist() == [pytest.approx(expected, rel=1e-6)]
    assert run["(root):input", "count"].values.tolist() == [6]


class GAN(nn.Module):
    """A holder that is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Identity(), nn.Linear(2, 1))


def test_networks_inside_a_holder_that_is_never_called_have_the_names_they_have_in_it(discovering: Program) -> None:
    def program() -> None:
        gan = GAN()
        of_d, of_g = sgd(gan.discriminator), sgd(gan.generator)
        step(lambda x: gan.discriminator(gan.generator(x).detach()), of_d)
        step(lambda x: gan.discriminator(gan.generator(x)), of_g)

    run = discovering(program)
    modules = {"generator", "generator.0", "generator.1", *(f"discriminator{tail}" for tail in ("", ".0", ".1", ".2", ".3"))}
    assert {site.path for site in run.sites if site.kind == "output"} == modules
    assert {f"{path}:output" for path in modules} <= present(run, 0)
    assert {"generator.1.weight:param_grad", "discriminator.3.bias:param_grad"} <= present(run, 0) | present(run, 1)
    assert {"generator:input", "discriminator:input"} <= present(run, 0)


def test_two_models_are_called_by_their_variables(discovering: Program) -> None:
    def program() -> None:
        encoder, decoder = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1))
        optimizer = sgd(encoder, decoder)
        for _ in range(2):
            step(lambda x: decoder(encoder(x)), optimizer)

    run = discovering(program)
    assert present(run, 0) == present(run, 1)
    assert of_modules("encoder", "decoder", "decoder.0") | of_parameters("encoder.weight", "decoder.0.bias") <= present(run, 0)


def test_a_model_kept_in_an_attribute_is_called_by_that(discovering: Program) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.network, self.critic = nn.Linear(2, 2), nn.Linear(2, 1)

        def fit(self) -> None:
            step(lambda x: self.critic(self.network(x)), sgd(self.network, self.critic))

    run = discovering(lambda: Trainer().fit())
    assert of_modules("network", "critic") <= present(run)


def test_two_models_of_one_variable_are_told_apart(discovering: Program) -> None:
    def program() -> None:
        for _ in range(2):
            net = nn.Linear(2, 1)
            step(net, sgd(net))

    run = discovering(program)
    assert {site.full_path for site in run.sites if site.kind == "output"} == {"net", "net2"}


class Wrapper(nn.Module):
    """Calls the module inside, as DistributedDataParallel does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


@pytest.mark.parametrize("wrap", [nn.DataParallel, Wrapper])
def test_a_wrapper_does_not_hide_the_model(wrap: Callable[[nn.Module], nn.Module], discovering: Program) -> None:
    def program() -> None:
        model = wrap(two_layers())
        step(model, sgd(model))

    found = present(discovering(program))
    if wrap is nn.DataParallel:
        assert found == WHOLE
    else:
        assert {"module.2:output", "module.0.weight:param_grad", "(root):output"} <= found


def test_losses_and_layers_without_parameters_are_no_models(discovering: Program) -> None:
    def program() -> None:
        net, criterion, squash = nn.Linear(2, 1), nn.MSELoss(), nn.Sequential(nn.Tanh(), nn.Flatten())
        optimizer = sgd(net)
        criterion(squash(torch.ones(3, 2, requires_grad=True)), torch.ones(3, 2)).backward()
        step(lambda x: criterion(squash(net(x)), torch.ones(3, 1)), optimizer)

    run = discovering(program)
    assert {site.path for site in run.sites if site.kind == "output"} == {""}


def test_a_model_made_long_after_another_began_is_complete_from_its_first_step_on(discovering: Program) -> None:
    def program() -> None:
        first = nn.Linear(2, 1)
        optimizer = sgd(first)
        for _ in range(100):
            step(first, optimizer)
        assert not torch_module._global_forward_pre_hooks  # it costs nothing any more
        second = two_layers()
        optimizer = sgd(second)
        for _ in range(2):
            step(second, optimizer)

    run = discovering(program)
    assert len(run.steps) == 102
    whole = of_modules("second", "second.0", "second.2") | of_parameters("second.0.weight")
    assert whole <= present(run, 100)
    assert whole <= present(run, 101)
    assert not any(name.startswith("second") for name in present(run, 99))


def test_a_model_that_has_waited_for_its_turn_is_found_when_an_optimizer_comes_with_it(discovering: Program) -> None:
    def program() -> None:
        first, waiting = nn.Linear(2, 1), two_layers()
        optimizer = sgd(first)
        for _ in range(50):
            step(first, optimizer)
        optimizer = sgd(waiting)
        for _ in range(3):
            step(waiting, optimizer)

    run = discovering(program)
    assert of_modules("waiting", "waiting.1") | of_parameters("waiting.2.bias") <= present(run, int(run.steps[-1]))


def test_a_head_put_on_later_is_watched_too(discovering: Program) -> None:
    def program() -> None:
        model = two_layers()
        step(model, sgd(model))
        model[2] = nn.Linear(4, 5)
        optimizer = sgd(model)
        for _ in range(3):
            step(model, optimizer)

    run = discovering(program)
    assert run.rows(3, 3).stats.shape[0] == len([*run.rows(0, 0).site])
    shapes = [site.shape for site in run.sites if site.name == "2.weight:param"]
    assert shapes[-1] in ((1, 4), (5, 4))
    assert "2:output" in present(run, 3)


def test_a_model_first_called_without_gradients_is_found_when_it_trains(discovering: Program) -> None:
    def program() -> None:
        model = two_layers()
        with torch.no_grad():
            model(torch.ones(3, 2))
        with torch.inference_mode():
            model(torch.ones(3, 2))
        step(model, sgd(model))

    run = discovering(program)
    assert run.steps.tolist() == [0]
    assert present(run) == WHOLE


def test_a_model_that_only_evaluates_is_no_model_of_the_training(discovering: Program) -> None:
    def program() -> None:
        student, teacher = nn.Linear(2, 1), nn.Linear(2, 1)
        with torch.no_grad():
            teacher(torch.ones(3, 2))
        step(student, sgd(student))

    assert {site.path for site in discovering(program).sites if site.kind == "output"} == {""}


def test_looking_for_a_name_keeps_nothing_alive_and_leaves_the_result_of_locals_alone(discovering: Program) -> None:
    def train(lr: float) -> dict[str, object]:
        settings = locals()
        net = nn.Linear(2, 1)
        step(net, sgd(net))
        return settings

    def program() -> None:
        assert train(0.1) == {"lr": 0.1}
        big = two_layers()
        gone = weakref.ref(big)
        net = nn.Linear(2, 1)
        step(net, sgd(net))
        del big
        gc.collect()
        assert gone() is None

    discovering(program)


def test_a_selection_that_matches_nothing_is_one_warning_with_near_misses(discovering: Program) -> None:
    def program() -> None:
        model = two_layers()
        steps = partial(step, model, sgd(model))
        with pytest.warns(hs.HookscopeWarning, match=r"no site matches '0\.wieght': did you mean '0\.weight'\?") as caught:
            steps()
        steps()  # a second warning would be an error
        assert len(caught) == 1
        assert caught[0].filename == __file__

    run = discovering(program, ["0.wieght", "1:output"])
    assert present(run) == {"1:output"}


@pytest.mark.slow
def test_a_transformer_in_a_hand_written_loop_is_found_whole(discovering: Program) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    def program() -> None:
        config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
        bert = BertForSequenceClassification(config)
        optimizer = torch.optim.AdamW(bert.parameters(), lr=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            bert(input_ids=torch.ones(2, 5, dtype=torch.long), labels=torch.tensor([0, 1])).loss.backward()
            optimizer.step()

    run = discovering(program)
    assert present(run, 0) == present(run, 1)
    assert {"(root):output.logits", "bert.encoder.layer.1.output.dense:output_grad", "classifier.bias:update"} <= present(run, 0)
    assert {"(root):input.input_ids"} <= present(run, 0)
