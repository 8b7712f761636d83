"""Job files: TOML, with `table.key=value` changes applied, and values that no key of a job may have."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, time
from itertools import chain
from pathlib import Path

from mpifed.core.errors import DataError, UsageError
from mpifed.core.io_errors import open_regular
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.json_file import as_written
from mpifed.text import command_line, counted, leads_to, shown, wrong_line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HEADER = 10_000  # bytes of a job that hold its header
_DEPTH = 16  # tables and lists within each other
# too many digits, and too deep tables, are errors of Python and not of TOML to the reader
_UNREADABLE = (ValueError, RecursionError)


def read_table(path: Path, changes: Iterable[str] = ()) -> Table:
    """The tables of a TOML file, with `table.key=value` changes applied."""
    table: Table
    try:
        # some editors write a mark of the byte order first
        table = tomllib.loads(as_written(path).decode("utf-8-sig"))
    except OSError as error:
        where = leads_to(path)
        raise UsageError(f"{path}: cannot be read ({error.strerror}){where}; give the path of a job file") from error
    except _UNREADABLE as error:
        raise UsageError(f"{path}: not a TOML file: {shown(str(error))}") from error
    changes = list(changes)
    for change in changes:
        set_value(table, change)
    for change in changes:
        _refuse_swept(table, change)
    refuse(table, str(path))
    return table


def _refuse_swept(table: ReadOnlyTable, change: str) -> None:
    """UsageError where the points of a sweep have values of their own in place of the one that is set."""
    key, grid = f"{'.'.join(_parts(change.partition('=')[0]))}.", table.get("sweep")
    listed = grid.get("methods") if isinstance(grid, dict) else None
    tables = [grid, *(listed if isinstance(listed, list) else ())]
    for swept in chain(*(each for each in tables if isinstance(each, dict))):
        if key.startswith(f"{swept}."):
            raise UsageError(
                f"--set {shown(key[:-1])}: [sweep] varies {shown(swept)}, and each point has its own value of it; give "
                "the values there, or drop the sweep by --set sweep={}"
            )


def refuse(table: ReadOnlyTable, source: str) -> None:
    """UsageError where a value is one that no key may have."""
    if wrong := list(_wrong_values(table)):
        raise UsageError(listed_errors(source, wrong))


def check_data(path: Path, folder: Path) -> None:
    """DataError where a job's data folder is missing, with the command that makes it, if the job's header has it."""
    from mpifed.data.store import MEMORY  # with HDF5, which reading a job does not need

    if folder.exists() or str(folder).startswith(MEMORY):
        return
    with open_regular(path) as file:
        header = file.read(_HEADER).decode("utf-8", "replace")
    made, command = command_line("--out", folder), shard_command(header)
    how = f"as {path} says, make it with `{shown(command)}`"
    if not command.endswith(made):
        how = f"make it with `mpifed data SOURCE ... {made}` (`mpifed data --help` lists the sources)"
    raise DataError(f"{folder}: no such folder; {how}, or name another by --set data.path=FOLDER")


def shard_command(header: str) -> str:
    """The command `mpifed data ...` with which a job's header says that its shards are made; empty where none does."""
    made = re.search(r"^# Make the shards: +(mpifed data .*(?:\n# {2,}\S.*)*)", header, flags=re.MULTILINE)
    return re.sub(r" *\\?\n# +", " ", made[1]) if made else ""


def listed_errors(source: str, wrong: list[str]) -> str:
    """All errors of a job, as one message."""
    return "\n".join([f"{source}: {counted(len(wrong), 'error')}", *(f"  {line}" for line in wrong)])


def set_value(table: Table, change: str) -> None:
    """Apply a change `table.key=value`; the value is TOML, or a string without quotes."""
    key, equals, text = change.partition("=")
    if why := wrong_line(change):
        raise UsageError(f"--set {shown(change)}: {why}")
    if not equals or not key.strip():
        raise UsageError(
            f"--set {shown(change)}: expected table.key=value, for instance --set algorithm.batch_size=100"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except _UNREADABLE as error:
        raise UsageError(f"--set {shown(change)}: {shown(str(error))}") from error
    put_key(table, key.strip(), value)


def put_key(table: Table, key: str, value: object) -> None:
    """Set a dotted key of TOML; a part that contains dots is in quotes, a table of a list by its number, from 1."""
    *parts, last = _parts(key)
    at: object = table
    for part in parts:
        if isinstance(at, list):
            at = at[int(part) - 1] if part.isdecimal() and len(part) < 9 and 0 < int(part) <= len(at) else None
        elif isinstance(at, dict):
            at = at.setdefault(part, {})
    if not isinstance(at, dict):
        raise UsageError(f"{shown(key)}: is not there; a table of a list has a number from 1, as in constraint.1.limit")
    at[last] = value


def _parts(key: str) -> list[str]:
    """'a."b.c".d' -> ['a', 'b.c', 'd']"""
    try:
        if wrong_line(key):
            raise ValueError(wrong_line(key))
        rest: object = tomllib.loads(f"{key} = 0")
        parts = []
        while isinstance(rest, dict):
            ((part, rest),) = rest.items()
            parts.append(part)
        if rest != 0:  # the key has a value of its own
            raise ValueError("Expected nothing but a key")
    except _UNREADABLE as error:
        raise UsageError(f"{shown(key)}: no key of TOML, as in algorithm.batch_size ({shown(str(error))})") from error
    return parts


def _wrong_values(table: ReadOnlyTable) -> Iterator[str]:
    """A message for each value that no key may have: numbers beyond 64 bits, times, control characters, deep tables.

    All later computations with a job's values rely on it.
    """
    left: list[tuple[tuple[str | int, ...], object]] = [((), table)]
    while left:
        place, value = left.pop()
        if isinstance(value, (dict, list)):
            if len(place) >= _DEPTH:
                yield f"{where_is(place[:2])}: has more than {_DEPTH} tables and lists within each other"
                continue
            inner = list(value.items() if isinstance(value, dict) else enumerate(value))
            left += [((*place, key), element) for key, element in reversed(inner)]
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            number = str(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"
            yield f"{where_is(place)} = {number}: must be less than 2^63, as all numbers of TOML"
        elif isinstance(value, (date, time)):
            yield f"{where_is(place)} = {value}: is a date or a time, which no key of a job takes"
        elif isinstance(value, str) and (why := wrong_line(value)):
            yield f'{where_is(place)} = "{shown(value)}": {why}'
        if place and isinstance(place[-1], str) and (why := wrong_line(place[-1])):
            yield f"{where_is(place)}: the key {why}"


def where_is(place: Sequence[object]) -> str:
    """A key of a job, as messages print it: the tables of a list, and a value at the end, are counted from 1."""
    counted = [str(part + 1) if isinstance(part, int) else shown(str(part)) for part in place]
    position = f", value {counted.pop()}" if isinstance(place[-1], int) else ""
    table, *rest = counted
    if rest and isinstance(place[1], int):
        table, *rest = f"{table} {rest[0]}", *rest[1:]
    return (f"[{table}] {'.'.join(rest)}" if rest else table) + position
