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

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.io_errors import open_regular
from mpifed.core.record import Array
from mpifed.data.cells import check_cells
from mpifed.data.partition import Partition, by_owners, by_rectangles
from mpifed.data.sources.dataset import check_file, shown

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
    check_file(path)
    lines = _lines(path)
    head = next(lines, ("", []))[1]
    if head == OF_ROWS:
        return by_owners(_owners(path, lines, samples), features)
    if head != FIELDS:
        raise DataError(f"{path}: line 1 is {shown(head)}; expected {','.join(FIELDS)} or {','.join(OF_ROWS)}")
    entries = dict[int, tuple[str, list[str]]]()
    for place, cells in lines:
        client = _number(cells[0])
        if client is None:
            raise DataError(f"{place}: client {shown(cells[0])}; expected a number from 0")
        if client in entries:
            raise DataError(f"{place}: client {client} again; expected a number from 0 that no other client has")
        entries[client] = place, cells
    for client in range(max(1, len(entries))):
        if client not in entries:
            raise DataError(f"{path}: no entry for client {client}; every client from 0 to the last needs one")

    def held() -> Iterator[tuple[Array, Array]]:
        cells = 0
        for place, (_, rows, columns) in entries.values():
            if cells > samples * features:
                return  # cells are held twice; the clients so far suffice to find one
            of_rows = _numbers(f"{place}, rows", rows.split(), samples)
            of_columns = _numbers(f"{place}, columns", columns.split(), features)
            cells += len(of_rows) * len(of_columns)
            yield of_rows, of_columns

    partition = by_rectangles(held())
    clients = list(entries)[: partition.clients]
    partition = partition._replace(holds=partition.holds[np.argsort(clients)])
    partition = check_cells(
        partition, samples, features, missing,
        lambda row, column: f"{path}: the cell of row {row} and column {column}",
        lambda at: f"client {sorted(clients)[at]}",
    )  # fmt: skip
    for what, groups, size in (("row", partition.rows, samples), ("column", partition.columns, features)):
        for number in np.setdiff1d(np.arange(size), np.concatenate(groups))[:1]:
            raise DataError(f"{path}: {what} {number} is held by no client; every {what} needs one")
    return partition


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(place for messages, cells) of each line that is not empty, as many cells as the first one has."""
    before, head = csv.field_size_limit(), list[str]()
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            csv.field_size_limit(max(before, path.stat().st_size))  # a client may hold very many scattered numbers
            lines = csv.reader(file)
            for cells in filter(None, lines):
                head, place = head or cells, f"{path}: line {lines.line_num}"
                if len(cells) != len(head):
                    raise DataError(f"{place}: {len(cells)} columns; expected {','.join(head)}")
                yield place, cells
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    finally:
        csv.field_size_limit(before)


def _owners(path: Path, lines: Iterator[tuple[str, list[str]]], samples: int) -> NDArray[np.int64]:
    """[samples] the client of each row, of a file with a line for each row."""
    owner = np.full(samples, -1)
    for place, cells in lines:
        row, client = map(_number, cells)
        if row is None or row >= samples:
            raise DataError(
                f"{place}: row {shown(cells[0])}; expected a number from 0 to {samples - 1}, of training rows "
                "alone (without those that --test-fraction holds out or --missing drop leaves out)"
            )
        if client is None or client >= samples:
            most, came = ("", shown(cells[1])) if client is None else (f" to {samples - 1}", client)
            raise DataError(f"{place}: client {came}; expected a number from 0{most}")
        if owner[row] >= 0:
            raise DataError(f"{place}: row {row} again; expected one line for each row")
        owner[row] = client
    if owner.min() < 0:
        raise DataError(f"{path}: no line for row {int(np.argmin(owner))}; expected one for each of {samples} rows")
    counts = np.bincount(owner)
    if not counts.all():
        raise DataError(f"{path}: no row for client {int(np.argmin(counts))}; every client needs one")
    return owner


def _numbers(place: str, words: list[str], size: int) -> NDArray[np.int64]:
    """The distinct numbers from 0 to size - 1 in `words`, ascending."""
    if words == ["all"]:
        return np.arange(size)
    if not words:
        raise DataError(f"{place}: empty; every client holds at least one")
    ranges = []
    for word in words:
        first, _, last = (_number(part) for part in word.partition("-"))
        last = first if "-" not in word else last
        if first is None or last is None or not first <= last < size:
            raise DataError(
                f"{place}: {shown(word)}; expected numbers or ranges FIRST-LAST within 0 to {size - 1}, or all"
            )
        ranges.append((first, last + 1))
    pieces, end = [], 0
    for first, stop in sorted(ranges):
        pieces.append(np.arange(max(first, end), max(stop, end)))
        end = max(stop, end)
    return np.concatenate(pieces)


def _number(text: str) -> int | None:
    """A nonnegative integer; None for anything else, and for numbers of too many digits."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None
