"""Maps: files that say which client holds which rows and columns.

Rows and columns are numbers from 0 and inclusive ranges, or `all`. Rows are training rows, numbered from 0 when test
rows have been held out. A map is a CSV file with one line a client::

    client,rows,columns
    0,0-99 200-299,all
    1,100-199,0-9 12
    2,100-199,10 11 13-19

or a TOML file with one table a client, which has the number of its place, from 0, unless it says `number = 3`::

    [[client]]
    rows = ["0-99", "200-299"]
    columns = "all"

    [[client]]
    rows = "100-199"
    columns = ["0-9", 12]
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.shards.cells import cover
from mpifed.shards.partition import Groups, Partition, by_rectangles

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIELDS = ["client", "rows", "columns"]  # of a CSV file
KEYS = {"number", "rows", "columns"}  # of a client in a TOML file


class Entry(NamedTuple):
    """What a map says of one client."""

    place: str  # in which file, and where in it
    client: int
    rows: list[str]  # numbers, ranges or "all"
    columns: list[str]


def read_map(path: Path, samples: int, features: int, missing: str = "error") -> Partition:
    """The partition that a map file describes.

    Parameters
    ----------
    path : of the file, TOML if its name ends so, else CSV
    samples, features : rows and columns there are to hold
    missing : "error", or "zero" where cells may be held by nobody; every row and every column still needs a holder

    Raises
    ------
    DataError
        When the file is missing or malformed, leaves a client out, or a cell is held twice or, unless that is allowed,
        by nobody.
    """
    rows, columns, holds = Groups(), Groups(), dict[int, tuple[int, int]]()
    for entry in _toml(path) if path.suffix == ".toml" else _csv(path):
        if entry.client in holds:
            raise DataError(f"{entry.place}: client {entry.client} again; expected a number from 0 that no other has")
        holds[entry.client] = (
            rows.place(_numbers(f"{entry.place}, rows", entry.rows, samples)),
            columns.place(_numbers(f"{entry.place}, columns", entry.columns, features)),
        )
    absent = set(range(max(holds, default=0) + 1)) - set(holds)
    if absent:
        raise DataError(f"{path}: nothing for client {min(absent)}; every client from 0 to the last needs an entry")
    partition = by_rectangles(rows, columns, [holds[client] for client in sorted(holds)])
    found = cover(partition, samples, features)
    if found.holders or (found.missing and missing != "zero"):
        row, column = found.cell or (0, 0)
        whose = f"clients {', '.join(map(str, found.holders))}" if found.holders else "nobody"
        mend = "expected one client" + (
            "" if found.holders else f"; give it one, or --missing zero to let all {found.missing} such cells be zero"
        )
        raise DataError(f"{path}: the cell of row {row} and column {column} is held by {whose}; {mend}")
    if found.bare:
        what, number = found.bare
        raise DataError(f"{path}: {what} {number} is held by nobody at all; every {what} needs a client")
    return partition._replace(missing=found.missing)


def _csv(path: Path) -> list[Entry]:
    entries = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file, restkey="more", restval="")
            if lines.fieldnames != FIELDS:
                raise DataError(f"{path}: line 1 is {lines.fieldnames}; expected {','.join(FIELDS)}")
            for line in lines:
                place = f"{path}: line {lines.line_num}"
                if "more" in line:
                    raise DataError(f"{place}: {3 + len(line['more'])} columns; expected {','.join(FIELDS)}")
                if not line["client"].isdecimal():
                    raise DataError(f"{place}: client {line['client']!r}; expected a number from 0")
                entries.append(Entry(place, int(line["client"]), line["rows"].split(), line["columns"].split()))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    return entries


def _toml(path: Path) -> list[Entry]:
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as TOML ({error})") from error
    clients = table.pop("client", None)
    if table or not isinstance(clients, list) or not all(isinstance(client, dict) for client in clients):
        what = f"has {', '.join(map(repr, table))}" if table else "has no [[client]]"
        raise DataError(f"{path}: {what}; expected tables [[client]] with rows and columns, and nothing else")
    return [_of_table(path, place, client) for place, client in enumerate(clients)]


def _of_table(path: Path, number: int, table: dict[str, Any]) -> Entry:
    """The entry of a table [[client]], the `number`-th of its file, from 0."""
    client = table.get("number", number)
    if type(client) is not int or client < 0:
        raise DataError(f"{path}: the [[client]] at place {number}: number = {client!r}; expected a number from 0")
    place = f"{path}: client {client}"
    unknown = sorted(set(table) - KEYS)
    if unknown:
        raise DataError(f"{place}: {unknown[0]!r} is no key of a client; expected {', '.join(sorted(KEYS))}")
    return Entry(place, client, *(_words(f"{place}, {key}", table.get(key, [])) for key in ("rows", "columns")))


def _words(place: str, value: Any) -> list[str]:
    """The numbers and ranges in a text, or a list of numbers and texts."""
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, list) or not all(type(item) in (int, str) for item in value):
        raise DataError(f'{place}: {value!r}; expected "all", or a list of numbers and ranges such as [7, "10-19"]')
    return [word for item in value for word in str(item).split()]


def _numbers(place: str, words: list[str], size: int) -> NDArray[np.int64]:
    """The distinct numbers, ascending, that `words` name among 0 to size - 1."""
    if words == ["all"]:
        return np.arange(size)
    if not words:
        raise DataError(f"{place}: nothing; every client holds at least one")
    held = np.zeros(size, dtype=np.bool_)
    for word in words:
        first, _, last = word.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < size):
            raise DataError(f"{place}: {word!r}; expected numbers or ranges FIRST-LAST within 0 to {size - 1}, or all")
        held[int(first) : int(last) + 1] = True
    return np.flatnonzero(held)
