"""Which module the first divergence is of, and the sentence that says so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ._book import Book, Key
from ._evidence import evidence, instead
from ._gradients import GradientDifference, first_diverging
from ._pairing import Pairs
from ._parameters import ParameterDifference
from ._row import SiteDifference
from ._walk import beyond


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that was compared; `sites` in a's order of completion. `digests` are those of b's outputs, by path and call of b."""

    a: Book
    b: Book
    pairs: Pairs
    sites: tuple[SiteDifference, ...]
    parameters: tuple[ParameterDifference, ...]
    gradients: tuple[GradientDifference, ...]
    digests: dict[Key, tuple[str, ...]]


def judge(found: Found) -> tuple[str, SiteDifference | None, bool]:
    """The sentence, the first divergence, and whether the sides agree."""
    adding = [row for row in found.sites if row.status == "added"]
    if adding:
        first, before = _culprit(found.sites, adding)
        causes = tuple(dict.fromkeys([*_causes(found, first), *first.likely]))
        first = replace(first, likely=causes)
        return _divergence(first, before) + _harmless(found.sites), first, False
    unknown = [row for row in found.sites if row.status == "unknown"]
    if unknown:
        return _unclear(unknown[0]), unknown[0], False
    roots = [row.inputs for row in found.sites if row.a == "(root)" and row.inputs is not None and beyond(row.inputs, 8 * row.limit)]
    if roots:
        apart = f"{roots[0].relative:.1e}"
        return f"the modules agree, but the two models were given inputs that differ by {apart}: pass both the same", None, False
    gradient = first_diverging(found.gradients)
    if gradient is not None:
        return f"outputs are equal within tolerance; first divergence in the backward: {gradient.sentence}", None, False
    return _equal(found), None, True


def _culprit(sites: Sequence[SiteDifference], adding: Sequence[SiteDifference]) -> tuple[SiteDifference, SiteDifference | None]:
    """The first to complete; but where a difference shows earlier, the innermost container around that, whose code it came from."""
    first = min(adding, key=lambda row: row.left)
    parted = [row for row in sites if row.inputs is not None and beyond(row.inputs, 8 * row.limit)]
    seen = min(parted, key=lambda row: row.entered, default=None)
    if seen is not None:
        around = [row for row in adding if row.entered < seen.entered and row.left > seen.left]
        if seen.entered < first.entered and around:
            return max(around, key=lambda row: row.entered), seen
        if around and first in around:
            return first, seen
    return first, None


def _causes(found: Found, first: SiteDifference) -> Iterator[str]:
    left, right = (tuple("" if p == "(root)" else p for p in side.split(" + ")) for side in (first.a, first.b))
    modules = [found.a.modules[p] for p in left if p in found.a.modules], [found.b.modules[p] for p in right if p in found.b.modules]
    by_module: dict[str, list[ParameterDifference]] = {}
    quiet = _quiet(found, left[0])
    for row in found.parameters:
        by_module.setdefault(left[0] if row.module in quiet else row.module, []).append(row)
    yield from evidence(modules, by_module)
    call = found.a.calls.get((left[0], first.call))
    if call is not None and not modules[0][0].leaf:
        yield from _partnerless(found, left[0])
    if call is not None:
        yield from instead(found.a, call, found.digests.get((right[0], first.call), ()))


def _quiet(found: Found, path: str) -> set[str]:
    """Modules below that hold parameters and are never called: their parameters are used by the module itself."""
    fired = set(found.a.fired)
    return {p for p in found.a.modules if p not in fired and (not path or p.startswith(path + "."))}


def _partnerless(found: Found, path: str) -> Iterator[str]:
    """Modules that only one side runs in it."""
    for book, used, names in ((found.a, found.pairs.used_a, "ab"), (found.b, found.pairs.used_b, "ba")):
        lone = [p for p in book.fired if p not in used and book.modules[p].leaf and (not path or p.startswith(path + "."))]
        lone = [p for p in lone if not {"Dropout", "Identity"} & {b.rsplit(".", 1)[-1] for b in book.modules[p].bases}]
        if lone:
            listed = ", ".join(f"{p} ({book.modules[p].name})" for p in lone[:3])
            yield f"{names[0]} runs {listed}, which has no partner in {names[1]}"


def _divergence(first: SiteDifference, before: SiteDifference | None) -> str:
    place = f"first divergence at `{first.name}` ({first.module_class})"
    if before is not None and before is not first:
        place += f", in its own code: it shows first in what goes into `{before.name}`" + (f", {before.shift}" if before.shift else "")
    said = [f"{place}: {_how(first)}"]
    if first.inputs is None or first.inputs.exact:
        said.append("its inputs are equal")
    elif not beyond(first.inputs, 8 * first.limit):
        said.append("its inputs are equal within rounding")
    else:
        said.append(f"its inputs differ by {first.inputs.relative:.1e}, which is taken out")
    if first.likely:
        said.append("likely: " + "; ".join(first.likely[:3]))
    return "; ".join(said)


def _harmless(sites: Sequence[SiteDifference]) -> str:
    agrees = any(row.a == "(root)" and row.status in ("equal", "rounding") for row in sites)
    return "; the output of the whole is equal within tolerance all the same" if agrees else ""


def _how(row: SiteDifference) -> str:
    far = row.added or row.total
    if far is None:
        return row.note
    if far.only_a + far.only_b:
        lacking = "b" if far.only_b else "a"
        return f"NaN or Inf in {far.only_a + far.only_b:,} elements of one side only, most of all of {lacking}"
    size = "all of it" if math.isinf(far.relative) else f"relative error {far.relative:.1e}"
    where = "the tolerance is" if row.limit_from == "given" else "rounding explains"
    return f"adds {size} where {where} {row.limit:.1e} (max abs {far.max_abs:.1e}, cosine {far.cosine:.6g})"


def _unclear(row: SiteDifference) -> str:
    far = row.total
    size = "" if far is None else f" by {far.relative:.1e} where {row.limit:.1e} would be rounding"
    why = f": {row.note}" if row.note else ""
    return f"outputs first differ at `{row.name}` ({row.module_class}){size}; whether it adds that itself is not known{why}"


def _equal(found: Found) -> str:
    distances = [(row.total, row) for row in found.sites if row.total is not None]
    if not distances:
        return "nothing was compared"
    if all(far.exact for far, _ in distances):
        gradients = " and in every gradient" if found.gradients and all(g.far.exact for g in found.gradients) else ""
        return f"equal to the last bit at all {len(distances)} sites{gradients}"
    far, row = max(distances, key=lambda one: one[0].relative)
    exact = sum(far.exact for far, _ in distances)
    return (
        f"equal within tolerance at {len(distances)} sites, {exact} of them to the last bit; "
        f"largest relative error {far.relative:.1e} at `{row.name}`, where rounding explains {row.limit:.1e}"
    )
