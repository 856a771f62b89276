"""What a watch did not see, on small trainings that each hide something from hooks, and on sound twins that hide nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import hookscope as hs
from hookscope._record import MemoryWriter, Run

from ._hiding import BATCH, Forward, Net, blind, missed, watched


class Holder(nn.Module):
    """Only keeps a layer; nobody can call it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = nn.Linear(4, 4)


def one_by_one(net: Net, x: torch.Tensor) -> torch.Tensor:
    for layer in [*net.plain, *net.listed, net.holder.kept]:  # type: ignore[misc,union-attr]
        x = layer(x)
    return x


def test_a_sound_training_hides_nothing_even_where_its_containers_are_taken_apart() -> None:
    model = Net(one_by_one, plain=nn.Sequential(nn.Linear(4, 4), nn.ReLU()), listed=nn.ModuleList([nn.Linear(4, 4)]), holder=Holder())
    assert missed(watched(model)) == {}


def test_the_out_proj_of_an_attention_is_used_without_being_called() -> None:
    model = Net(lambda net, x: net.attend(x, x, x)[0], attend=nn.MultiheadAttention(4, 2))
    found = blind(watched(model))
    assert missed(watched(model)) == {"functional": ["attend.out_proj"]}
    assert (found["functional"].module, found["functional"].phase, found["functional"].first_step) == ("attend.out_proj", "forward", 0)
    assert "never called though its parameters get gradients" in found["functional"].message


@pytest.mark.parametrize(
    "how",
    [lambda net, x: functional.linear(x, net.other.weight, net.other.bias), lambda net, x: net.other.forward(x)],
    ids=["weight", "forward"],
)
def test_a_layer_whose_weight_or_forward_is_used_is_known_by_its_gradients(how: Callable[[Net, torch.Tensor], torch.Tensor]) -> None:
    assert missed(watched(Net(how, other=nn.Linear(4, 4)))) == {"functional": ["other"]}


