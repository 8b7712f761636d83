"""The file of a history, history.csv: a header, and a row for each measured round."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from numbers import Integral
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.core.text import shown

HISTORY = "history.csv"
FIRST = ("round", "elapsed_s", "train_loss", "test_accuracy")
LEDGER = ("up_bytes", "down_bytes", "epsilon")
_NUMBER = re.compile("[-+.0-9a-z]{0,32}")  # no written number is longer


def read_lines(path: Path, text: bytes) -> list[list[str]]:
    """The header and rows of a history, each as long as the header; text after the last line end is an incomplete row.

    Raises
    ------
    DataError
        when it is not a history: a column is missing or duplicate, or the rounds do not ascend.
    """
    whole, _, _ = text.rpartition(b"\n")
    try:
        lines = list(csv.reader(io.StringIO(whole.decode("utf-8"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise _not_a_history(path, str(error)) from error
    if not lines:
        return []
    header, *rows = lines
    if tuple(header[: len(FIRST)]) != FIRST:
        raise _not_a_history(path, f"its first line begins with {_names(header[:4])}, expected {_names(FIRST)}")
    missing, twice = set(LEDGER) - set(header), [name for name in header if header.count(name) > 1]
    if missing or twice:
        wrong = f"has no {_names(sorted(missing))}" if missing else f"has {_names(twice[:1])} more than once"
        raise _not_a_history(path, f"its first line {wrong}")
    for number, line in enumerate(rows, start=2):
        if len(line) != len(header):
            raise _not_a_history(path, f"line {number} has {len(line)} cells, the header {len(header)}")
    rounds = column_of(path, FIRST[0], [row[0] for row in rows])
    if rounds.dtype != np.int64 or (np.diff(rounds, prepend=-1) <= 0).any():
        raise _not_a_history(path, f"column {FIRST[0]} does not ascend from 0 or more")
    return lines


def columns_of(path: Path, lines: list[list[str]]) -> dict[str, Array]:
    """By column, [measured rounds]; see `mpifed.files.history.read_history`."""
    return {name: column_of(path, name, cells) for name, *cells in zip(*lines, strict=True)}


def column_of(path: Path, name: str, cells: list[str]) -> Array:
    invalid = next((cell for cell in cells if not _NUMBER.fullmatch(cell)), None)
    if invalid is not None:
        raise _not_a_history(path, f"column {shown(name)}: {shown(invalid)!r} is no number")
    try:
        return np.array([int(cell) for cell in cells], dtype=np.int64)
    except (ValueError, OverflowError):
        pass  # an empty cell, or a float
    try:
        values = np.array([float(cell or "nan") for cell in cells], dtype=np.float64)
    except ValueError as error:
        raise _not_a_history(path, f"column {shown(name)}: {error}") from error
    overflowed = [cell for cell, value in zip(cells, values, strict=True) if np.isinf(value) and "inf" not in cell]
    if overflowed:
        raise _not_a_history(path, f"column {shown(name)}: {overflowed[0]} is too large for a number")
    return values


def cell_of(value: float | int | None) -> str:
    """The shortest text that reads back as the same number; numpy's scalars are written like Python's."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))


def as_csv(lines: Iterable[Iterable[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(shown, names))


def _not_a_history(path: Path, why: str) -> DataError:
    return DataError(f"{path}: not the history of a run: {why}; restore the file, or resume from the checkpoint")
