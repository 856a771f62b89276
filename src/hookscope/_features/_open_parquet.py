"""A shard of Parquet that is being written: by a thread beside the model, a group of rows at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ._batch import Ids, Piece
from ._columns import column, values_of_column
from ._dtypes import stored
from ._entry import Entry
from ._rows import Ended, Rows, ends_of, joined_ids, lengths_of

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_BYTES = 1 << 23
Held = list[tuple[Piece, Ids]]


class OpenParquet:
    """Pieces are held until they are a group; one group may be on its way to disk meanwhile.

    Where samples turn out to differ in length, what was written in the other form is read back and written again.
    """

    def __init__(self, path: Path, entry: Entry) -> None:
        self._path, self._entry = path, entry
        path.parent.mkdir(exist_ok=True)
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._rows, self._held, self._bytes = Rows(), Held(), 0
        self._writer: Any = None
        self._thread = ThreadPoolExecutor(1, "hookscope-parquet")
        self._written: Future[None] | None = None

    def append(self, piece: Piece, ids: Ids) -> None:
        """Take the samples of one batch; after a failure the shard can only be discarded."""
        was_ragged = self._rows.ragged
        self._rows.add(piece)
        if self._rows.ragged and not was_ragged:
            self._wait()
            if self._writer is not None:
                self._read_back()
        self._held.append((piece, ids))
        self._bytes += piece.values.nbytes
        if self._bytes >= GROUP_BYTES:
            self._send()

    def finish(self) -> Ended:
        """Write the last group, and put the file in its place."""
        if self._held:
            self._send()
        self._wait()
        self._close()
        self._temporary.replace(self._path)
        return self._rows.ended()

    def discard(self) -> None:
        """Leave nothing of it."""
        self._held.clear()
        try:
            self._wait()
            self._close()
        finally:
            self._thread.shutdown()
            self._temporary.unlink(missing_ok=True)

    def _send(self) -> None:
        self._wait()
        held, self._held, self._bytes = self._held, Held(), 0
        self._written = self._thread.submit(self._write, held, ragged=self._rows.ragged)

    def _wait(self) -> None:
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _write(self, held: Held, *, ragged: bool) -> None:
        """No compression and no statistics: activations give little to either, and together they cost twice as much as writing."""
        import pyarrow.parquet as parquet

        table = _table(held, self._entry, ragged=ragged)
        if self._writer is None:
            how: Any = {"use_dictionary": False, "compression": "none", "write_statistics": False}
            self._writer = parquet.ParquetWriter(self._temporary, table.schema, **how)
        self._writer.write_table(table)

    def _read_back(self) -> None:
        import pyarrow.parquet as parquet

        self._close(for_good=False)
        table = parquet.read_table(self._temporary)
        shape = json.loads(table.schema.metadata[b"hookscope"])["shape"]
        values, _ = values_of_column(table["values"].combine_chunks(), tuple(shape), stored(self._entry.dtype))
        ids: list[Any] = table["id"].to_pylist()
        named: Ids = ids if isinstance(ids[0], str) else np.array(ids, np.int64)
        self._held.insert(0, (Piece(self._entry.site, self._entry.call, self._entry.dtype, values), named))
        self._bytes += values.nbytes

    def _close(self, *, for_good: bool = True) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        if for_good:
            self._thread.shutdown()


def _table(held: Sequence[tuple[Piece, Ids]], entry: Entry, *, ragged: bool) -> pa.Table:
    import pyarrow as pa

    ids = joined_ids([some for _, some in held])
    numbers = pa.array(ids, pa.string() if isinstance(ids, list) else pa.int64())
    values = pa.chunked_array([_column(piece, ragged=ragged) for piece, _ in held])
    last = held[-1][0]
    shape = last.values.shape[2:] if ragged and last.lengths is None else last.values.shape[1:]
    fields = [pa.field("id", numbers.type, nullable=False), pa.field("values", values.type, nullable=False)]
    about = json.dumps({"dtype": entry.dtype, "shape": shape})
    return pa.Table.from_arrays([numbers, values], schema=pa.schema(fields, {"hookscope": about}))


def _column(piece: Piece, *, ragged: bool) -> pa.Array[Any]:
    if not ragged:
        return column(piece.values)
    values = piece.values if piece.lengths is not None else piece.values.reshape(-1, *piece.values.shape[2:])
    return column(values, ends_of(lengths_of(piece)))
