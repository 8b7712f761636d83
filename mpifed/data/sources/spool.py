"""Rows on the disk while a source is read, so that they need not fit into memory and can be read in any order."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator

import numpy as np
from numpy.typing import DTypeLike

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.data.sources.dataset import CHUNK_VALUES

_SCATTERED_ROWS = 1 << 14  # of a chunk, each on a page of its own at worst
_FEW_BYTES = 1 << 27  # of a file whose pages may all be in memory


class Spool:
    """Rows [s, p], appended in pieces to a temporary file in $TMPDIR, which the system removes with the process."""

    def __init__(self, features: int, dtype: DTypeLike) -> None:
        self.features, self.dtype, self.rows = features, np.dtype(dtype), 0
        self._file = tempfile.TemporaryFile(prefix="mpifed-rows-")  # noqa: SIM115 -- lives as long as this object
        weakref.finalize(self, self._file.close)

    def append(self, X: Array) -> None:
        """Add rows X [b, p]; DataError on a full disk."""
        try:
            self._file.write(np.ascontiguousarray(X, self.dtype).data)
        except OSError as error:
            raise DataError(
                f"{tempfile.gettempdir()}: cannot be written ({error.strerror}); rows are stored there while a source "
                "is read: make room, or set TMPDIR to another folder"
            ) from error
        self.rows += len(X)

    def chunks(self, order: Array | None = None) -> Iterator[Array]:
        """All rows [b, p], as they were appended, or in an order [s] of row indices."""
        self._file.flush()
        size = max(1, CHUNK_VALUES // self.features)
        if order is not None and self.rows * self.features * self.dtype.itemsize > _FEW_BYTES:
            size = min(size, _SCATTERED_ROWS)
        for start in range(0, self.rows if order is None else len(order), size):
            # a mapping for each chunk: pages that were read count as memory of the process while they are mapped
            rows = np.memmap(self._file, self.dtype, "r", shape=(self.rows, self.features))
            yield np.array(rows[start : start + size] if order is None else rows[order[start : start + size]])
