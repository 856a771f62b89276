"""How much a run has seen, against runs whose sites are known by hand."""

import json

from hookscope._core._finding import Diagnosis, Finding
from hookscope._report import Sight, SightPicture, sight, sight_json, text

from ._runs import Making, deep

BLIND = Finding(
    "blind", "info", "spare: 1 module was never called", 0, 4, module="spare", evidence={"kind": "unused", "modules": ["spare"]}
)


def seen(made: Making, *findings: Finding) -> Sight:
    run = made.run()
    return sight(run, Diagnosis("runs/base", len(run.steps), findings))


def with_spare() -> Making:
    """Beside wte, h.0, h.0.fc, h.0.act, the same of h.1, lm_head and the root, of which wte, two fc and lm_head have a weight."""
    made = deep(2, 5)
    made.add(0, made.site("spare.weight", "param", "Linear", module="spare"), made.rows[0][0][3])
    made.events.append({"event": "never_fired", "modules": ["spare"]})
    made.events.append({"event": "closed", "seconds": 4.0, "spent_seconds": 0.5})
    return made


def test_fired_modules_and_parameters_with_gradients_are_counted_of_all() -> None:
    found = seen(with_spare(), BLIND)
    assert (found.fired, found.modules, found.evaluated) == (9, 10, 0)
    assert (found.graded, found.trainable, found.parameters) == (4, 5, 5)
    assert dict(found.sites) == {"output": 9, "output_grad": 9, "param": 5, "param_grad": 4, "update": 4, "loss": 1}
    assert found.spent_seconds == 0.5


def test_all_partly_and_nothing_are_three_titles() -> None:
    assert [seen(*what).title for what in ((deep(2, 5),), (with_spare(), BLIND), (Making(),))] == [
        "all seen",
        "partly seen",
        "nothing recorded",
    ]


def test_a_run_that_has_not_ended_is_not_called_all_seen() -> None:
    running = Sight("runs/base", "running", 3, 1, 1, 0, 0, 0, 0, ())
    assert running.title == "partly seen"
    assert "the watch has not ended in this run" in text(SightPicture(running))


def test_the_picture_tells_coverage_cost_and_the_way_out() -> None:
    lines = [" ".join(line.split()) for line in text(SightPicture(seen(with_spare(), BLIND)), width=200).splitlines()]
    assert lines[0] == "• partly seen runs/base"
    assert lines[1] == "modules 9 of 10 fired in the training"
    assert lines[2] == "parameters 4 of 5 trainable ones got gradients"
    assert "100 ms a step" in lines[4]  # half a second over five steps
    assert "1. • info blind in spare · forward · steps 0–4" in lines
    assert "spare: 1 module was never called" in lines


def test_the_json_holds_the_counts_and_the_findings_whole() -> None:
    made = with_spare()
    diagnosis = Diagnosis("runs/base", 5, (BLIND,))
    found = json.loads(sight_json(sight(made.run(), diagnosis), diagnosis))
    assert (found["format"], found["title"], found["fired"], found["sites"]["param"]) == (1, "partly seen", 9, 5)
    assert found["findings"][0]["evidence"] == {"kind": "unused", "modules": ["spare"]}
