"""The view against runs whose numbers are known by hand."""

import math

import pytest

from hookscope._core._errors import UsageError
from hookscope._core._finding import Diagnosis, Finding
from hookscope._report import View, build

from ._runs import Making, deep, stats


def view(made: Making, *findings: Finding, step: int | None = None, select: str | None = None) -> View:
    run = made.run()
    return build(run, Diagnosis("runs/base", len(run.steps), findings), step=step, select=select)


def test_the_tree_nests_by_path_and_stands_in_the_order_of_execution() -> None:
    made = Making()
    made.weight(0, "b")  # parameters are registered first, and b before a
    made.weight(0, "a.inner")
    made.module(0, "a.inner", 0)
    made.module(0, "a", 1, cls="Sequential")
    made.module(0, "b", 2)
    made.module(0, "", 3, cls="Net")
    tree = view(made).tree
    assert tree is not None
    assert (tree.name, tree.cls) == ("(root)", "Net")
    assert [child.path for child in tree.children] == ["a", "b"]
    assert [child.path for child in tree.children[0].children] == ["a.inner"]


def test_a_module_that_never_ran_stays_behind_the_sibling_it_was_registered_after() -> None:
    made = Making()
    for name in ("a", "spare", "b"):
        made.weight(0, name)
    made.module(0, "b", 1)
    made.module(0, "a", 0)
    made.events.append({"event": "never_fired", "modules": ["spare"]})
    shown = view(made)
    assert shown.tree is not None
    assert [(child.name, child.fired) for child in shown.tree.children] == [("a", True), ("spare", False), ("b", True)]
    assert shown.blindness == ("never ran: spare",)


def test_a_containers_gradient_is_the_norm_over_all_parameters_in_it() -> None:
    made = Making()
    made.weight(0, "net.a", grad=1.5, update=0.3, value=2.0)  # four elements each: norms 3 and 4, updates 0.6 and 0.8
    made.weight(0, "net.b", grad=2.0, update=0.4, value=2.0)
    tree = view(made).tree
    assert tree is not None
    net = tree.children[0]
    assert net.grad_norm == pytest.approx(5.0)  # 3, 4, 5
    assert net.update_ratio == pytest.approx(1.0 / math.hypot(4.0, 4.0))
    assert [child.grad_norm for child in net.children] == pytest.approx([3.0, 4.0])


def test_nan_inf_and_absence_are_three_different_things() -> None:
    made = Making()
    made.module(0, "a", 0, rms=stats(1.0, nan=1))
    made.module(0, "b", 1, rms=stats(1.0, inf=1))
    made.weight(0, "c")
    tree = view(made).tree
    assert tree is not None
    a, b, c = tree.children
    assert a.output_rms is not None
    assert math.isnan(a.output_rms)
    assert b.output_rms == math.inf
    assert c.output_rms is None


def test_a_single_nan_step_is_seen_in_a_curve_thinned_from_many_steps() -> None:
    made = Making()
    for step in range(500):
        made.weight(step, "a", grad=stats(0.1, nan=step == 250))
    tree = view(made).tree
    assert tree is not None
    curve = tree.children[0].gradient
    assert curve is not None
    assert len(curve.heights) <= 48
    assert [h is not None and math.isnan(h) for h in curve.heights].count(True) == 1


def test_heights_are_logarithmic_and_a_nearly_flat_series_looks_flat() -> None:
    made = Making()
    for step, grad in enumerate((0.01, 0.1, 1.0)):
        made.weight(step, "steep", grad=grad)
        made.weight(step, "flat", grad=1.0 + 0.01 * step)
    tree = view(made).tree
    assert tree is not None
    steep, flat = (child.gradient for child in tree.children)
    assert steep is not None
    assert flat is not None
    assert steep.heights == pytest.approx((0.0, 0.5, 1.0))
    assert flat.heights == pytest.approx((0.5, 0.5, 0.5), abs=0.01)


def test_the_step_asked_for_is_the_step_shown() -> None:
    made = Making()
    for step in (0, 10, 20):
        made.module(step, "a", 0, rms=float(step + 1))
    tree = view(made, step=10).tree
    assert tree is not None
    assert tree.children[0].output_rms == pytest.approx(11.0)


def test_a_sick_run_shows_the_step_at_which_the_first_error_begins() -> None:
    made = Making()
    for step in (0, 10, 20):
        made.module(step, "a", 0, rms=float(step + 1))
    shown = view(made, Finding("rule", "warning", "m", 0, 0), Finding("rule", "error", "m", 10, 20))
    assert shown.shown_step == 10
    assert shown.tree is not None
    assert shown.tree.children[0].output_rms == pytest.approx(11.0)
    assert view(made, Finding("rule", "warning", "m", 0, 0)).shown_step is None
    assert view(made, Finding("rule", "error", "m", 5, 5)).shown_step is None  # not recorded


