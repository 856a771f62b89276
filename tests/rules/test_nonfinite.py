"""The rules on NaN and Inf, on runs written by hand: who is named, when, and what is let pass."""

from __future__ import annotations

import pytest

from hookscope import diagnose
from hookscope._core._finding import Finding

from ._book import ABSENT, INF, NAN, Book

BAD = [NAN, 0.5, 1.0, 2.0]
MASK = [-INF, 0.5, 1.0, 2.0]
MLP = {"a": "Linear", "act": "ReLU", "b": "Linear", "": "Sequential"}
NET = {"stem": "Linear", "block.inner": "Linear", "block": "Block", "head": "Linear", "": "Net"}


def ill_from(module: str, modules: dict[str, str], value: list[float] = BAD) -> dict[str, object]:
    """Outputs bad from a module on, the loss, and all gradients with it."""
    names = list(modules)
    rest = names[names.index(module) :]
    grads = {f"{m}:output_grad": BAD for m in names} | {f"{m}.weight:param_grad": BAD for m, c in modules.items() if c == "Linear"}
    updates = {f"{m}.weight:update": BAD for m, c in modules.items() if c == "Linear"}
    return {f"{m}:output": value for m in rest} | {"loss:loss": [NAN]} | grads | updates


def broken_weights(modules: dict[str, str]) -> dict[str, object]:
    return ill_from(next(iter(modules)), modules) | {f"{m}.weight:param": BAD for m, c in modules.items() if c == "Linear"}


