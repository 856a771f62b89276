"""Names as the user's own model has them: wrapper parts removed, and the names that come near to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

WRAPPER_PARTS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})


def strip_wrappers(path: str, *, leading_module: bool = False) -> str:
    """The path without the parts that `torch.compile`, activation checkpointing and FSDP put into it.

    `leading_module` also removes one `module` in front, the part that DDP and DataParallel add; a model may have a child of that name
    of its own, so only a caller that knows the wrapper's type can ask for it.

    >>> strip_wrappers("module._orig_mod.encoder.0._checkpoint_wrapped_module.weight", leading_module=True)
    'encoder.0.weight'
    >>> strip_wrappers("module.weight")
    'module.weight'
    """
    parts = [part for part in path.split(".") if part not in WRAPPER_PARTS]
    if leading_module and parts[:1] == ["module"]:
        del parts[0]
    return ".".join(parts)


def near(name: str, candidates: Iterable[str]) -> list[str]:
    """The candidates that a writer of `name` may have meant, likeliest first: at most three by a shared ending, three by spelling.

    >>> near("layers.3", ["encoder.layers.3", "encoder.layers.4", "head"])
    ['encoder.layers.3']
    >>> near("FC", ["fc", "head"])
    ['fc']
    """
    known = list(dict.fromkeys(c for c in candidates if c))
    ending = [c for c in known if c.endswith(f".{name}") or name.endswith(f".{c}")]
    folded = {c.casefold(): c for c in reversed(known)}
    matches = difflib.get_close_matches
    spelt = [folded[c] for c in matches(name.casefold(), folded, 3) or matches(name.casefold(), folded, 3, cutoff=0.5)]
    return [c for c in dict.fromkeys(ending[:3] + spelt) if c != name]
