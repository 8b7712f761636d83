"""Reading of CSV files: lines, names, tables of numbers, and the place of what is wrong."""

from __future__ import annotations

import csv
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.sources.dataset import listed, open_packed, shown

if TYPE_CHECKING:
    from _csv import Reader  # the class of `csv.reader`

GAPS = ("", "na", "n/a", "nan", "null", "none", "?")  # cells of numbers that are missing values, in small letters


def read_numbers(path: Path, names: list[str] | None, width: int, columns: Sequence[int]) -> Array:
    """The values in given columns of a table.

    Parameters
    ----------
    path : of the file
    names, width : as `first_line` gives them
    columns : positions

    Returns
    -------
    [s, columns] float64

    Raises
    ------
    DataError : when the file is damaged or has no rows, or a cell of those columns is not finite in float32.
    """
    try:
        with open_packed(path, "rt") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # for a file without rows
            cells = np.loadtxt(
                file, delimiter=",", skiprows=1 if names else 0, ndmin=2, comments=None, quotechar='"',
                usecols=None if len(columns) == width else columns,
            )  # fmt: skip
    except ValueError as error:
        explain(path, names, width, columns)
        raise DataError(f"{path}: {error}") from error
    if not cells.size:
        raise DataError(f"{path}: no rows; expected numbers, separated by commas")
    largest = np.finfo(np.float32).max
    if cells.shape[1] != len(columns) or not -largest <= cells.min() <= cells.max() <= largest:
        explain(path, names, width, columns)
        raise DataError(f"{path}: {cells.shape[1]} columns of numbers, the first line has {width}; correct the file")
    return cells


def first_line(path: Path) -> tuple[list[str] | None, int]:
    """(names of the columns, None if the first line has numbers; number of columns)."""
    with read_lines(path) as lines:
        cells: list[str] = next(lines, [])
    if not cells:
        raise DataError(f"{path}: line 1 is empty; expected numbers or names, separated by commas")
    numbers = [number_in(cell) is not None for cell in cells]
    if all(numbers):
        return None, len(cells)
    if any(numbers):
        column = numbers.index(False)
        raise DataError(
            f"{path}: line 1, column {column + 1}: {shown(cells[column])} among numbers; "
            "expected numbers in all columns, or names in all"
        )
    names = [cell.strip() for cell in cells]
    for column, name in enumerate(names):
        if (column and not name) or any(unicodedata.category(letter) == "Cc" for letter in name):
            what = f"the name {shown(name)}, with a control character" if name else "no name"
            raise DataError(f"{path}: line 1, column {column + 1} has {what}; every column needs a name of its own")
    (name, count), *_ = Counter(names).most_common(1)
    if count > 1:
        raise DataError(f"{path}: line 1 names {count} columns {shown(name)}; every column needs a name of its own")
    return names, len(cells)


@contextmanager
def read_lines(path: Path) -> Iterator[Reader]:
    """The `csv.reader` of a table; its errors become DataError."""
    with open_packed(path, "rt") as file:
        lines = csv.reader(file)
        try:
            yield lines
        except csv.Error as error:
            raise DataError(f"{path}: line {lines.line_num}: {error}; expected numbers, separated by commas") from error


def number_in(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def explain(path: Path, names: list[str] | None, width: int, columns: Sequence[int] = ()) -> None:
    """Raise DataError for the first cell in `columns` that is not finite in float32, or line of another width."""
    with read_lines(path) as lines:
        if names:
            next(lines)
        for cells in filter(None, lines):
            place = f"{path}: line {lines.line_num}"
            if len(cells) != width:
                raise DataError(
                    f"{place}: {len(cells)} columns, the first line has {width}; correct or remove the line"
                )
            for column in columns:
                number = number_in(cells[column])
                if number is None or not abs(number) <= float(np.finfo(np.float32).max):
                    raise DataError(wrong_cell(place, names, column, cells[column]))


def wrong_cell(place: str, names: list[str] | None, column: int, cell: str) -> str:
    """The message for a cell that is no finite number, or missing."""
    name = f" ({names[column]})" if names else ""
    return f"{place}, column {column + 1}{name}: {shown(cell)} {_remedy(cell, number_in(cell))}"


def _remedy(cell: str, number: float | None) -> str:
    """What is wrong with a cell, and what to do."""
    if cell.strip().lower() in GAPS:
        return (
            "is a missing value; fill it in, by --missing mean, median or zero, or leave the row out, by --missing drop"
        )
    if number is None:
        return (
            "is not a number; encode categories as numbers, by --categorical one-hot or ordinal, or leave the column "
            "out, by --ignore NAME"
        )
    return "is not a finite number; correct or remove the line"


def positions(path: Path, names: list[str] | None, width: int, option: str, text: str) -> list[int]:
    """The positions of columns by their names or numbers, separated by commas; errors as of `position`."""
    texts = [text] if names and text in names else text.split(",")
    return [position(path, names, width, option, part) for part in texts]


def position(path: Path, names: list[str] | None, width: int, option: str, text: str) -> int:
    """The position of a column by its name, or its number; UsageError where there is no such column."""
    if names and text in names:
        return names.index(text)
    try:
        return range(width)[int(text)]
    except (ValueError, IndexError) as error:
        known = f"the names {listed(names)} or " if names else ""
        raise UsageError(
            f"--{option} {text}: {path} has no such column; expected {known}a number from {-width} to {width - 1}"
        ) from error