def only(findings: tuple[Finding, ...]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def test_a_sound_run_has_no_finding() -> None:
    assert diagnose(Book(NET).steps(0, 5).run).findings == ()


def test_the_first_module_that_makes_a_nan_is_named_and_its_victims_are_not() -> None:
    found = only(diagnose(Book(MLP).steps(0, 3).step(4, ill_from("act", MLP) | {"act:input": [1.0, 3.2]}).run).findings)
    assert (found.rule, found.severity, found.module, found.where, found.phase, found.first_step) == (
        "nonfinite-forward", "error", "act", "module", "forward", 4,
    )  # fmt: skip
    assert "1 NaN among 4 values while its input is finite (largest magnitude 3.2)" in found.message


def test_parameters_that_follow_are_explained_by_the_first_finding() -> None:
    diagnosis = diagnose(Book(MLP).steps(0, 3).step(4, ill_from("act", MLP)).step(5, broken_weights(MLP)).step(6, broken_weights(MLP)).run)
    assert [(f.rule, f.first_step) for f in diagnosis] == [("nonfinite-forward", 4), ("nonfinite-weight", 5)]
    assert diagnosis.findings[0].explains == (1,)
    assert "non-finite gradients of step 4" in diagnosis.findings[1].message


def test_a_bad_input_behind_clean_outputs_accuses_the_enclosing_module() -> None:
    ill = ill_from("block.inner", NET) | {"block.inner:input": BAD, "block:input": [1.0]}
    assert only(diagnose(Book(NET).step(0).step(1, ill).run).findings).module == "block"


def test_code_of_the_model_itself_between_two_modules_is_the_root() -> None:
    ill = ill_from("head", NET) | {"head:input": BAD}
    found = only(diagnose(Book(NET).step(0).step(1, ill).run).findings)
    assert (found.module, found.evidence["between_modules"]) == ("(root)", True)


def test_a_bad_value_that_entered_the_enclosing_module_comes_from_outside_it() -> None:
    ill = ill_from("block.inner", NET) | {"block.inner:input": BAD, "block:input": BAD}
    assert only(diagnose(Book(NET).step(0).step(1, ill).run).findings).module == "(root)"


def test_a_bad_batch_is_named_before_the_modules_it_spoils() -> None:
    found = only(diagnose(Book(MLP).steps(0, 1).step(2, ill_from("a", MLP) | {":input": BAD}).run).findings)
    assert (found.rule, found.severity, found.where, found.phase, found.module, found.first_step) == (
        "nonfinite-input", "error", "data", "data", None, 2,
    )  # fmt: skip


def test_a_bad_batch_that_harms_nothing_is_information() -> None:
    assert [f.severity for f in diagnose(Book(MLP).step(0, {":input": BAD}).run)] == ["info"]


def test_an_input_that_was_always_bad_is_not_the_cause_of_a_later_nan() -> None:
    book = Book(MLP).steps(0, 2, {":input": BAD}).step(3, {":input": BAD, "loss:loss": [NAN]})
    assert diagnose(book.run).findings[0].rule == "nonfinite-loss"


def test_a_mask_of_minus_infinity_is_legal() -> None:
    assert diagnose(Book(NET).steps(0, 3, {"block:output": MASK}).run).findings == ()


def test_a_module_whose_bad_output_is_masked_out_later_is_information() -> None:
    assert [(f.rule, f.severity) for f in diagnose(Book(NET).step(0, {"block:output": BAD}).run)] == [("nonfinite-forward", "info")]


def test_a_nan_loss_behind_finite_outputs_is_the_loss() -> None:
    found = only(diagnose(Book(MLP).steps(0, 2).step(3, {"loss:loss": [NAN]}).steps(4, 6).run).findings)
    assert (found.rule, found.where, found.phase, found.module, found.first_step) == ("nonfinite-loss", "loss", "forward", None, 3)


def test_a_nan_loss_behind_masked_logits_is_the_loss() -> None:
    assert only(diagnose(Book(NET).step(0, {":output": MASK, "loss:loss": [NAN]}).run).findings).where == "loss"


def test_an_infinite_loss_behind_minus_infinite_logits_is_whoever_made_them() -> None:
    found = only(diagnose(Book(NET).step(0, {":output": MASK, "loss:loss": [INF]}).run).findings)
    assert (found.rule, found.module) == ("nonfinite-forward", "(root)")


@pytest.mark.parametrize(("loss", "severity"), [(INF, "info"), (NAN, "error")])
def test_in_a_step_the_scaler_skipped_an_infinite_loss_is_information_but_a_nan_is_not(loss: float, severity: str) -> None:
    assert [f.severity for f in diagnose(Book(MLP).step(0, {"loss:loss": [loss], "skipped:scalar": [1.0]}).run)] == [severity]


def test_two_separate_bad_batches_of_one_kind_are_one_finding() -> None:
    found = only(diagnose(Book(MLP).step(0, {"loss:loss": [NAN]}).steps(1, 4).step(5, {"loss:loss": [NAN]}).run).findings)
    assert (found.first_step, found.last_step, found.evidence["occurrences"]) == (0, 5, 2)


ODD = {"odd": "Odd", "body": "Linear", "": "Net"}
ODD_WEIGHTS = {"odd.weight": (4,), "body.weight": (8, 8)}


def test_the_module_with_clean_output_gradient_and_bad_own_gradient_is_named() -> None:
    found = only(diagnose(Book(ODD, ODD_WEIGHTS).steps(0, 2).step(3, {"odd.weight:param_grad": BAD}).run).findings)
    assert (found.rule, found.module, found.phase, found.where) == ("nonfinite-backward", "odd", "backward", "module")


def test_an_infinite_norm_that_clipping_turned_into_zeros_is_told() -> None:
    changes = {"odd.weight:param_grad": BAD, "body.weight:param_grad": [0.0, 0.0]}
    found = only(diagnose(Book(ODD, ODD_WEIGHTS).step(0, changes).run).findings)
    assert found.module == "odd"
    assert "clip_grad_norm_" in found.message


def test_when_clipping_made_all_gradients_nan_the_module_that_can_make_one_is_suspected() -> None:
    changes = {"odd.weight:param_grad": [NAN], "body.weight:param_grad": [NAN]}
    found = only(diagnose(Book(ODD, ODD_WEIGHTS).step(0, changes).run).findings)
    assert (found.module, found.confidence) == ("odd", 0.5)


def test_gradients_from_before_clipping_are_preferred_where_recorded() -> None:
    changes = {"odd.weight:param_grad": [NAN], "body.weight:param_grad": [NAN], "odd.weight:param_grad/preclip": [NAN]}
    found = only(diagnose(Book(ODD, ODD_WEIGHTS).step(0, changes | {"body.weight:param_grad/preclip": [0.1]}).run).findings)
    assert (found.module, found.confidence) == ("odd", 0.95)


def test_a_bad_gradient_at_the_models_own_output_comes_from_the_loss() -> None:
    grads = {f"{m}:output_grad": BAD for m in MLP} | {"a.weight:param_grad": BAD, "b.weight:param_grad": BAD}
    found = only(diagnose(Book(MLP).step(0).step(1, grads).run).findings)
    assert (found.rule, found.where, found.phase, found.module) == ("nonfinite-backward", "loss", "backward", None)


def test_a_bad_gradient_that_starts_in_front_of_a_custom_module_is_that_module() -> None:
    modules = {"a": "Linear", "odd": "Odd", "b": "Linear", "": "Sequential"}
    found = only(diagnose(Book(modules).step(0, {"a:output_grad": BAD, "a.weight:param_grad": BAD}).run).findings)
    assert found.module == "odd"


def test_a_bad_gradient_between_two_sound_layers_is_the_own_code_around_them() -> None:
    found = only(diagnose(Book(NET).step(0, {"stem:output_grad": BAD, "stem.weight:param_grad": BAD}).run).findings)
    assert found.module == "block", "block.inner is a Linear that cannot make a NaN, and block's own code feeds it"


def test_a_bad_gradient_that_starts_in_a_containers_own_code_is_the_container() -> None:
    grads = {f"{m}:output_grad": BAD for m in ("stem", "block.inner")} | {f"{m}.weight:param_grad": BAD for m in ("stem", "block.inner")}
    assert only(diagnose(Book(NET).step(0, grads).run).findings).module == "block"


def test_a_weight_penalty_in_the_loss_is_not_blamed_on_the_linear_layer() -> None:
    found = only(diagnose(Book(MLP).step(0, {"a.weight:param_grad": BAD}).run).findings)
    assert (found.where, found.module) == ("loss", "a")


ONLY_AROUND = {f"{m}:output": ABSENT for m in MLP if m} | {f"{m}:output_grad": ABSENT for m in MLP} | {":input": ABSENT}  # left out
ALL_GRADIENTS = {"a.weight:param_grad": BAD, "b.weight:param_grad": BAD}


def test_where_no_gradient_of_an_output_was_read_no_place_is_claimed() -> None:
    found = only(diagnose(Book(MLP).step(0).step(1, ONLY_AROUND | ALL_GRADIENTS).run).findings)
    assert (found.rule, found.where, found.module) == ("nonfinite-backward", "unknown", None)
    assert "received a clean gradient" not in found.message
    assert "the forward" not in found.message
    assert "clip_grad_norm_" not in found.message, "what reached the outputs is not known to have been clean"


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"outside": True, "module": None, "exact": True}, ("loss", None)),
        ({"outside": False, "module": "act", "exact": True}, ("module", "act")),
        ({"outside": False, "module": "act", "exact": False}, ("module", "act")),
    ],
)
def test_there_the_operation_that_was_found_tells_the_place(told: dict[str, object], named: tuple[str, str | None]) -> None:
    book = Book(MLP).step(0).step(1, ONLY_AROUND | ALL_GRADIENTS)
    book.writer.event({"event": "origin", "step": 1, "op": "sqrt", "direction": "backward", **told})
    found = only(diagnose(book.run).findings)
    assert (found.where, found.module, found.op) == (*named, "sqrt")


