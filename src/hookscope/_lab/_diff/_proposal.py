"""Proposes which module is which, from weights, names, place in the tree, class and order.

What is certain comes first and narrows what is left: equal weights, then equal names, then groups whose weights together are those of
one (a fused projection), then containers by what lies in them, then what is left inside a pair of containers, in order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

from ._book import Book
from ._layout import fits
from ._pairing import Pairs
from ._prints import Print

NEAR = 0.05  # as far as bfloat16 moves the sum of a weight, in standard errors, and its norm
_KINDS = {
    "rotary": ("rotary", "rope"),
    "norm": ("norm",),
    "dropout": ("drop",),
    "embedding": ("embed",),
    "linear": ("linear", "conv1d", "dense"),
    "convolution": ("conv",),
    "activation": ("gelu", "relu", "silu", "swish", "tanh", "sigmoid", "softmax", "activation"),
    "recurrent": ("lstm", "gru", "rnn"),
    "attention": ("attn", "attention"),
    "feed-forward": ("mlp", "feedforward", "ffn"),
}


@dataclass(frozen=True)
class Outline:
    """A book, asked for what a proposal needs."""

    book: Book

    @cached_property
    def fired(self) -> tuple[str, ...]:
        return self.book.fired

    @cached_property
    def weights(self) -> dict[str, tuple[Print, ...]]:
        """Module -> fingerprints of what it owns itself, largest first; constants tell nothing and are left out."""
        found: defaultdict[str, list[Print]] = defaultdict(list)
        for name, known in self.book.parameters.items():
            if known.squares * known.numel > known.total**2 * (1 + 1e-6):
                found[name.rpartition(".")[0]].append(known)
        return {path: tuple(sorted(prints, key=lambda p: -p.numel)) for path, prints in found.items()}

    @cached_property
    def orders(self) -> dict[str, int]:
        return {path: i for i, path in enumerate(self.fired)}

    def kind(self, path: str) -> str:
        """What sort of module it is, however it is called."""
        names = [base.rsplit(".", 1)[-1].lower() for base in self.book.modules[path].bases]
        for name in names:
            for kind, words in _KINDS.items():
                if any(word in name for word in words):
                    return kind
        return "leaf" if self.book.modules[path].leaf else "container"

    def shape(self, path: str) -> tuple[int, ...]:
        call = self.book.calls[path, 0]
        return call.outputs[0].shape if call.outputs else ()


def apart(a: Print, b: Print) -> float:
    """How unlike two weights are, below `NEAR` where they are likely one; infinite where they cannot be.

    Of one shape, their samples say so, against the spread of the values; what a transposition leaves alone says it of others.
    """
    if a.numel != b.numel or not a.squares or not b.squares:
        return math.inf
    if a.digest == b.digest:
        return 0.0
    if a.shape == b.shape:
        mean = sum(a.sample) / len(a.sample)
        spread = math.dist(a.sample, [mean] * len(a.sample))
        off = math.dist(a.sample, b.sample) / spread if spread else math.inf
        if off < 4 * NEAR:
            return off / 4
        if len(a.shape) != 2 or a.shape[0] != a.shape[1]:
            return math.inf
    spread = math.sqrt(max(a.squares - a.total**2 / a.numel, 1e-300))
    sums = abs(a.total - b.total) / spread
    return sums + 10 * abs(math.log(a.squares / b.squares)) + abs(a.absmax - b.absmax) / max(a.absmax, b.absmax)


def propose(a: Book, b: Book, pairs: Pairs) -> Pairs:
    """Add to `pairs` what can be told."""
    left, right = Outline(a), Outline(b)
    if "" in left.orders and "" in right.orders:
        pairs.add(("",), ("",), "root")
    _by_weight(left, right, pairs)
    _by_name(left, right, pairs)
    _by_group(left, right, pairs)
    for _ in range(6):
        before = len(pairs.found)
        _by_content(left, right, pairs)
        _by_place(left, right, pairs)
        if len(pairs.found) == before:
            break
    _silent(left, right, pairs)
    return pairs


def _free(left: Outline, right: Outline, pairs: Pairs) -> tuple[list[str], list[str]]:
    used_a, used_b = pairs.used_a, pairs.used_b
    return [p for p in left.fired if p not in used_a], [p for p in right.fired if p not in used_b]


def _unlike(left: Outline, right: Outline, one: str, other: str) -> float:
    mine, theirs = left.weights.get(one), right.weights.get(other)
    if not mine or not theirs or not fits(left.shape(one), right.shape(other)):
        return math.inf
    return apart(mine[0], theirs[0]) + (0.0 if left.kind(one) == right.kind(other) else NEAR / 2)


def _by_weight(left: Outline, right: Outline, pairs: Pairs) -> None:
    """Near ones: those of one name first, then the nearest."""
    free = _free(left, right, pairs)
    mine, theirs = [p for p in free[0] if p in left.weights], [p for p in free[1] if p in right.weights]
    sizes: defaultdict[int, list[str]] = defaultdict(list)
    for other in theirs:
        sizes[right.weights[other][0].numel].append(other)
    scored = [(_unlike(left, right, one, other), one, other) for one in mine for other in sizes[left.weights[one][0].numel]]
    for score, one, other in sorted(scored, key=lambda s: (s[0] >= NEAR, s[1] != s[2], s[0], abs(left.orders[s[1]] - right.orders[s[2]]))):
        if score < NEAR:
            pairs.add((one,), (other,), "weights")


def _by_name(left: Outline, right: Outline, pairs: Pairs) -> None:
    """One name on both sides, unless weights say that what is in it, or in what it is in, has gone elsewhere."""
    mine, theirs = _free(left, right, pairs)
    moved = [(one, other) for one, other in pairs.single.items() if one != other]
    for path in sorted(set(mine) & set(theirs), key=left.orders.__getitem__):
        homes = [path, *_homes(path)]
        elsewhere = any(_inside(one, home) != _inside(other, home) for one, other in moved for home in homes)
        if not elsewhere and left.book.modules[path].leaf == right.book.modules[path].leaf:
            pairs.add((path,), (path,), "name")


def _homes(path: str) -> list[str]:
    """The containers around it, without the model itself."""
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(len(parts) - 1, 0, -1)]


def _by_group(left: Outline, right: Outline, pairs: Pairs) -> None:
    """One module with the weights of two to four neighbours together."""
    mine, theirs = _free(left, right, pairs)
    for one, members in _groups(mine, theirs, left, right):
        pairs.add((one,), members, "weights together")
    mine, theirs = _free(left, right, pairs)
    for one, members in _groups(theirs, mine, right, left):
        pairs.add(members, (one,), "weights together")


def _groups(ones: Sequence[str], many: Sequence[str], left: Outline, right: Outline) -> Iterable[tuple[str, tuple[str, ...]]]:
    with_weights = [path for path in many if path in right.weights]
    for one in ones:
        for size in (2, 3, 4):
            for start in range(len(with_weights) - size + 1):
                members = tuple(with_weights[start : start + size])
                if one in left.weights and _is_sum(left.weights[one][0], [right.weights[m][0] for m in members]):
                    yield one, members


def _is_sum(whole: Print, parts: Sequence[Print]) -> bool:
    if whole.numel != sum(p.numel for p in parts):
        return False
    squares, total = sum(p.squares for p in parts), sum(p.total for p in parts)
    return abs(math.log(whole.squares / squares)) < NEAR / 5 and abs(whole.total - total) < NEAR * math.sqrt(whole.squares)


def _by_content(left: Outline, right: Outline, pairs: Pairs) -> None:
    """A container is the one that holds the partners of what it holds, and nothing else's."""
    mine, theirs = _free(left, right, pairs)
    free = set(theirs)
    for one in sorted((p for p in mine if not left.book.modules[p].leaf), key=lambda p: -p.count(".")):
        images = [path for pair in pairs.found.values() if pair.a[0] and all(_inside(p, one) for p in pair.a) for path in pair.b]
        shared = _common(images)
        candidates = [p for p in free if images and (p == shared or (_inside(shared, p) and p)) and not right.book.modules[p].leaf]
        for other in sorted(candidates, key=lambda p: (p.rpartition(".")[2] != one.rpartition(".")[2], -len(p))):
            inside = [pair for pair in pairs.found.values() if any(_inside(p, other) for p in pair.b)]
            if all(_inside(p, one) for pair in inside for p in pair.a):
                pairs.add((one,), (other,), "content")
                free.discard(other)
                break


