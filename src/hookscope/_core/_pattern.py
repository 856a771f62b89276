"""The text of a selection, read: `[~]path[@call][:kind[/label][output_path],...][@call]`.

Whatever is malformed is named with its position, counted from 0.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import NoReturn

from ._errors import SelectionError
from ._names import WRAPPER_PARTS
from ._output_path import STEP, OutputKey, output_keys
from ._path import Index, Path, Span
from ._site import KINDS, PARAM_KINDS, ROOT, Kind

_WHOLE = re.compile(r"\s*(-?\d+)\s*")
_SPAN = re.compile(r"\s*(-?\d+)?\s*:\s*(-?\d+)?\s*(?::\s*(-?\d+)?\s*)?")
_LABEL = re.compile(r"/([\w*-]+)")


@dataclass(frozen=True, slots=True)
class Want:
    """`output[1][0]` or `param_grad/preclip` behind the colon: the kind asked for, and which of its sites.

    No label means the unlabelled sites, `*` in it stands for any characters; the keys are a prefix of the output path.
    """

    kind: Kind
    label: str = ""
    keys: tuple[OutputKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Pattern:
    """A selection's text without its `~`. `head` and `tail` are what was written before and from the colon on, calls taken out."""

    head: str
    tail: str
    path: Path
    wants: tuple[Want, ...] = ()
    call: int | None = None

    @property
    def text(self) -> str:
        """As written, without the call."""
        return (self.head or ("" if self.tail else ROOT)) + self.tail

    @property
    def written(self) -> str:
        """As written, the call last."""
        return self.text if self.call is None else f"{self.text}@{self.call}"

    @property
    def of_parameters(self) -> bool:
        """Whether a kind of parameters is written out: then a module stands for all its parameters, those of its children included."""
        return any(want.kind in PARAM_KINDS for want in self.wants)


def parse(text: str) -> tuple[Pattern, bool]:
    """The pattern, and whether a `~` excludes it.

    >>> pattern, excluded = parse("~encoder.*:output@2")
    >>> pattern.path, pattern.call, excluded
    (('encoder', '*'), 2, True)
    """
    start = int(text.startswith("~"))
    colon = _find(text, ":", start, len(text))
    head_end, tail_end = _find(text, "@", start, colon), _find(text, "@", colon, len(text))
    calls = [_call(text, at, end) for at, end in ((head_end, colon), (tail_end, len(text))) if at < end]
    if len(calls) > 1:
        _fail(text, tail_end, "the call is given twice")
    wants = tuple(_wants(text, colon + 1, tail_end)) if colon < len(text) else ()
    path = tuple(_path(text, start, head_end))
    return Pattern(text[start:head_end], text[colon:tail_end], path, wants, calls[0] if calls else None), bool(start)


def _fail(text: str, position: int, why: str) -> NoReturn:
    raise SelectionError(f"malformed selection {text!r} at position {position}: {why}")


def _find(text: str, wanted: str, start: int, stop: int) -> int:
    """The first place of a character outside brackets and quotes, or `stop`."""
    opened, quote = -1, ""
    for at in range(start, stop):
        c = text[at]
        if quote:
            quote = "" if c == quote else quote
        elif opened >= 0:
            quote = c if c in "\"'" else ""
            opened = -1 if c == "]" else opened
        elif c == wanted:
            return at
        elif c == "]":
            _fail(text, at, "']' closes no bracket")
        elif c == "[":
            opened = at
    if opened >= 0:
        _fail(text, opened, "'[' is never closed")
    return stop


def _split(text: str, separator: str, start: int, stop: int) -> list[tuple[int, int]]:
    """The stretches between separators outside brackets."""
    stretches = []
    while (end := _find(text, separator, start, stop)) < stop:
        stretches.append((start, end))
        start = end + 1
    return [*stretches, (start, stop)]


def _call(text: str, at: int, end: int) -> int:
    digits = text[at + 1 : end]
    if not (digits.isascii() and digits.isdecimal()):
        _fail(text, at, f"{digits!r} is no call; a call is a whole number from 0, as in 'block@2'")
    return int(digits)


def _path(text: str, start: int, stop: int) -> Path:
    if text[start:stop] in ("", ROOT):
        return ()
    path: list[str | Index] = []
    for at, end in _split(text, ".", start, stop):
        bracket = _find_bracket(text, at, end)
        name = text[at:bracket]
        if not name and not (at == start and bracket < end):
            _fail(text, at, "a part of the path is missing")
        if "~" in name:
            _fail(text, at + name.index("~"), "'~' stands once, in front of the whole selection")
        if name and name != ROOT and name not in WRAPPER_PARTS:
            path.append(name)
        path.extend(_indices(text, bracket, end))
    return tuple(path)


def _find_bracket(text: str, at: int, end: int) -> int:
    found = text.find("[", at, end)
    return found if found >= 0 else end


def _indices(text: str, at: int, end: int) -> list[Index]:
    indices = []
    while at < end:
        if text[at] != "[":
            _fail(text, at, "after ']' comes '.', '[', '@', ':' or the end")
        close = text.index("]", at)
        items = text[at + 1 : close].split(",")
        offsets = [at + 1 + sum(len(before) + 1 for before in items[:i]) for i in range(len(items))]
        indices.append(Index(tuple(_item(text, item, offset) for item, offset in zip(items, offsets, strict=True))))
        at = close + 1
    return indices


def _item(text: str, item: str, offset: int) -> int | Span:
    if whole := _WHOLE.fullmatch(item):
        return int(whole[1])
    if (span := _SPAN.fullmatch(item)) is None:
        _fail(text, offset, f"bad index {item!r}; write a whole number or a range, as in h[2], h[-2:], h[3:6], h[0,3,5]")
    start, stop, step = (None if n is None else int(n) for n in span.groups())
    if step == 0:
        _fail(text, offset, f"bad index {item!r}: the step of a range cannot be 0")
    return Span(start, stop, step)


def _wants(text: str, start: int, stop: int) -> list[Want]:
    return [_want(text, at, end) for at, end in _split(text, ",", start, stop)]


def _want(text: str, at: int, end: int) -> Want:
    at += len(text[at:end]) - len(text[at:end].lstrip())
    kind = re.split(r"[/\[.]", text[at:end], maxsplit=1)[0]
    known = next((k for k in KINDS if k == kind), None)
    if known is None:
        _fail(text, at, _unknown_kind(kind))
    at += len(kind)
    label = _LABEL.match(text, at, end)
    if label is None and text[at:end].startswith("/"):
        _fail(text, at, f"a label is missing after '/', as in '{kind}/local'")
    at = label.end() if label else at
    _check_output_path(text, at, end)
    return Want(known, label[1] if label else "", output_keys(text[at:end]))


def _unknown_kind(kind: str) -> str:
    if not kind:
        return f"a kind is missing; choose one of {', '.join(KINDS)}"
    close = difflib.get_close_matches(kind, KINDS, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown kind {kind!r}: {hint}choose one of {', '.join(KINDS)}"


def _check_output_path(text: str, at: int, end: int) -> None:
    while at < end:
        step = STEP.match(text, at, end)
        if step is None:
            _fail(text, at, f'bad output path {text[at:end]!r}; write [1], ["key"] or .name')
        at = step.end()
