"""Tables of comma-separated numbers, with or without a line of names."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.shards.sources.dataset import Dataset, open_packed, typed_labels, whole


@dataclass(frozen=True)
class Table:
    """A CSV file of training rows, and perhaps one of test rows; plain, .gz, .bz2 or .xz."""

    path: Path
    test: Path | None = None
    label: str = "-1"  # name or position of the label's column; negative positions count from the last
    task: str = "auto"

    def read(self, seed: int) -> Dataset:
        """The data.

        Raises
        ------
        DataError
            When a file is missing or damaged, or a cell is no finite number.
        UsageError
            When there is no column `label`.
        """
        names, X, labels = self._load(self.path)
        labels = typed_labels(self.path, labels, self.task)
        if self.test is None:
            return Dataset(X.shape[1], np.float32, labels, whole(X), names=names, files=(self.path,))
        test_names, test_X, test_labels = self._load(self.test)
        if test_names != names or test_X.shape[1] != X.shape[1]:
            raise DataError(f"{self.test}: other columns than {self.path}; both need the same, in the same order")
        task = "classification" if labels.dtype == np.int64 else "regression"
        test = test_X, typed_labels(self.test, test_labels, task)
        return Dataset(X.shape[1], np.float32, labels, whole(X), test, names=names, files=(self.path, self.test))

    def _load(self, path: Path) -> tuple[tuple[str, ...] | None, Array, Array]:
        """(names of the features, rows [s, p] float32, labels [s] float64) of a file."""
        names, width = first_line(path)
        cells = read_numbers(path, names, width, range(width))
        at = self._position(path, names, width)
        features = tuple(name for i, name in enumerate(names) if i != at) if names else None
        return features, np.delete(cells.astype(np.float32), at, axis=1), cells[:, at]

    def _position(self, path: Path, names: list[str] | None, width: int) -> int:
        """Of the label's column."""
        if names and self.label in names:
            return names.index(self.label)
        try:
            return range(width)[int(self.label)]
        except (ValueError, IndexError) as error:
            known = f"the names {', '.join(names)} or " if names else ""
            raise UsageError(
                f"--label {self.label}: {path} has no such column; expected {known}a number "
                f"from {-width} to {width - 1}"
            ) from error


def read_numbers(path: Path, names: list[str] | None, width: int, columns: Sequence[int]) -> Array:
    """Some columns of a table.

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
    DataError
        When the file is damaged or has no rows, or a cell of those columns is no finite number in float32.
    """
    try:
        with open_packed(path, "rt") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that there are no rows
            cells = np.loadtxt(
                file, delimiter=",", skiprows=1 if names else 0, ndmin=2, comments=None, quotechar='"',
                usecols=None if len(columns) == width else columns,
            )  # fmt: skip
    except ValueError as error:
        _explain(path, names, width, columns)
        raise DataError(f"{path}: {error}") from error
    if not cells.size:
        raise DataError(f"{path}: no rows; expected numbers, separated by commas")
    if not (np.abs(cells) <= np.finfo(np.float32).max).all():
        _explain(path, names, width, columns)
    return cells


def first_line(path: Path) -> tuple[list[str] | None, int]:
    """(the names of the columns if the first line has names, how many columns)."""
    with open_packed(path, "rt") as file:
        cells = next(csv.reader(file), [])
    if not cells:
        raise DataError(f"{path}: line 1 is empty; expected numbers or names, separated by commas")
    numbers = [_number(cell) is not None for cell in cells]
    if all(numbers):
        return None, len(cells)
    if any(numbers):
        column = numbers.index(False)
        raise DataError(
            f"{path}: line 1, column {column + 1}: {cells[column]!r} among numbers; "
            "expected numbers in all columns, or names in all"
        )
    return [cell.strip() for cell in cells], len(cells)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _explain(path: Path, names: list[str] | None, width: int, columns: Sequence[int]) -> None:
    """Raise DataError for the first cell in `columns` that is no finite number in float32, or line of another width."""
    with open_packed(path, "rt") as file:
        lines = csv.reader(file)
        if names:
            next(lines)
        for cells in filter(None, lines):
            place = f"{path}: line {lines.line_num}"
            if len(cells) != width:
                raise DataError(f"{place}: {len(cells)} columns, the first line has {width}; mend or remove the line")
            for column in columns:
                cell = cells[column]
                number = _number(cell)
                if number is None or not np.isfinite(number) or abs(number) > float(np.finfo(np.float32).max):
                    name = f" ({names[column]})" if names else ""
                    raise DataError(
                        f"{place}, column {column + 1}{name}: {cell!r} is no finite number; mend or remove the line"
                    )