def _inside(path: str, container: str) -> bool:
    return not container or path.startswith(container + ".")


def _common(paths: Sequence[str]) -> str:
    """The deepest module that holds all of them."""
    parts = [path.split(".")[:-1] for path in paths]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def _by_place(left: Outline, right: Outline, pairs: Pairs) -> None:
    """What is left inside a pair of containers, in order, kind by kind and shape by shape."""
    single = pairs.single
    mine, theirs = _free(left, right, pairs)
    partner = {other: one for one, other in single.items()}
    homes: defaultdict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for path in mine:
        if (home := _home(path, single)) is not None:
            homes[home][0].append(path)
    for path in theirs:
        if (home := _home(path, partner)) is not None:
            homes[partner[home]][1].append(path)
    for ours, others in homes.values():
        keys = [[(outline.kind(p), max(outline.shape(p), default=0)) for p in side] for outline, side in ((left, ours), (right, others))]
        for block in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_matching_blocks():
            for i in range(block.size):
                pairs.add((ours[block.a + i],), (others[block.b + i],), "place")


def _silent(left: Outline, right: Outline, pairs: Pairs) -> None:
    """Modules that are never called, and whose parameters another one uses: by name, below what has a partner."""
    single = pairs.single
    for path in left.weights:
        home = None if path in left.orders else _home(path, single)
        if home is not None:
            other = f"{single[home]}.{path[len(home) :].lstrip('.')}".lstrip(".")
            if other in right.weights and other not in right.orders:
                pairs.add((path,), (other,), "name")


def _home(path: str, known: Iterable[str]) -> str | None:
    """The deepest container around it that has a partner."""
    names = frozenset(known)
    while path:
        path = path.rpartition(".")[0]
        if path in names:
            return path
    return None
