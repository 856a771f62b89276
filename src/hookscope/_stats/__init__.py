"""Turn one tensor into the eight stats, in one pass over its memory, without touching what it belongs to."""

from ._backend import backend
from ._batch import Batch, change_job, sampled_job
from ._cells import Cells, Row
from ._exponents import count_into, histogram_of
from ._fallback import stats_of
from ._gradients import Gradients, Marks, Place, glance, marks_of, place_for_marks, read_gradients, read_plain
from ._list import Listed
from ._plain import is_dense
from ._reduce import reduce_into
from ._repeated import Repeated
from ._ring import Ring

__all__ = [
    "Batch",
    "Cells",
    "Gradients",
    "Listed",
    "Marks",
    "Place",
    "Repeated",
    "Ring",
    "Row",
    "backend",
    "change_job",
    "count_into",
    "glance",
    "histogram_of",
    "is_dense",
    "marks_of",
    "place_for_marks",
    "read_gradients",
    "read_plain",
    "reduce_into",
    "sampled_job",
    "stats_of",
]