def test_a_weight_whose_module_was_not_seen_in_the_backward_is_named_without_a_claim_about_it() -> None:
    found = only(diagnose(Book(MLP).step(0, {"a:output_grad": ABSENT, "a.weight:param_grad": BAD}).run).findings)
    assert (found.where, found.module, found.confidence) == ("module", "a", 0.5)
    assert "received a clean gradient" not in found.message


@pytest.mark.parametrize("entry", [True, False])
def test_a_batch_that_was_not_read_is_named_where_running_the_step_again_has_shown_it(entry: bool) -> None:
    book = Book(MLP).step(0).step(1, ill_from("a", MLP) | ONLY_AROUND | ALL_GRADIENTS)
    book.writer.event({"event": "origin", "step": 1, "op": "log", "direction": "forward", "outside": True, "exact": True, "entry": entry})
    found = diagnose(book.run).findings
    assert [f.rule for f in found] == ["nonfinite-input" if entry else "nonfinite-forward"]
    assert (found[0].where, found[0].op) == ("data" if entry else "loss", "log")


def test_inputs_that_were_read_and_are_clean_are_not_accused_by_it() -> None:
    book = Book(MLP).step(0).step(1, ill_from("b", MLP))
    book.writer.event({"event": "origin", "step": 1, "op": "log", "direction": "forward", "outside": True, "exact": True, "entry": True})
    assert [f.rule for f in diagnose(book.run).findings] == ["nonfinite-forward"]


def test_an_overflow_in_a_step_that_the_scaler_skipped_is_information() -> None:
    changes = {"a:output_grad": [INF], "a.weight:param_grad": [INF], "a.weight:update": ABSENT, "skipped:scalar": [1.0]}
    assert [(f.rule, f.severity) for f in diagnose(Book(MLP).steps(0, 2, changes).run)] == [("nonfinite-backward", "info")]


def test_a_parameter_that_is_bad_before_the_first_forward_was_never_initialised() -> None:
    found = only(diagnose(Book(ODD, ODD_WEIGHTS).step(0, ill_from("odd", ODD) | {"odd.weight:param": BAD}).run).findings)
    assert (found.rule, found.phase, found.module, found.first_step) == ("nonfinite-weight", "init", "odd", 0)


def test_a_bad_update_from_clean_gradients_is_the_optimizer() -> None:
    found = diagnose(Book(MLP).steps(0, 2).step(3, {"b.weight:update": BAD}).step(4, broken_weights(MLP)).run).findings[0]
    assert (found.rule, found.where, found.phase, found.first_step) == ("nonfinite-weight", "optimizer", "optimizer", 3)
