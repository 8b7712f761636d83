"""Maps: files that state which client holds which rows and columns.

Rows and columns are numbers from 0 and inclusive ranges, or `all`. Rows are training rows, numbered from 0 when test
rows have been held out. A map is a CSV file with a line for each client::

    client,rows,columns
    0,0-99 200-299,all
    1,100-199,0-9 12
    2,100-199,10 11 13-19

or, of rows that are divided with all their columns, a line for each row::

    row,client
    0,1
    1,0
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Integers
from mpifed.data.cells import check_cells
from mpifed.data.partition import Partition, by_rectangles
from mpifed.data.source_files import open_packed

FIELDS = ["client", "rows", "columns"]  # of a CSV file
OF_ROWS = ["row", "client"]  # of one with a line for each row
_DIGITS = 18  # most digits of a number, so that it fits into 64 bits


def read_map(path: Path, samples: int, features: int, missing: str = "error") -> Partition:
    """The partition that a map file describes.

    Parameters
    ----------
    path : of the file
    samples, features : total numbers of rows and columns
    missing : "error", or "zero" to allow cells that no client holds; every row and every column still needs a client

    Raises
    ------
    DataError : when the file is missing or malformed, a client has no entry, or a cell is held by several clients
        or, unless that is allowed, by none.
    """
    with open_packed(path, "rt") as file:
        lines = [(f"{path}: line {number}", line) for number, line in enumerate(file, start=1) if line.strip()]
    table = [(place, [cell.strip().strip('"') for cell in line.split(",")]) for place, line in lines]
    head = table[0][1] if table else []
    if head not in (FIELDS, OF_ROWS):
        raise DataError(f"{path}: line 1 is {head!r:.80}; expected {','.join(FIELDS)} or {','.join(OF_ROWS)}")
    held = dict[int, tuple[str, list[str], list[str]]]()  # by client: place for messages, its rows and columns
    for place, cells in table[1:]:
        client = _number(cells[head.index("client")]) if len(cells) == len(head) else None
        if client is None or (client in held and head == FIELDS):
            raise DataError(f"{place}: {','.join(cells)!r:.80}; expected {','.join(head)}, with a client from 0, once")
        if head == FIELDS:
            held[client] = place, cells[1].split(), cells[2].split()
        else:
            held.setdefault(client, (place, [], ["all"]))[1].append(cells[0])
    for client in range(max(1, len(held))):
        if client not in held:
            raise DataError(f"{path}: no entry for client {client}; every client from 0 to the last needs one")
    rectangles, count = [], 0
    for _, (place, rows, columns) in sorted(held.items()):
        if count <= samples * features:  # else cells are held twice; the clients so far suffice to find one
            of_rows = _numbers(f"{place}, rows", rows, samples)
            of_columns = _numbers(f"{place}, columns", columns, features)
            count += len(of_rows) * len(of_columns)
            rectangles.append((of_rows, of_columns))
    partition = check_cells(
        by_rectangles(rectangles), samples, features, missing,
        lambda row, column: f"{path}: the cell of row {row} and column {column}", "client {}".format,
    )  # fmt: skip
    for what, groups, size in (("row", partition.rows, samples), ("column", partition.columns, features)):
        for number in np.setdiff1d(np.arange(size), np.concatenate(groups))[:1]:
            raise DataError(f"{path}: {what} {number} is held by no client; every {what} needs one")
    return partition


def _numbers(place: str, words: list[str], size: int) -> Integers:
    """The distinct numbers from 0 to size - 1 in `words`, ascending."""
    if words == ["all"]:
        return np.arange(size)
    if not words:
        raise DataError(f"{place}: empty; every client holds at least one")
    held = np.zeros(size, np.bool_)
    for word in words:
        first, _, last = (_number(part) for part in word.partition("-"))
        last = first if "-" not in word else last
        if first is None or last is None or not first <= last < size:
            raise DataError(
                f"{place}: {word!r:.80}; expected numbers or ranges FIRST-LAST within 0 to {size - 1}, or all; rows "
                "are for training, without those that --test-fraction holds out or --missing drop leaves out"
            )
        held[first : last + 1] = True
    return np.flatnonzero(held)


def _number(text: str) -> int | None:
    """A nonnegative integer; None for anything else, and for numbers of too many digits."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None