def test_of_an_unused_block_the_block_is_named_and_all_of_it_counted() -> None:
    model = Net(lambda net, x: x, spare=nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    run = watched(model)
    assert missed(run) == {"unused": ["spare"], "unknown": ["spare.1"]}  # 4 * 4 + 4 + 4 * 2 + 2 = 30
    assert blind(run)["unused"].message.startswith("spare: 3 modules with 30 parameters were never called and got no gradient")


def test_of_a_frozen_layer_nobody_can_tell_whether_its_weight_is_used() -> None:
    frozen = nn.Linear(4, 4).requires_grad_(False)
    assert missed(watched(Net(lambda net, x: functional.linear(x, net.other.weight), other=frozen))) == {"frozen": ["other"]}


def test_a_module_without_parameters_leaves_no_trace() -> None:
    run = watched(Net(lambda net, x: functional.relu(x), relu=nn.ReLU()))
    assert missed(run) == {"unknown": ["relu"]}
    assert blind(run)["unknown"].advice == ("call the module instead of its function, or remove it",)


def test_a_head_for_evaluation_is_told_from_one_that_is_never_used() -> None:
    model = Net(lambda net, x: x if net.training else net.head(x), head=nn.Linear(4, 4), spare=nn.Linear(4, 4))

    def forward(x: torch.Tensor) -> torch.Tensor:
        model.eval()
        with torch.no_grad():
            model(x)
        return model.train()(x)

    assert missed(watched(model, forward)) == {"evaluated": ["head"], "unused": ["spare"]}


def test_a_method_other_than_the_call_passes_the_model_by() -> None:
    model = Net(lambda net, x: x)
    run = watched(model, model.forward)
    assert missed(run) == {"bypassed": ["(root)"]}
    assert "first:output" in {site.name for site in run.sites}


def scripted(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*deprecated.*", DeprecationWarning)
        script: nn.Module = torch.jit.script(module)
    return script


def test_a_scripted_child_takes_no_hook() -> None:
    run = watched(nn.Sequential(nn.Linear(4, 4), scripted(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))))
    assert missed(run) == {"unhookable": ["1"]}
    assert blind(run)["unhookable"].message.startswith("1: 3 scripted modules take no hooks")


def test_what_is_never_called_is_named_beside_a_scripted_child() -> None:
    model = Net(lambda net, x: net.script(x), script=scripted(nn.Linear(4, 4)), never=nn.Linear(4, 4))  # type: ignore[operator,return-value]
    found = missed(watched(model))
    assert found["unhookable"] == ["script"]
    assert ["never"] in found.values()


def written(x: torch.Tensor) -> torch.Tensor:
    x += 1
    return x


def written_unseen(x: torch.Tensor) -> torch.Tensor:
    x.detach().add_(1)
    return x


def used_before(x: torch.Tensor) -> torch.Tensor:
    y = 2 * x
    x += 1
    KEPT[:] = [x]
    return y


KEPT: list[torch.Tensor] = []
LOST = {"lost_gradients": ["flat"]}


@pytest.mark.parametrize(
    ("change", "lost"),
    [(written, LOST), (written_unseen, LOST), (lambda x: x + 1, {}), (lambda x: written(x.clone()), {}), (used_before, {})],
    ids=["in place", "behind autograd", "out of place", "cloned", "used before"],
)
def test_a_view_that_is_written_to_loses_its_gradient_and_only_then_is_it_said(change: Forward, lost: dict[str, list[str]]) -> None:
    model = Net(lambda net, x: change(net.flat(x)), flat=nn.Flatten(0))
    run = watched(model)
    assert missed(run) == lost
    assert len(run["flat:output_grad"].values) == (0 if lost else 2)


def test_a_view_that_the_loss_does_not_use_has_no_gradient_to_lose() -> None:
    def aside(net: Net, x: torch.Tensor) -> torch.Tensor:
        KEPT[:] = [net.flat(x)]
        return x

    run = watched(Net(aside, flat=nn.Flatten(0)))
    assert missed(run) == {}
    assert len(run["flat:output_grad"].values) == 0


def test_a_view_written_to_inside_the_model_is_known_when_the_next_layer_keeps_it() -> None:
    model = Net(lambda net, x: net.last(written(net.flat(x))), flat=nn.Flatten(0), last=nn.Linear(16, 1))
    found = blind(watched(model))["lost_gradients"]
    assert (found.evidence["modules"], found.phase) == (["flat"], "backward")


def test_a_model_mapped_over_samples_is_inside_a_transform() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    run = watched(model, torch.vmap(model))
    assert missed(run) == {"skipped_transforms": ["(root)"]}
    assert run["0.weight:param_grad", "rms"].values.min() > 0


@pytest.mark.parametrize("trained", [True, False])
def test_modules_in_a_plain_list_are_behind_the_loss_and_in_no_model(trained: bool) -> None:
    hidden = [nn.Linear(4, 4)]
    run = watched(Net(lambda net, x: hidden[0](x)), also=list(hidden[0].parameters()) if trained else None)
    assert missed(run) == {"hidden_parameters": ["Linear.weight", "Linear.bias"]}
    found = blind(run)["hidden_parameters"]
    assert "2 parameters of no watched model" in found.message
    assert found.advice[0] == "keep modules in nn.ModuleList or nn.ModuleDict"


def test_the_257th_call_of_a_module_is_counted_as_lost() -> None:
    cell = nn.Linear(4, 4)

    def unrolled(net: Net, x: torch.Tensor) -> torch.Tensor:
        for _ in range(257):
            x = net.cell(x)
        return x

    found = blind(watched(Net(unrolled, cell=cell), steps=1))["lost_calls"]
    assert found.message.startswith("1 call of modules beyond the 256th")


def test_what_a_failed_forward_never_reached_is_not_called_unused() -> None:
    def fails(net: Net, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no")

    with hs.watch(model := Net(fails, later=nn.Linear(4, 4))) as w, pytest.raises(RuntimeError, match="no"):
        model(BATCH)
    assert "unused" not in missed(w.run)


def test_where_no_gradient_was_recorded_at_all_nothing_is_called_unused() -> None:
    model = Net(lambda net, x: x, spare=nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model) as w:
        model(BATCH)
        optimizer.step()
    assert missed(w.run) == {"unknown": ["spare"]}


def test_a_watch_of_another_object_than_the_trained_one_says_that_nothing_was_trained() -> None:
    with hs.watch(nn.Linear(4, 4)) as w:
        nn.Linear(4, 4)(BATCH).sum().backward()
    found = blind(w.run)["untrained"]
    assert (found.where, found.module) == ("loop", None)


def noted(*events: dict[str, object]) -> Run:
    writer = MemoryWriter()
    for event in events:
        writer.event(event)
    return writer.run


def test_each_kind_is_a_finding_of_its_own_also_where_no_module_tells_them_apart() -> None:
    run = noted(
        {"event": "switched_off", "step": 7, "part": "recording", "error": "OSError: No space left on device"},
        {"event": "switched_off", "step": 9, "part": "rules", "error": "ValueError"},
        {"event": "frames_dropped", "frames": 1200, "last_step": 1199},
        {"event": "hidden_parameters", "step": 3, "parameters": ["Linear.weight"], "count": 1},
        {"event": "hidden_parameters", "step": 8, "parameters": ["Linear.bias"], "count": 1},
        {"event": "lost_calls", "step": 20, "calls": 3},
    )
    assert {kind: (f.message, f.first_step) for kind, f in blind(run).items()} == {
        "hidden_parameters": ("Linear.weight, Linear.bias: the loss depends on 2 parameters of no watched model", 3),
        "lost_calls": ("3 calls of modules beyond the 256th within one micro-batch left no rows", 0),
        "frames_dropped": ("1,200 frames up to step 1199 dropped to save memory", 0),
        "switched_off": ("recording, rules switched off from step 7 on, after an error: OSError: No space left on device", 7),
    }


def test_of_a_resumed_run_the_last_part_knows_what_never_fired() -> None:
    run = noted({"event": "unhookable", "modules": ["a", "b"]}, {"event": "resumed"}, {"event": "unhookable", "modules": ["b"]})
    assert missed(run) == {"unhookable": ["b"]}
