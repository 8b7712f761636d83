"""The tables that a run writes, history.csv and clients.csv: a header, and rows of numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from contextlib import suppress
from numbers import Integral

import numpy as np

from mpifed.core.record import Array

HISTORY = "history.csv"
FIRST = ("round", "elapsed_s", "train_loss", "test_accuracy")
LEDGER = ("up_bytes", "down_bytes", "epsilon")


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
