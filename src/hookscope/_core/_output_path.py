"""The way to a tensor inside a structured output: `[1][0]`, `.last_hidden_state`, `["logits"]`."""

from __future__ import annotations

import re
from functools import lru_cache

OutputKey = int | str
STEP = re.compile(r"""\[(-?\d+)\]|\["([^"]*)"\]|\['([^']*)'\]|\.([^\W\d]\w*)""")


@lru_cache(maxsize=65536)
def output_keys(text: str) -> tuple[OutputKey, ...]:
    """The keys one after the other. `.logits` and `["logits"]` are the same key, since a model's output often has both ways in.

    Text that is no such way is one key by itself, so that every output path of a run can be compared.

    >>> output_keys('[1]["logits"].first')
    (1, 'logits', 'first')
    """
    keys: list[OutputKey] = []
    at = 0
    while at < len(text):
        step = STEP.match(text, at)
        if step is None:
            return (text,)
        keys.append(int(step[1]) if step[1] is not None else step[step.lastindex or 0])
        at = step.end()
    return tuple(keys)
