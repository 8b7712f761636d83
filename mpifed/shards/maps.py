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
import io
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.io_errors import open_regular
from mpifed.shards.cells import cover
from mpifed.shards.memory import check_memory
from mpifed.shards.partition import Groups, Partition, by_rectangles
from mpifed.shards.sources.dataset import check_file, listed, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIELDS = ["client", "rows", "columns"]  # of a CSV file
KEYS = {"number", "rows", "columns"}  # of a client in a TOML file
_DIGITS = 18  # of a number, at most: it fits into 64 bits


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
    check_file(path)
    entries = dict[int, Entry]()
    for entry in _toml(path) if path.suffix == ".toml" else _csv(path):
        if entry.client in entries:
            raise DataError(f"{entry.place}: client {entry.client} again; expected a number from 0 that no other has")
        entries[entry.client] = entry
    for client in range(max(1, len(entries))):
        if client not in entries:
            raise DataError(f"{path}: nothing for client {client}; every client from 0 to the last needs an entry")
    rows, columns, holds, cells = Groups(), Groups(), dict[int, tuple[int, int]](), 0
    for client, entry in entries.items():
        own_rows = _numbers(f"{entry.place}, rows", entry.rows, samples)
        own_columns = _numbers(f"{entry.place}, columns", entry.columns, features)
        holds[client] = rows.place(own_rows), columns.place(own_columns)
        cells += len(own_rows) * len(own_columns)
        if cells > samples * features:
            break  # some are held twice; what the other clients would hold beside need not be in memory to find one
        size, what = 3 * (rows.nbytes + columns.nbytes), f"{path}: what the clients to client {client} hold"
        check_memory(size, what, "let clients hold less, or the same", DataError)
    partition = by_rectangles(rows, columns, [holds[client] for client in sorted(holds)])
    found = cover(partition, samples, features)
    if found.holders or (found.missing and missing != "zero"):
        row, column = found.cell or (0, 0)
        whose = f"clients {listed(sorted(holds)[place] for place in found.holders)}" if found.holders else "nobody"
        mend = "expected one client" + (
            "" if found.holders else f"; give it one, or --missing zero to let all {found.missing} such cells be zero"
        )
        raise DataError(f"{path}: the cell of row {row} and column {column} is held by {whose}; {mend}")
    if found.bare:
        what, number = found.bare
        raise DataError(f"{path}: {what} {number} is held by nobody at all; every {what} needs a client")
    return partition._replace(missing=found.missing)


def _csv(path: Path) -> list[Entry]:
    entries, before = [], csv.field_size_limit()
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            csv.field_size_limit(max(before, path.stat().st_size))  # a client may hold very many scattered numbers
            lines = csv.DictReader(file, restkey="more", restval="")
            if lines.fieldnames != FIELDS:
                raise DataError(f"{path}: line 1 is {shown(lines.fieldnames)}; expected {','.join(FIELDS)}")
            for line in lines:
                place = f"{path}: line {lines.line_num}"
                if "more" in line:
                    raise DataError(f"{place}: {3 + len(line['more'])} columns; expected {','.join(FIELDS)}")
                client = _number(line["client"])
                if client is None:
                    raise DataError(f"{place}: client {shown(line['client'])}; expected a number from 0")
                entries.append(Entry(place, client, line["rows"].split(), line["columns"].split()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    finally:
        csv.field_size_limit(before)
    return entries


def _toml(path: Path) -> list[Entry]:
    try:
        with open_regular(path) as file:
            table = tomllib.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as TOML ({shown(str(error))[1:-1]})") from error
    clients = table.pop("client", None)
    if table or not isinstance(clients, list) or not all(isinstance(client, dict) for client in clients):
        what = f"has {', '.join(map(shown, list(table)[:3]))}" if table else "has no [[client]]"
        raise DataError(f"{path}: {what}; expected tables [[client]] with rows and columns, and nothing else")
    return [_of_table(path, place, client) for place, client in enumerate(clients)]


def _of_table(path: Path, number: int, table: dict[str, Any]) -> Entry:
    """The entry of a table [[client]], the `number`-th of its file, from 0."""
    client = table.get("number", number)
    if not _is_number(client):
        raise DataError(
            f"{path}: the [[client]] at place {number}: number = {_value(client)}; expected a number from 0"
        )
    place = f"{path}: client {client}"
    unknown = sorted(set(table) - KEYS)
    if unknown:
        raise DataError(f"{place}: {shown(unknown[0])} is no key of a client; expected {', '.join(sorted(KEYS))}")
    return Entry(place, client, *(_words(f"{place}, {key}", table.get(key, [])) for key in ("rows", "columns")))


def _words(place: str, value: Any) -> list[str]:
    """The numbers and ranges in a text, or a list of numbers and texts."""
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, list) or not all(
        type(item) is str or (type(item) is int and _is_number(abs(item))) for item in value
    ):
        raise DataError(
            f'{place}: {_value(value)}; expected "all", or a list of numbers and ranges such as [7, "10-19"]'
        )
    return [word for item in value for word in str(item).split()]


def _numbers(place: str, words: list[str], size: int) -> NDArray[np.int64]:
    """The distinct numbers, ascending, that `words` name among 0 to size - 1."""
    if words == ["all"]:
        return np.arange(size)
    if not words:
        raise DataError(f"{place}: nothing; every client holds at least one")
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
    """A number from 0; None for anything else, and for one of so many digits that nothing can be numbered by it."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def _is_number(value: object) -> bool:
    """Whether it is an integer from 0 that fits into 64 bits."""
    return type(value) is int and 0 <= value < 10**_DIGITS


def _value(value: object) -> str:
    """What a TOML file says, however large."""
    try:
        return shown(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits, but reads them in hexadecimal ones
        return "an integer of thousands of digits"