def test_a_step_that_was_not_recorded_is_refused_with_the_nearest_one() -> None:
    made = Making()
    for step in (0, 10, 20):
        made.module(step, "a", 0)
    with pytest.raises(UsageError, match=r"step 12 is not in the run: the nearest recorded is 10 \(recorded: 0 to 20\)"):
        view(made, step=12)


def test_a_selection_keeps_its_modules_and_their_containers() -> None:
    tree = view(deep(3, 1), select="h.1.fc").tree
    assert tree is not None
    assert [child.path for child in tree.children] == ["h"]
    assert [child.path for child in tree.children[0].children] == ["h.1"]
    assert [child.path for child in tree.children[0].children[0].children] == ["h.1.fc"]


def test_the_gradient_by_depth_takes_leaf_modules_in_order_and_medians_of_first_and_last_steps() -> None:
    made = Making()
    for step in range(20):
        odd = 100.0 if step == 2 else 1.0  # one odd batch among the first five must not show
        made.module(step, "a", 0, grad=0.01 * odd)
        made.module(step, "b.inner", 1, grad=1.0 if step < 10 else 4.0)
        made.module(step, "b", 2, cls="Sequential", grad=9.0)
        made.module(step, "", 3, cls="Net", grad=9.0)
    depth = view(made).depth
    assert depth is not None
    assert depth.modules == ("a", "b.inner")
    assert depth.first.values == pytest.approx((0.01, 1.0))
    assert depth.last.values == pytest.approx((0.01, 4.0))
    assert (depth.first_steps, depth.last_steps) == ("steps 0–4", "steps 15–19")


def test_findings_are_numbered_and_mark_their_modules() -> None:
    first = Finding("nonfinite-forward", "error", "Bad.", 1, 3, module="h.1.fc", explains=(1,), evidence={"nan": 12, "previous_rms": 0.5})
    second = Finding("nonfinite-weight", "warning", "Worse.", 2, 2, module="h.1.fc", phase="optimizer")
    shown = view(deep(3, 5), first, second)
    assert [(f.number, f.steps, f.explains) for f in shown.findings] == [(1, "steps 1–3", (2,)), (2, "step 2", ())]
    assert shown.findings[0].evidence == (("nan", "12"), ("previous rms", "0.500"))
    assert shown.tree is not None
    fc = shown.tree.children[1].children[1].children[0]
    assert (fc.path, fc.marks, fc.worst) == ("h.1.fc", (1, 2), "error")
    assert shown.summary == "1 error and 1 warning in 5 steps; it begins at step 1, in h.1.fc."


def test_a_run_without_steps_is_not_called_healthy() -> None:
    shown = view(Making())
    assert shown.title == "nothing recorded"
    assert shown.summary == "No step was recorded, so there is nothing to judge."
    assert (shown.tree, shown.loss, shown.depth) == (None, None, None)


def test_one_step_is_enough_for_every_part() -> None:
    shown = view(deep(2, 1))
    assert shown.title == "healthy"
    assert shown.facts.first_loss == shown.facts.last_loss == 2.0
    assert shown.depth is not None
    assert shown.tree is not None


def test_the_loss_shown_first_and_last_is_the_loss_of_the_first_and_last_step() -> None:
    made = Making()
    for step in range(200):
        made.loss(step, float(200 - step))
    facts = view(made).facts
    assert (facts.first_loss, facts.last_loss) == (200.0, 1.0)


def test_what_was_not_seen_is_told_once_with_its_number() -> None:
    made = deep(1, 1)
    made.events += [
        {"event": "switched_off", "part": "sink", "step": 7, "error": "OSError: No space left on device"},
        {"event": "skipped", "step": 3, "by": "GradScaler"},
        {"event": "origin", "step": 3, "op": "div"},
        {"event": "strange", "why": "x"},
        {"event": "strange", "why": "x"},
        {"event": "closed", "steps": 1, "seconds": 2.0, "spent_seconds": 0.5},
    ]
    shown = view(made)
    assert shown.blindness == (
        "sink from step 7 on: switched off after an error, OSError: No space left on device",
        "strange: why x (2 times)",
    )
    assert shown.facts.spent_seconds == 0.5
    assert "(0.5 s of it watching)" in shown.cost
