"""Rows: where they lie, that they stay there, and how they are read."""

from __future__ import annotations

import copy
import threading

import numpy as np
import torch

from hookscope._core._stats import EMPTY
from hookscope._stats import Cells, reduce_into
from hookscope._stats._cells import CHUNK


def test_a_row_never_written_reads_as_no_elements():
    cells = Cells("cpu")
    assert tuple(cells.read([cells.row()])[0]) == EMPTY


def test_rows_are_read_in_the_order_asked_for_across_chunks():
    cells = Cells("cpu")
    rows = [cells.row() for _ in range(2 * CHUNK + 5)]
    for i, row in enumerate(rows):
        row.view.fill_(i)
    order = np.random.default_rng(0).permutation(len(rows))
    read = cells.read([rows[i] for i in order])
    assert read.shape == (len(rows), 8)
    assert read.dtype == np.float64
    assert (read == order[:, None]).all()


def test_no_row_reads_as_an_empty_table():
    assert Cells("cpu").read([]).shape == (0, 8)


def test_a_row_keeps_its_address_while_others_are_added():
    cells = Cells("cpu")
    first = cells.row()
    for _ in range(3 * CHUNK):
        cells.row()
    assert first.view.data_ptr() == first.pointer
    reduce_into(first, torch.ones(3))
    assert cells.read([first])[0, 0] == 3


def test_what_was_read_does_not_change_with_the_row():
    cells = Cells("cpu")
    row = cells.row()
    read = cells.read([row])
    row.view.fill_(5.0)
    assert tuple(read[0]) == EMPTY


def test_writing_one_row_leaves_the_version_of_its_neighbour():
    cells = Cells("cpu")
    first, second = cells.row(), cells.row()
    before = second.view._version
    first.view[0].copy_(torch.ones(8))
    assert second.view._version == before


def test_a_second_reduction_overwrites_the_first():
    cells = Cells("cpu")
    row = cells.row()
    for n in (50, 3):
        reduce_into(row, torch.ones(n))
        reduce_into(row, torch.ones(n, dtype=torch.int32))
        assert cells.read([row])[0, 0] == n


def test_rows_asked_for_by_many_threads_are_all_different():
    cells, rows = Cells("cpu"), []
    threads = [threading.Thread(target=lambda: rows.extend(cells.row() for _ in range(500))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({row.pointer for row in rows}) == 2000


def test_a_copied_row_still_names_memory_of_its_own_chunk():
    row = Cells("cpu").row()
    assert copy.copy(row).pointer == row.view.data_ptr()
