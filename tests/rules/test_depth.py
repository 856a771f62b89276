"""The rules on size along depth, on runs written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hookscope import diagnose

from ._book import INF, NAN, Book

WAVE = np.array([-1.0, -0.5, 0.25, 1.0])


def deep(blocks: int, prefix: str = "net.") -> dict[str, str]:
    layers = {f"{prefix}{i}": "Odd" for i in range(blocks)}
    return {"stem": "Linear", **layers, **({prefix.rstrip("."): "Sequential"} if prefix else {}), "head": "Linear", "": "Net"}


def sized(modules: dict[str, str], kind: str, sizes: Sequence[float]) -> dict[str, Any]:
    """Values of these sizes, module by module in the order of execution."""
    return {f"{m}:{kind}": size * WAVE for m, size in zip(modules, sizes, strict=True)}


NET = deep(10)  # stem, ten blocks, net, head, the model itself
GROWN = [1.0, *(4.0**i for i in range(1, 11)), 4.0**10, 1e5, 1e5]
SHRUNK = [1.0, *(0.05**i for i in range(1, 11)), 0.05**10, 0.3, 0.3]


def test_growth_through_the_blocks_names_the_module_that_encloses_them() -> None:
    found = diagnose(Book(NET).step(0, sized(NET, "output", GROWN)).run).findings[0]
    assert (found.rule, found.severity, found.module, found.phase, found.first_step) == (
        "act-explode-depth",
        "warning",
        "net",
        "forward",
        0,
    )


def test_growth_in_a_flat_model_names_the_first_module_of_it() -> None:
    flat = {str(i): "Odd" for i in range(8)} | {"": "Sequential"}
    sizes = [1.0, *(5.0**i for i in range(1, 8)), 5.0**7]
    assert diagnose(Book(flat).step(0, sized(flat, "output", sizes)).run).findings[0].module in ("1", "2")


def test_an_explosion_explains_the_nan_it_ends_in() -> None:
    book = Book(NET).step(0, sized(NET, "output", GROWN)).step(1, {":output": [NAN], "loss:loss": [NAN]})
    diagnosis = diagnose(book.run)
    assert [f.rule for f in diagnosis] == ["act-explode-depth", "nonfinite-forward"]
    assert diagnosis.findings[0].explains == (1,)


def test_a_large_batch_that_is_handed_on_is_no_growth() -> None:
    sizes = [2000.0 * s for s in np.linspace(1, 3, len(NET))]
    assert diagnose(Book(NET).step(0, {":input": 4096 * WAVE} | sized(NET, "output", sizes)).run).findings == ()


def test_one_module_that_scales_is_no_growth_through_depth() -> None:
    assert diagnose(Book(NET).step(0, sized(NET, "output", [1.0, *[1e4] * 11, 1e4, 1e4])).run).findings == ()


def test_growth_that_a_norm_takes_back_is_sound() -> None:
    assert diagnose(Book(NET).step(0, sized(NET, "output", [*GROWN[:12], 1.0, 1.0])).run).findings == ()


def test_shrinking_through_the_blocks_is_named_although_the_head_has_a_bias() -> None:
    found = diagnose(Book(NET).step(0, sized(NET, "output", SHRUNK)).run).findings[0]
    assert (found.rule, found.severity, found.module) == ("act-shrink-depth", "warning", "net")


def test_a_dip_that_a_skip_connection_makes_good_is_sound() -> None:
    dip = [1.0, *(0.05**i for i in range(1, 10)), 1.0, 1.0, 1.0, 1.0]
    assert diagnose(Book(NET).step(0, sized(NET, "output", dip)).run).findings == ()


def test_zero_initialised_branches_are_sound() -> None:
    branches = [1.0, *[1.0, 0.0] * 5, 1.0, 1.0, 1.0]
    assert diagnose(Book(NET).steps(0, 3, sized(NET, "output", branches)).run).findings == ()


def test_a_gradient_that_dies_on_its_way_back_names_the_module_nearest_the_input() -> None:
    sizes = [1e-2 * 0.1**i for i in reversed(range(14))]
    found = diagnose(Book(NET).steps(0, 29, sized(NET, "output_grad", sizes)).run).findings[0]
    assert (found.rule, found.module, found.phase, found.first_step, found.last_step) == ("vanishing-grad", "stem", "backward", 0, 29)


def test_a_vanishing_gradient_stands_before_the_shrinking_that_comes_with_it() -> None:
    sizes = [1e-2 * 0.1**i for i in reversed(range(14))]
    diagnosis = diagnose(Book(NET).steps(0, 29, sized(NET, "output_grad", sizes) | sized(NET, "output", SHRUNK)).run)
    assert [f.rule for f in diagnosis] == ["vanishing-grad", "act-shrink-depth"]
    assert diagnosis.findings[0].explains == (1,)


def test_nineteen_steps_are_too_few_to_call_a_gradient_vanishing() -> None:
    sizes = [1e-2 * 0.1**i for i in reversed(range(14))]
    assert diagnose(Book(NET).steps(0, 18, sized(NET, "output_grad", sizes)).run).findings == ()


def test_a_converged_model_has_small_gradients_and_no_finding() -> None:
    sizes = [1e-12] * 14
    assert diagnose(Book(NET).steps(0, 39, sized(NET, "output_grad", sizes)).run).findings == ()


def test_an_averaged_feature_map_shrinks_the_rms_of_a_gradient_but_is_sound() -> None:
    """A mean over 250,000 positions divides each gradient by as much; the norm only by its root."""
    many = 1e-3 / 250_000 * np.resize(WAVE, 250_000)
    assert diagnose(Book(NET).steps(0, 24, sized(NET, "output_grad", [1e-3] * 14) | {"stem:output_grad": many}).run).findings == ()


def test_a_gradient_that_grows_on_its_way_back_names_the_module_that_makes_it_grow() -> None:
    sizes = [1e-3 * 4.0**i for i in reversed(range(14))]
    found = diagnose(Book(NET).steps(0, 11, sized(NET, "output_grad", sizes)).run).findings[0]
    assert (found.rule, found.module, found.phase) == ("exploding-grad-depth", "net", "backward")


def test_three_steps_are_enough_where_the_run_then_went_non_finite() -> None:
    sizes = [1e-3 * 4.0**i for i in reversed(range(14))]
    book = Book(NET).steps(0, 2, sized(NET, "output_grad", sizes))
    assert diagnose(book.run).findings == ()
    diagnosis = diagnose(book.step(3, {"stem:output_grad": [INF], "stem.weight:param_grad": [INF]}).run)
    assert [f.rule for f in diagnosis] == ["exploding-grad-depth", "nonfinite-backward"]
    assert diagnosis.findings[0].explains == (1,)


def test_growth_inside_a_recurrent_module_is_growth_through_depth() -> None:
    rnn = {"rnn": "RNN", "out": "Linear", "": "Net"}
    found = diagnose(Book(rnn).step(0, sized(rnn, "output", [1e6, 1e5, 1e5])).run).findings[0]
    assert (found.rule, found.module) == ("act-explode-depth", "rnn")
