"""The tensors that were extracted, found by the names of their sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..._core._errors import SelectionError
from ..._core._names import near
from ..._core._select import parse_key
from ..._core._site import Site
from ._key import Key

Name = Key | str | tuple[str, int]


class Extracted(Mapping[Key, torch.Tensor]):
    """Tensors by site and call, in the order in which they came.

    `feats["encoder.0"]` is the output of that module where it was called once, `feats["encoder.0", 1]` that of its call 1 (also written
    `feats["encoder.0@1"]`), `feats["lstm:output[1][0]"]` one tensor of several. `feats.calls("encoder.0")` is the list of all calls.
    Iterating gives keys, with `site` and `call`; `str(key)` is what it is called by. A name that is not there raises `SelectionError`,
    which is a `LookupError`, and names what there is.

    `missing` says, in a sentence for each, which parts of the selection gave nothing.

    >>> import torch
    >>> from torch import nn
    >>> import hookscope as hs
    >>> feats = hs.extract(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.ones(5, 3), "*")
    >>> [str(key) for key in feats], feats["1"].shape
    (['0:output', '1:output'], torch.Size([5, 4]))
    """

    def __init__(self, tensors: Mapping[Key, torch.Tensor] | None = None, missing: tuple[str, ...] = ()) -> None:
        self._tensors = dict(tensors or {})
        self.missing = missing

    def __getitem__(self, name: Name) -> torch.Tensor:
        if isinstance(name, Key) and name in self._tensors:
            return self._tensors[name]
        return self._tensors[self._key(name)]

    def __contains__(self, name: object) -> bool:
        if isinstance(name, Key):
            return name in self._tensors
        try:
            self._key(name)
        except SelectionError:
            return False
        return True

    def __iter__(self) -> Iterator[Key]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def calls(self, name: str) -> list[torch.Tensor]:
        """The tensors of one site, call by call."""
        return [self._tensors[key] for key in self._keys_of_one_site(name)[0]]

    def numpy(self) -> dict[str, Any]:
        """`{name: array}` on the CPU; bfloat16, which NumPy has not, as float32."""
        return {str(key): _array(tensor) for key, tensor in self.items()}

    def __repr__(self) -> str:
        from ._table import table

        return table(self)

    def _key(self, name: object) -> Key:
        call: int | None = None
        if isinstance(name, Key):
            raise SelectionError(f"nothing was extracted as '{name}': {self._there()}")
        if isinstance(name, tuple) and len(name) == 2 and isinstance(name[1], int):
            name, call = name
        if not isinstance(name, str):
            raise SelectionError(
                f"{name!r} names no tensor: write a site, as in feats['encoder.0'], or a site and a call, feats['encoder.0', 1]"
            )
        keys, written = self._keys_of_one_site(name)
        call = written if call is None else call
        if call is None and len(keys) > 1:
            raise SelectionError(
                f"{name!r} was called {len(keys)} times: write feats[{name!r}, {keys[-1].call}] for one of the calls "
                f"{keys[0].call} to {keys[-1].call}, feats.calls({name!r}) for all"
            )
        found = [key for key in keys if call is None or key.call == call]
        if not found:
            raise SelectionError(f"there is no call {call} of {name!r}: there is {', '.join(str(key.call) for key in keys)}")
        return found[0]

    def _keys_of_one_site(self, name: str) -> tuple[list[Key], int | None]:
        """The keys of the one site that is meant, and the call that the name itself gives."""
        wanted = parse_key(name)
        sites = list(dict.fromkeys(key.site for key in self._tensors))
        matcher = wanted.selection.among(sites)
        found = [site for site in sites if matcher.matches(site)]
        outputs = [site for site in found if site.kind == "output" and not site.label]
        found = outputs if outputs and ":" not in name else found
        if not found:
            raise SelectionError(self._nothing(name, sites))
        if len(found) > 1:
            raise SelectionError(f"{name!r} means {len(found)} tensors: write one of {', '.join(repr(site.name) for site in found[:8])}")
        return [key for key in self._tensors if key.site == found[0]], wanted.call

    def _nothing(self, name: str, sites: list[Site]) -> str:
        paths = dict.fromkeys([site.full_path for site in sites] + [site.name for site in sites])
        meant = near(name, paths)
        hint = f"did you mean {' or '.join(map(repr, meant))}?" if meant else self._there()
        return f"nothing was extracted as {name!r}: {'; '.join((*self.missing, hint))}"

    def _there(self) -> str:
        names = list(dict.fromkeys(key.site.name for key in self._tensors))
        return (
            f"there is {', '.join(map(repr, names[:5]))}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
            if names
            else "there is nothing"
        )


def _array(tensor: torch.Tensor) -> Any:
    value = tensor.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
