"""Maps: files that say which client holds which rows and columns.

A map is a CSV file with one line a client; its rows and columns are numbers from 0 and inclusive ranges, separated
by blanks, or `all`. Rows are training rows, numbered from 0 when test rows have been held out::

    client,rows,columns
    0,0-99 200-299,all
    1,100-199,0-9 12
    2,100-199,10 11 13-19
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.shards.partition import Partition

FIELDS = ["client", "rows", "columns"]


def read_map(path: Path, samples: int, features: int) -> Partition:
    """The partition that a map file describes.

    Parameters
    ----------
    path : of the file
    samples, features : rows and columns there are to hold

    Raises
    ------
    DataError
        When the file is missing or malformed, a client has no line, or a cell is held twice or by nobody.
    """
    rows: dict[int, NDArray[np.int64]] = {}
    columns: dict[int, NDArray[np.int64]] = {}
    for place, line in _lines(path):
        client = int(line["client"]) if line["client"].isdecimal() else -1
        if client < 0 or client in rows:
            raise DataError(f"{place}: client {line['client']!r}; expected a number from 0 that no other line has")
        rows[client] = _numbers(f"{place}, rows", line["rows"], samples)
        columns[client] = _numbers(f"{place}, columns", line["columns"], features)
    missing = set(range(max(rows, default=0) + 1)) - set(rows)
    if missing:
        raise DataError(f"{path}: no line for client {min(missing)}; every client from 0 to the last needs one")
    row_groups, row_group = _distinct([rows[client] for client in sorted(rows)])
    column_groups, column_group = _distinct([columns[client] for client in sorted(rows)])
    split = "rows" if len(column_groups) == 1 else "columns" if len(row_groups) == 1 else "grid"
    partition = Partition(split, row_groups, column_groups, np.stack([row_group, column_group], axis=1))
    _check_cells(path, partition, samples, features)
    return partition


def _lines(path: Path) -> list[tuple[str, dict[str, str]]]:
    """(place, cells by name) of every line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file, restval="")
            if lines.fieldnames != FIELDS:
                raise DataError(f"{path}: line 1 is {lines.fieldnames}; expected {','.join(FIELDS)}")
            return [(f"{path}: line {lines.line_num}", line) for line in lines]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _numbers(place: str, text: str, size: int) -> NDArray[np.int64]:
    """The distinct numbers, ascending, that `text` names among 0 to size - 1."""
    if text.strip() == "all":
        return np.arange(size)
    ranges = []
    for word in text.split():
        first, _, last = word.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < size):
            raise DataError(f"{place}: {word!r}; expected numbers or ranges FIRST-LAST within 0 to {size - 1}, or all")
        ranges.append(np.arange(int(first), int(last) + 1))
    if not ranges:
        raise DataError(f"{place}: nothing; every client holds at least one")
    return np.unique(np.concatenate(ranges))


def _distinct(groups: list[NDArray[np.int64]]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """(the distinct ones among N groups, [N] the number of each)."""
    numbers: dict[bytes, int] = {}
    which = [numbers.setdefault(group.tobytes(), len(numbers)) for group in groups]
    return [np.frombuffer(key, np.int64) for key in numbers], np.array(which, dtype=np.int64)


def _check_cells(path: Path, partition: Partition, samples: int, features: int) -> None:
    """Raise DataError unless each cell has one holder.

    Rows that are in the same groups are alike, and so are columns: one of each kind is enough.
    """
    in_rows, row_of = _kinds(partition.rows, samples)
    in_columns, column_of = _kinds(partition.columns, features)
    row_group, column_group = partition.holds.T
    holders = in_rows[row_group].T.astype(np.int64) @ in_columns[column_group].astype(np.int64)
    for a, b in np.argwhere(holders != 1):
        clients = np.flatnonzero(in_rows[row_group, a] & in_columns[column_group, b])
        whose = f"clients {', '.join(map(str, clients))}" if len(clients) else "nobody"
        raise DataError(
            f"{path}: the cell of row {row_of[a]} and column {column_of[b]} is held by {whose}; expected one client"
        )


def _kinds(groups: list[NDArray[np.int64]], size: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """(which groups [G, kinds] hold each kind of the numbers below `size`, [kinds] the first of each kind)."""
    held = np.zeros((len(groups), size), dtype=np.bool_)
    for member, group in zip(held, groups, strict=True):
        member[group] = True
    _, first = np.unique(np.packbits(held, axis=0), axis=1, return_index=True)
    first.sort()
    return held[:, first], first
