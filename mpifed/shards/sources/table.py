"""CSV files of numbers, with or without a header line."""

from __future__ import annotations

import csv
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Gt

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.shards.sources.dataset import Dataset, Source, check_packed, listed, open_packed, shown, typed_labels, whole


@dataclass(frozen=True)
class CsvTable(Source):
    """A CSV file of numbers, with names in its first line or without."""

    path: Path
    """The file of training rows; .gz, .bz2 and .xz are unpacked."""
    test: Path | None = None
    """File of test rows."""
    label: str = "-1"
    """Name or position of the label's column; -1 is the last. Several, separated by commas, are real targets."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """What labels are; auto: classes if they are integers, else real targets."""
    max_unpacked: Annotated[float, Gt(0)] | None = None
    """GiB that a packed file may unpack to; by default 100 times its size, at least 0.25."""

    def read(self, seed: int) -> Dataset:
        """The data; DataError for a damaged file or a cell that is no finite number, UsageError without `label`."""
        names, X, labels = self._load(self.path)
        labels = self._typed(self.path, labels, self.task)
        if self.test is None:
            return Dataset(X.shape[1], np.float32, labels, whole(X), names=names, files=(self.path,))
        test_names, test_X, test_labels = self._load(self.test)
        if test_names != names or test_X.shape[1] != X.shape[1]:
            raise DataError(f"{self.test}: other columns than {self.path}; both need the same, in the same order")
        task = "classification" if labels.dtype == np.int64 else "regression"
        test = test_X, self._typed(self.test, test_labels, task)
        return Dataset(X.shape[1], np.float32, labels, whole(X), test, names=names, files=(self.path, self.test))

    def _load(self, path: Path) -> tuple[tuple[str, ...] | None, Array, Array]:
        """(names of the features, rows [s, p] float32, labels [s] float64) of a file."""
        check_packed(path, self.max_unpacked)
        names, width = first_line(path, self.max_unpacked)
        at = self._positions(path, names, width)
        if width == len(at):
            raise DataError(f"{path}: no column besides the label's; expected at least one feature")
        cells = read_numbers(path, names, width, range(width), self.max_unpacked)
        features = tuple(name for i, name in enumerate(names) if i not in at) if names else None
        return features, np.delete(cells.astype(np.float32), at, axis=1), cells[:, at[0] if len(at) == 1 else at]

    def _typed(self, path: Path, labels: Array, task: str) -> Array:
        """Labels [s] as classes or real targets; several columns [s, t] are targets."""
        if labels.ndim == 1:
            return typed_labels(path, labels, task)
        if self.task == "classification":
            raise UsageError(f"--label {self.label}: several columns are real targets; give one, or --task regression")
        return labels

    def _positions(self, path: Path, names: list[str] | None, width: int) -> list[int]:
        """The positions of the labels' columns."""
        labels = [self.label] if names and self.label in names else self.label.split(",")
        at = [self._position(path, names, width, label) for label in labels]
        if len(set(at)) < len(at):
            raise UsageError(f"--label {self.label}: names a column twice; name each once")
        return at

    def _position(self, path: Path, names: list[str] | None, width: int, label: str) -> int:
        if names and label in names:
            return names.index(label)
        try:
            return range(width)[int(label)]
        except (ValueError, IndexError) as error:
            known = f"the names {listed(names)} or " if names else ""
            raise UsageError(
                f"--label {label}: {path} has no such column; expected {known}a number from {-width} to {width - 1}"
            ) from error


def read_numbers(
    path: Path, names: list[str] | None, width: int, columns: Sequence[int], max_unpacked: float | None = None
) -> Array:
    """The values in given columns of a table.

    Parameters
    ----------
    path : of the file
    names, width : as `first_line` gives them
    columns : positions
    max_unpacked : GiB (see `open_packed`)

    Returns
    -------
    [s, columns] float64

    Raises
    ------
    DataError : when the file is damaged or has no rows, or a cell of those columns is not finite in float32.
    """
    try:
        with open_packed(path, "rt", max_unpacked) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # for a file without rows
            cells = np.loadtxt(
                file, delimiter=",", skiprows=1 if names else 0, ndmin=2, comments=None, quotechar='"',
                usecols=None if len(columns) == width else columns,
            )  # fmt: skip
    except ValueError as error:
        _explain(path, names, width, columns, max_unpacked)
        raise DataError(f"{path}: {error}") from error
    if not cells.size:
        raise DataError(f"{path}: no rows; expected numbers, separated by commas")
    largest = np.finfo(np.float32).max
    if cells.shape[1] != len(columns) or not -largest <= cells.min() <= cells.max() <= largest:
        _explain(path, names, width, columns, max_unpacked)
        raise DataError(f"{path}: {cells.shape[1]} columns of numbers, the first line has {width}; correct the file")
    return cells


def first_line(path: Path, max_unpacked: float | None = None) -> tuple[list[str] | None, int]:
    """(names of the columns, None if the first line has numbers; number of columns)."""
    with read_lines(path, max_unpacked) as lines:
        cells: list[str] = next(lines, [])
    if not cells:
        raise DataError(f"{path}: line 1 is empty; expected numbers or names, separated by commas")
    numbers = [_number(cell) is not None for cell in cells]
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
        if not name or any(unicodedata.category(letter) == "Cc" for letter in name):
            what = f"the name {shown(name)}, with a control character" if name else "no name"
            raise DataError(f"{path}: line 1, column {column + 1} has {what}; every column needs a name of its own")
    (name, count), *_ = Counter(names).most_common(1)
    if count > 1:
        raise DataError(f"{path}: line 1 names {count} columns {shown(name)}; every column needs a name of its own")
    return names, len(cells)


@contextmanager
def read_lines(path: Path, max_unpacked: float | None = None) -> Iterator[Any]:  # csv's reader, whose class has no name
    """The `csv.reader` of a table; its errors become DataError."""
    with open_packed(path, "rt", max_unpacked) as file:
        lines = csv.reader(file)
        try:
            yield lines
        except csv.Error as error:
            raise DataError(f"{path}: line {lines.line_num}: {error}; expected numbers, separated by commas") from error


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _explain(
    path: Path, names: list[str] | None, width: int, columns: Sequence[int], max_unpacked: float | None
) -> None:
    """Raise DataError for the first cell in `columns` that is not finite in float32, or line of another width."""
    with read_lines(path, max_unpacked) as lines:
        if names:
            next(lines)
        for cells in filter(None, lines):
            place = f"{path}: line {lines.line_num}"
            if len(cells) != width:
                raise DataError(
                    f"{place}: {len(cells)} columns, the first line has {width}; correct or remove the line"
                )
            for column in columns:
                cell = cells[column]
                number = _number(cell)
                if number is None or not abs(number) <= float(np.finfo(np.float32).max):
                    name = f" ({names[column]})" if names else ""
                    raise DataError(f"{place}, column {column + 1}{name}: {shown(cell)} {_remedy(cell, number)}")


def _remedy(cell: str, number: float | None) -> str:
    """What is wrong with a cell, and what to do."""
    if number is None and cell.strip().lower() in ("", "na", "n/a", "null", "none", "?"):
        return "is a missing value; fill it in, or remove the line or the column"
    if number is None:
        return "is not a number; encode categories as numbers (labels as 0, 1, ...), or remove the column"
    return "is not a finite number; correct or remove the line"
