"""A site: a place that tensors pass, named as the user's own model names it, with a kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["input", "output", "output_grad", "param", "param_grad", "update", "loss", "scalar"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MODULE_KINDS: tuple[Kind, ...] = ("input", "output", "output_grad")
PARAM_KINDS: tuple[Kind, ...] = ("param", "param_grad", "update")
ROOT = "(root)"  # how the empty path, the model itself, is written


@dataclass(frozen=True, slots=True)
class Site:
    """One row of a run's table of sites.

    `path` is exactly the key of `named_modules()` or `named_parameters()`, wrapper prefixes removed; `""` is the model itself.
    `model` is empty unless the run watches several models; `label` tells variants of a kind apart (`eval`, `preclip`, `inner`,
    `second`); `output_path` leads to a tensor inside a structured output (`[1][0]`, `.last_hidden_state`).
    `module` is the path of the module that the site belongs to (for a parameter, its owner), `bases` the qualified class names of
    that module up to `torch.nn.Module`, most derived first. `sampled` counts the elements that are read when not all are.
    Of a tensor that is spread over ranks, `shape` and `numel` are those of the whole; `part` says which part this rank holds (`0:1/4`:
    along dimension 0 the second of four) and `held` how many elements that is.

    >>> Site(0, "encoder.3", "output", output_path="[0]", module="encoder.3").name
    'encoder.3:output[0]'
    """

    id: int
    path: str
    kind: Kind
    label: str = ""
    output_path: str = ""
    model: str = ""
    module: str = ""
    bases: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    device: str = ""
    aliases: tuple[str, ...] = ()
    trainable: bool | None = None
    numel: int | None = None
    sampled: int | None = None
    part: str = ""
    held: int | None = None

    @property
    def full_path(self) -> str:
        """The path with the model's name in front where the run watches several; never empty."""
        return ".".join(part for part in (self.model, self.path) if part) or ROOT

    @property
    def full_module(self) -> str:
        """The owning module's path with the model's name in front where there are several; never empty."""
        return ".".join(part for part in (self.model, self.module) if part) or ROOT

    @property
    def name(self) -> str:
        """The site as it is written everywhere: `encoder.3:output[0]`, `fc.weight:param_grad/preclip`, `loss`."""
        if self.kind in ("loss", "scalar"):
            return self.full_path
        return f"{self.full_path}:{self.kind}{'/' + self.label if self.label else ''}{self.output_path}"

    @property
    def module_class(self) -> str:
        """The bare class name of the owning module, or `""`."""
        return self.bases[0].rsplit(".", 1)[-1] if self.bases else ""
