"""The tables that a run writes, history.csv and clients.csv: a header, and rows of numbers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from contextlib import suppress
from numbers import Integral
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.text import shown

HISTORY = "history.csv"
FIRST = ("round", "elapsed_s", "train_loss", "test_accuracy")
LEDGER = ("up_bytes", "down_bytes", "epsilon")
# no written number is longer
_NUMBER = re.compile(r"(?=.{0,32}$)(-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?|nan|-?inf)?")


def read_lines(path: Path, text: bytes) -> list[list[str]]:
    """The header and rows of a history, each as long as the header; text after the last line end is an incomplete row.

    Raises
    ------
    DataError
        when it is not a history: a column is missing or duplicate, or the rounds do not ascend.
    """
    lines = read_csv(path, text.rpartition(b"\n")[0])
    if lines:
        header = lines[0]
        if (*header[: len(FIRST)],) != FIRST or not {*LEDGER} <= {*header} or len({*header}) < len(header):
            expected = f"different columns: {', '.join((*FIRST, '...', *LEDGER))}"
            raise _damaged(path, f"its first line has {shown(', '.join(header))}, expected {expected}")
        rounds = columns_of(path, lines)[FIRST[0]]
        if rounds.dtype != np.int64 or (np.diff(rounds, prepend=-1) <= 0).any():
            raise _damaged(path, f"column {FIRST[0]} does not ascend from 0 or more")
    return lines


def read_csv(path: Path, text: bytes) -> list[list[str]]:
    """The lines of a file that a run has written, each as long as the first; DataError for anything else."""
    try:
        lines = list(csv.reader(io.StringIO(text.decode("utf-8"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise _damaged(path, str(error)) from error
    for number, line in enumerate(lines, start=1):
        if len(line) != len(lines[0]):
            raise _damaged(path, f"line {number} has {len(line)} cells, the first {len(lines[0])}")
    return lines


def columns_of(path: Path, lines: list[list[str]]) -> dict[str, Array]:
    """By column, [rows]: int64 where every cell is a whole number, else float64 with NaN for empty cells."""
    return {name: _column(path, name, cells) for name, *cells in zip(*lines, strict=True)}


def _column(path: Path, name: str, cells: list[str]) -> Array:
    for cell in (cell for cell in cells if not _NUMBER.fullmatch(cell)):
        raise _damaged(path, f"column {shown(name)}: {shown(cell)!r} is no number")
    with suppress(ValueError, OverflowError):  # an empty cell, or a float
        return np.array([int(cell) for cell in cells], dtype=np.int64)
    return np.array([float(cell or "nan") for cell in cells], dtype=np.float64)


def cell_of(value: float | int | None) -> str:
    """The shortest text that reads back as the same number; numpy's scalars are written like Python's."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))


def as_csv(lines: Iterable[Iterable[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path}: not as a run writes it: {why}; restore the file, or resume from the checkpoint")
