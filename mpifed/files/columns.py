"""The columns of histories and summaries, of which `columns.toml` is the one table."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from mpifed.core.record import Array

_TARGET = re.compile(r"\s*(?P<column>\w+)\s*(?P<sign>>=|<=)\s*(?P<value>[^%]+?)\s*(?P<percent>%?)\s*")
Place = Literal["history", "summary", "show", "compare", "vertical", "horizontal", "progress"]


class Column(NamedTuple):
    """A column, or with a name that ends in `_` all numbered columns that begin with it."""

    name: str
    label: str
    meaning: str = ""  # in Markdown
    places: str = "history"  # see `Place`; "vertical" and "horizontal" are axes of a plot
    better: Literal["less", "more"] | None = None
    unit: Literal["", "B", "s", "%"] = ""
    criterion: str = ""  # by which runs are compared: the last column of a kind that a run has is used
    data: Literal["", "train", "test", "own test"] = ""  # rows over which it is measured: training, common or own test
    since_start: bool = False  # a sum up to the row; all else is of the row's own moment, and of the model by then

    def shown(self, place: Place) -> bool:
        return place in self.places.split()

    def means(self, name: str) -> bool:
        """Whether `name` is the column, or one of the numbered columns."""
        numbered = self.name.endswith("_") and name.startswith(self.name)
        return name == self.name or (numbered and name.removeprefix(self.name).isdecimal())


with Path(__file__).with_name("columns.toml").open("rb") as _file:
    TABLE = tuple(Column(name, **column) for name, column in tomllib.load(_file).items())


def shown(place: Place) -> tuple[Column, ...]:
    """The columns of a place, in order."""
    return tuple(column for column in TABLE if column.shown(place))


def labels(place: Place) -> dict[str, str]:
    """The labels of a place, by name of the column."""
    return {column.name: column.label for column in shown(place)}


def column_of(name: str) -> Column:
    """The column of a name; for an algorithm's own column, its properties follow from the name."""
    known = next((column for column in TABLE if column.means(name)), None)
    better: Literal["less", "more"] = "more" if name.endswith("accuracy") else "less"
    return known or Column(name, name.replace("_", " "), better=better, data="train")


def of_kind(criterion: str, there: Iterable[str]) -> str | None:
    """The column used for a criterion among those that a run has; None where it has none."""
    names = [column.name for column in TABLE if column.criterion == criterion and column.name in set(there)]
    return names[-1] if names else None


class HistoryTarget(NamedTuple):
    """A value that a column of the history is to reach."""

    column: str
    at_least: bool  # else at most
    value: float

    def __str__(self) -> str:
        value = f"{100 * self.value:g}%" if column_of(self.column).unit == "%" else f"{self.value:g}"
        return f"{self.column} {'>=' if self.at_least else '<='} {value}"

    def is_met(self, values: Array | float) -> Array | bool:
        """Of each of the values; nan meets none."""
        return values >= self.value if self.at_least else values <= self.value


def target_of(text: str) -> HistoryTarget:
    """The target in `test_accuracy>=0.95` or `train_loss<=0.1`, where `95%` is 0.95; ValueError where there is none."""
    match = _TARGET.fullmatch(text)
    try:
        value = float(match["value"]) if match else math.nan
    except ValueError:
        value = math.nan
    if match is None or not math.isfinite(value):
        raise ValueError('expected COLUMN>=NUMBER or COLUMN<=NUMBER, in quotes, as "test_accuracy>=0.95"')
    value = value / 100 if match["percent"] else value
    if column_of(match["column"]).unit == "%" and not 0 <= value <= 1:
        raise ValueError(
            f"{match['column']} is between 0 and 1; give a share or a percentage, as "
            f"{match['column']}{match['sign']}0.9 or {match['column']}{match['sign']}90%"
        )
    return HistoryTarget(match["column"], match["sign"] == ">=", value)
