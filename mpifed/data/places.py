"""Where rows stand, as messages say it: rows of tables count from 1, and entries of arrays, as in Python, from 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mpifed.core.record import Integers
from mpifed.text import listed


class Places(NamedTuple):
    """Rows of tables or arrays that stand one below the other."""

    sizes: Mapping[str, int]  # the rows of each, by what messages call it; of the last it is not read
    column: str | None = None  # of tables
    rows: Integers | None = None  # [s] which of all these rows they are; None: all, in order

    def of(self, rows: Integers) -> Places:
        """Of some of the rows alone."""
        return self._replace(rows=rows if self.rows is None else self.rows[rows])

    def whole(self) -> str:
        """What all rows are called."""
        return listed(self.sizes, 3) + ("" if self.column is None else f": column {self.column!r}")

    def at(self, row: int) -> str:
        """What one row is called."""
        row = row if self.rows is None else int(self.rows[row])
        starts = np.cumsum([0, *self.sizes.values()])[:-1]
        place = int(np.searchsorted(starts, row, side="right")) - 1
        what, row = [*self.sizes][place], row - starts[place]
        return f"{what}[{row}]" if self.column is None else f"{what}: row {row + 1}, column {self.column!r}"
