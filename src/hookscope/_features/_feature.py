"""`Feature`: the values of one site for all samples, read from disk as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .._core._errors import UsageError
from ._chunk import Chunk, Mode
from ._dtypes import Array, shown, widened
from ._entry import Entry

if TYPE_CHECKING:
    import torch

Samples: TypeAlias = "int | slice | Sequence[int] | Array"


@dataclass(frozen=True, slots=True)
class Source:
    """Where the samples of a site lie: in `chunks`, in this order, or sample i at position `order[i]` of it."""

    name: str
    entry: Entry
    ragged: bool
    open: Callable[[Mode], list[Chunk]]
    order: Array | None = None


class Feature:
    """The values of one site, sample by sample, like a numpy array that lies on disk.

    `feature[3]`, `feature[10:20]`, `feature[[1, 5]]`, `feature[:, 0]` and `np.asarray(feature)` give numpy arrays; a slice of the default
    storage is a map of the file and copies nothing. bfloat16, which numpy lacks, is given as float32, which holds it exactly. `torch()`
    gives tensors in the type that was stored.

    Of sequences that differ in length (`ragged`), `feature[3]` is one sequence and `feature[10:20]` a list of them; `values` are all
    steps end to end and `offsets[i]:offsets[i + 1]` those of sample i.

    >>> import numpy as np
    >>> from hookscope._features._sources import of_arrays
    >>> feature = of_arrays("fc", np.arange(6.0, dtype=np.float32).reshape(3, 2))
    >>> feature.shape, feature[-1].tolist(), feature[:2, 0].tolist()
    ((3, 2), [4.0, 5.0], [0.0, 2.0])
    """

    def __init__(self, source: Source, chunks: Sequence[Chunk]) -> None:
        self._source, self._chunks = source, tuple(chunks)
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum([chunk.samples for chunk in self._chunks], dtype=np.int64)])

    @property
    def name(self) -> str:
        """The site, as its key is written."""
        return self._source.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numpy arrays that are given."""
        return shown(self._source.entry.dtype)

    @property
    def stored_dtype(self) -> str:
        """The type on disk, by torch's name."""
        return self._source.entry.dtype

    @property
    def ragged(self) -> bool:
        """Whether the samples differ in length."""
        return self._source.ragged

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Samples first; None for a length that differs."""
        shape = self._source.entry.shape
        return (len(self), None, *shape[1:]) if self.ragged else (len(self), *shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all samples, as stored."""
        steps = int(self.offsets[-1]) if self.ragged else len(self)
        shape = self._source.entry.shape
        per = int(np.prod(shape[1:] if self.ragged else shape, dtype=np.int64))
        return steps * per * (2 if self.stored_dtype == "bfloat16" else self.dtype.itemsize)

    def __len__(self) -> int:
        order = self._source.order
        return int(self._starts[-1]) if order is None else len(order)

    def __getitem__(self, key: Any) -> Any:
        samples, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
        if rest and self.ragged and not isinstance(samples, int | np.integer):
            raise UsageError(f"the samples of {self.name} differ in length: take one, feature[i], before {rest!r} of it")
        found = self._widened(self._raw(samples))
        if not rest:
            return found
        return found[rest] if isinstance(samples, int | np.integer) else found[(slice(None),) + rest]  # noqa: RUF005  # an unpacked index needs Python 3.11

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        whole = self.numpy()
        if copy is False and (self.stored_dtype == "bfloat16" or (dtype is not None and dtype != whole.dtype)):
            raise ValueError(f"{self.name} cannot be given without a copy")
        return np.array(whole, dtype=dtype, copy=True) if copy else np.asarray(whole, dtype=dtype)

    def numpy(self) -> Array:
        """All samples as one array: a map of the file where they lie in one, in order and in a type of numpy; else in memory."""
        self._same_length()
        found: Array = self[:]
        return found

    def torch(self, samples: Samples = slice(None)) -> torch.Tensor | list[torch.Tensor]:
        """The samples as a tensor, on the CPU, in the type that was stored; of sequences that differ in length, as a list of tensors.

        Where numpy gives a map of the file, the tensor shares it: writing to the tensor changes the tensor alone, never the file.
        """
        writable = Feature(self._source, self._source.open("c"))
        raw = writable._raw(samples)
        return [_tensor(one, self.stored_dtype) for one in raw] if isinstance(raw, list) else _tensor(raw, self.stored_dtype)

    @property
    def offsets(self) -> Array:
        """Where each sample begins in `values`, one more than there are samples."""
        lengths = [np.diff(self._offsets_of(chunk)) for chunk in self._chunks]
        all_lengths = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
        order = self._source.order
        chosen = all_lengths if order is None else all_lengths[order]
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(chosen, dtype=np.int64)])

    @property
    def values(self) -> Array:
        """All steps of all samples end to end; what `numpy()` gives where the samples do not differ in length."""
        if not self.ragged:
            return self.numpy()
        if len(self._chunks) == 1 and self._source.order is None:
            return self._widened(self._chunks[0].opened().values)  # type: ignore[no-any-return]  # one array
        inner = self._source.entry.shape[1:]
        return np.concatenate([np.empty((0, *inner), self.dtype), *self])

    def __repr__(self) -> str:
        return f"<Feature {self.name} {_written(self.shape)} {self.stored_dtype}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Only where it lies: a worker of a loader maps the file itself."""
        return _again, (self._source,)

    def _same_length(self) -> None:
        if self.ragged:
            raise UsageError(
                f"the samples of {self.name} differ in length, so they are no array: take one, feature[i], "
                "or all steps, feature.values with feature.offsets"
            )

    def _widened(self, raw: Any) -> Any:
        if isinstance(raw, list):
            return [widened(one, self.stored_dtype) for one in raw]
        return widened(raw, self.stored_dtype)

    def _raw(self, samples: Samples) -> Any:
        if isinstance(samples, int | np.integer):
            return self._one(self._position(int(samples)))
        if not self.ragged and len(self._chunks) == 1 and self._source.order is None:
            return self._chunks[0].opened().values[samples]
        positions = np.arange(len(self), dtype=np.int64)[samples] if self._source.order is None else self._source.order[samples]
        return [self._one(int(at)) for at in positions] if self.ragged else self._gathered(positions)

    def _position(self, sample: int) -> int:
        if not -len(self) <= sample < len(self):
            raise IndexError(f"there is no sample {sample}: {self.name} has {len(self)}")
        sample %= len(self)
        return sample if self._source.order is None else int(self._source.order[sample])

    def _one(self, position: int) -> Array:
        number = int(np.searchsorted(self._starts, position, "right")) - 1
        chunk, at = self._light(number), position - int(self._starts[number])
        shard = chunk.opened()
        if not self.ragged:
            return shard.values[at]  # type: ignore[no-any-return]  # an array of one sample
        offsets = self._offsets_of(chunk)
        return self._steps_of(chunk)[int(offsets[at]) : int(offsets[at + 1])]

    def _gathered(self, positions: Array) -> Array:
        shape = self._source.entry.shape
        kind = self._chunks[0].opened().values.dtype if self._chunks else self.dtype
        found = np.empty((len(positions), *shape), kind)
        numbers = np.searchsorted(self._starts, positions, "right") - 1
        for number in np.unique(numbers):
            here = numbers == number
            found[here] = self._light(int(number)).opened().values[positions[here] - self._starts[number]]
        return found

    def _light(self, number: int) -> Chunk:
        """The chunk, and of those that take memory no other."""
        for other in self._chunks[:number] + self._chunks[number + 1 :]:
            other.forget()
        return self._chunks[number]

    def _steps_of(self, chunk: Chunk) -> Array:
        shard = chunk.opened()
        return shard.values if shard.offsets is not None else shard.values.reshape(-1, *shard.values.shape[2:])

    def _offsets_of(self, chunk: Chunk) -> Array:
        """Those of the file, or of its only length where its samples happen to be of one."""
        shard = chunk.opened()
        if shard.offsets is not None:
            return shard.offsets
        length = shard.values.shape[1] if shard.values.ndim > 1 else 1
        return np.arange(chunk.samples + 1, dtype=np.int64) * length


def _again(source: Source) -> Feature:
    return Feature(source, source.open("r"))


def _written(shape: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("*" if n is None else str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"


def _tensor(raw: Array, dtype: str) -> torch.Tensor:
    import torch

    kind: torch.dtype = getattr(torch, dtype)
    raw = np.asarray(raw)
    made = torch.from_numpy(raw if raw.flags.writeable else raw.copy())
    return made if made.dtype == kind else made.view(kind)
