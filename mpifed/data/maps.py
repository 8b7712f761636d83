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
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.io_errors import open_regular
from mpifed.data.cells import cover
from mpifed.data.memory import check_memory
from mpifed.data.partition import Groups, Partition, by_owners, by_rectangles
from mpifed.data.sources.dataset import check_file, listed, shown

FIELDS = ["client", "rows", "columns"]  # of a CSV file
OF_ROWS = ["row", "client"]  # of one with a line for each row
_DIGITS = 18  # most digits of a number, so that it fits into 64 bits


class MapEntry(NamedTuple):
    """A client's entry in a map."""

    place: str  # file, and position in it, for messages
    client: int
    rows: list[str]  # numbers, ranges or "all"
    columns: list[str]


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
    if _fields(path) == OF_ROWS:
        return by_owners(np.arange(samples), _owners(path, samples), features)
    entries = dict[int, MapEntry]()
    for entry in _entries(path):
        if entry.client in entries:
            raise DataError(
                f"{entry.place}: client {entry.client} again; expected a number from 0 that no other client has"
            )
        entries[entry.client] = entry
    for client in range(max(1, len(entries))):
        if client not in entries:
            raise DataError(f"{path}: no entry for client {client}; every client from 0 to the last needs one")
    rows, columns, holds, cells = Groups(), Groups(), dict[int, tuple[int, int]](), 0
    for client, entry in entries.items():
        own_rows = _numbers(f"{entry.place}, rows", entry.rows, samples)
        own_columns = _numbers(f"{entry.place}, columns", entry.columns, features)
        holds[client] = rows.place(own_rows), columns.place(own_columns)
        cells += len(own_rows) * len(own_columns)
        if cells > samples * features:
            break  # cells are held twice; the clients so far suffice to find one
        size, what = 3 * (rows.nbytes + columns.nbytes), f"{path}: what clients 0 to {client} hold"
        check_memory(size, what, "let clients hold fewer rows and columns, or equal ones", DataError)
    partition = by_rectangles(rows, columns, [holds[client] for client in sorted(holds)])
    coverage = cover(partition, samples, features)
    if coverage.holders or (coverage.missing and missing != "zero"):
        row, column = coverage.cell or (0, 0)
        place = f"{path}: the cell of row {row} and column {column} is held by"
        if coverage.holders:
            whose = listed(sorted(holds)[at] for at in coverage.holders)
            raise DataError(f"{place} clients {whose}; expected one client")
        remedy = f"give it one, or --missing zero to let all {coverage.missing} such cells be zero"
        raise DataError(f"{place} no client; expected one client; {remedy}")
    if coverage.bare:
        what, number = coverage.bare
        raise DataError(f"{path}: {what} {number} is held by no client; every {what} needs one")
    return partition._replace(missing=coverage.missing)


def _fields(path: Path) -> list[str]:
    """The words of the first line, if it is short."""
    try:
        with open_regular(path) as file:
            return file.readline(100).decode("utf-8-sig", "replace").strip().split(",")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _owners(path: Path, samples: int) -> NDArray[np.int64]:
    """[samples] the client of each row, of a file with a line for each row."""
    owner = np.full(samples, -1)
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            next(lines)
            for cells in filter(None, lines):
                place = f"{path}: line {lines.line_num}"
                if len(cells) != 2:
                    raise DataError(f"{place}: {len(cells)} columns; expected {','.join(OF_ROWS)}")
                row, client = map(_number, cells)
                if row is None or row >= samples:
                    raise DataError(
                        f"{place}: row {shown(cells[0])}; expected a number from 0 to {samples - 1}, of training rows "
                        "alone (without those that --test-fraction holds out or --missing drop leaves out)"
                    )
                if client is None or client >= samples:
                    most = "" if client is None else f" to {samples - 1}"
                    came = shown(cells[1]) if client is None else client
                    raise DataError(f"{place}: client {came}; expected a number from 0{most}")
                if owner[row] >= 0:
                    raise DataError(f"{place}: row {row} again; expected one line for each row")
                owner[row] = client
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if owner.min() < 0:
        raise DataError(f"{path}: no line for row {int(np.argmin(owner))}; expected one for each of {samples} rows")
    counts = np.bincount(owner)
    if not counts.all():
        raise DataError(f"{path}: no row for client {int(np.argmin(counts))}; every client needs one")
    return owner


def _entries(path: Path) -> list[MapEntry]:
    entries, before = [], csv.field_size_limit()
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            csv.field_size_limit(max(before, path.stat().st_size))  # a client may hold very many scattered numbers
            lines = csv.DictReader(file, restkey="more", restval="")
            if lines.fieldnames != FIELDS:
                raise DataError(
                    f"{path}: line 1 is {shown(lines.fieldnames)}; expected {','.join(FIELDS)} or {','.join(OF_ROWS)}"
                )
            for line in lines:
                place = f"{path}: line {lines.line_num}"
                if "more" in line:
                    raise DataError(f"{place}: {3 + len(line['more'])} columns; expected {','.join(FIELDS)}")
                client = _number(line["client"])
                if client is None:
                    raise DataError(f"{place}: client {shown(line['client'])}; expected a number from 0")
                entries.append(MapEntry(place, client, line["rows"].split(), line["columns"].split()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    finally:
        csv.field_size_limit(before)
    return entries


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
