"""The tables that a run writes, history.csv and clients.csv: a header, and rows of numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from contextlib import suppress
from numbers import Integral
from pathlib import Path

import numpy as np

from mpifed.core.record import Array
from mpifed.files.reading import reading
from mpifed.text import shown

HISTORY = "history.csv"
FIRST = ("round", "elapsed_s", "train_loss", "test_accuracy")
LEDGER = ("up_bytes", "down_bytes", "epsilon")
REMEDY = "restore the file as a run wrote it, or resume from the checkpoint"


def read_lines(path: Path, text: bytes) -> list[list[str]]:
    """The header and rows of a history, each as long as the header; text after the last line end is an incomplete row.

    Raises
    ------
    DataError
        when it is not a history: a column is missing or duplicate, or the rounds do not ascend.
    """
    with reading(path, REMEDY, ValueError):
        lines = read_csv(text.rpartition(b"\n")[0])
        if not lines:
            return []
        header, columns = lines[0], columns_of(lines)
        if (*header[: len(FIRST)],) != FIRST or not {*LEDGER} <= columns.keys() or len(columns) < len(header):
            expected = f"different columns: {', '.join((*FIRST, '...', *LEDGER))}"
            raise ValueError(f"its first line has {shown(', '.join(header))}, expected {expected}")
        rounds = columns[FIRST[0]]
        if rounds.dtype != np.int64 or (np.diff(rounds, prepend=-1) <= 0).any():
            raise ValueError(f"column {FIRST[0]} does not ascend from 0 or more")
        return lines


def read_csv(text: bytes) -> list[list[str]]:
    """The lines of a file that a run has written; ValueError for anything else."""
    try:
        return list(csv.reader(io.StringIO(text.decode("utf-8"), newline="")))
    except csv.Error as error:
        raise ValueError(str(error)) from error


def columns_of(lines: list[list[str]]) -> dict[str, Array]:
    """By column, [rows]: int64 where every cell is a whole number, else float64 with NaN for empty cells.

    ValueError where lines have different lengths, or a cell is no number.
    """
    return {name: _column(cells) for name, *cells in zip(*lines, strict=True)}


def _column(cells: list[str]) -> Array:
    with suppress(ValueError, OverflowError):  # an empty cell, or a float
        return np.array(list(map(int, cells)), dtype=np.int64)
    return np.array([float(cell or "nan") for cell in cells])


def cell_of(value: float | int | None) -> str:
    """The shortest text that reads back as the same number; numpy's scalars are written like Python's."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))


def as_csv(lines: Iterable[Iterable[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
