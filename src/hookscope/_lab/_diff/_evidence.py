"""What the modules themselves say about why they differ: modes, parameters, buffers, attributes, and whose output it is instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ._book import Book, Called, Described
from ._parameters import ParameterDifference

# One thing under many names. Only these are compared across names.
_SAME = (
    ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "norm_eps", "rms_norm_eps"),
    ("num_heads", "n_heads", "n_head", "heads", "num_attention_heads", "nhead"),
    ("p", "dropout", "dropout_p", "attention_dropout"),
    ("scale", "scaling", "scale_factor"),
    ("num_key_value_heads", "n_kv_heads", "num_kv_heads"),
)
_IDLE = frozenset({"training", "layer_idx", "gradient_checkpointing", "fan_in_fan_out"})


def evidence(modules: tuple[list[Described], list[Described]], tensors: Mapping[str, list[ParameterDifference]]) -> Iterator[str]:
    """Sentences for a pair of modules and what lies in them, likeliest cause first. `tensors` by module of a."""

    def at(module: Described) -> str:
        return f"in {module.path}, " if len(modules[0]) > 1 else ""

    for one, other in zip(*modules, strict=False):
        if one.attributes.get("training") != other.attributes.get("training") and _has_modes(one, other):
            modes = ["in training mode" if m.attributes.get("training") else "in evaluation mode" for m in (one, other)]
            yield f"{at(one)}a is {modes[0]} and b {modes[1]}"
    for one, other in zip(*modules, strict=False):
        keeps = ["Conv1D" in {base.rsplit(".", 1)[-1] for base in m.bases} for m in (one, other)]
        for row in tensors.get(one.path, ()):
            if not row.agrees:
                yield row.sentence
            elif keeps[0] != keeps[1] and row.a.endswith(".weight") and not row.layout:
                yield f"{row.a} is the same in both, and has to be transposed: a Conv1D keeps (in, out), a Linear (out, in)"
    for one, other in zip(*modules, strict=False):
        for name, left, right in differing(one, other):
            yield f"{at(one)}{name} is {left!r} in a and {right!r} in b"


_MODAL = ("Dropout", "BatchNorm", "InstanceNorm", "RNN", "LSTM", "GRU")


def _has_modes(one: Described, other: Described) -> bool:
    """Whether the mode changes what a module computes: known of torch's own, possible of any other."""
    for module in (one, other):
        if any(word in base for base in module.bases for word in _MODAL) or not module.bases[0].startswith("torch.nn."):
            return True
        if any("drop" in name and isinstance(value, float) and value for name, value in module.attributes.items()):
            return True
    return False


def differing(one: Described, other: Described) -> Iterator[tuple[str, Any, Any]]:
    """Attributes with one meaning and two values."""
    left, right = one.attributes, other.attributes
    for name, value in left.items():
        if name not in _IDLE and name in right and right[name] != value and type(right[name]) is type(value):
            yield name, value, right[name]
    for names in _SAME:
        mine, theirs = ([n for n in names if n in side] for side in (left, right))
        if mine and theirs and mine[0] not in right and theirs[0] not in left and left[mine[0]] != right[theirs[0]]:
            yield f"{mine[0]} (b: {theirs[0]})", left[mine[0]], right[theirs[0]]


def instead(book: Book, call: Called, digests: tuple[str, ...]) -> Iterator[str]:
    """Where b's output is, to the bit, another output or an input of a."""
    for other in book.calls.values():
        if other.key == call.key:
            if any(p.digest in digests for p in other.inputs):
                yield "b's output is a's input: b passes it on unchanged"
            continue
        if not (other.entered > call.entered and other.left < call.left) and any(p.digest in digests for p in other.outputs):
            yield f"b's output is, to the bit, that of a's {other.path or '(root)'}: the order is another, or a module is left out"
            return
