"""The table of `mpifed compare`: names first, then what sets the runs apart, then their numbers.

Columns that do not fit are moved below the table: first the numbers that are the same in all rows, then the widest
settings, then names.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.job.settings import key_of
from mpifed.job.sweep import LABEL
from mpifed.results.names import names, names_of
from mpifed.results.points import Mean, Setting
from mpifed.results.text import toml_text, value_of

if TYPE_CHECKING:
    from rich.table import Table as RichTable

WIDTH = 120  # characters that a table should fit into
_WIDEST = 100_000  # characters: wider than any table
_NARROW = 12  # characters: a setting that is no wider stays in the table
_NAMES = 40  # characters: names that are wider go below, if the table is too wide


class Shown(NamedTuple):
    """A column of the table."""

    name: str
    cells: list[str]  # by row
    kind: str  # "names", "setting", "count" or "number"

    @property
    def width(self) -> int:
        """Width of the widest cell, or of the header, in characters."""
        return max(map(len, (self.name, *self.cells)))


def drawn(columns: Sequence[Shown], terminal: bool = False) -> str:
    """The table as text, with the columns that do not fit listed below it.

    At a terminal that is too narrow even so, cells are broken into several lines, and then columns of numbers stand in
    further tables below, each with the names of the rows.
    """
    screen = shutil.get_terminal_size((WIDTH, 24)).columns if terminal else WIDTH
    beside, below = _fitted(columns, screen)
    text, width = _text(_table(beside, terminal, " "))
    if terminal and width > screen:
        text = "\n".join(_text(_table(part, terminal, "\n"))[0] for part in _parts(beside, screen))
    return "\n".join([text, *_below(beside, below)])


def _parts(columns: Sequence[Shown], screen: int) -> Iterator[list[Shown]]:
    """The columns in as many tables as fit, each with the first column."""
    part = [columns[0]]
    for column in columns[1:]:
        if len(part) > 1 and _text(_table([*part, column], True, "\n"))[1] > screen:
            yield part
            part = [columns[0]]
        part.append(column)
    yield part


def varying(settings: Sequence[ReadOnlyTable]) -> list[str]:
    """The keys that set these settings apart.

    Keys of an algorithm or model are left out where every value is absent, or the default of the algorithm or model
    that the run names.
    """
    keys = [key for key, value in settings[0].items() if any(other[key] != value for other in settings)]
    return [key for key in keys if not all(_by_default(key, run) for run in settings)]


def _by_default(key: str, settings: ReadOnlyTable) -> bool:
    """Whether a value is absent, or the default of this run's algorithm or model."""
    value = settings[key]
    if value is None:
        return True
    table, _, name = key.partition(".")
    return name in (known := _defaults(table, settings)) and value == known[name]


def _defaults(table: str, settings: ReadOnlyTable) -> Table:
    """The defaults of the class that a table names, by key; empty where all runs name the same class."""
    from mpifed.algorithms import ALGORITHMS
    from mpifed.maths.objectives import OBJECTIVES
    from mpifed.maths.optimizers import CLIENT_OPTIMIZERS, SERVER_OPTIMIZERS, SGD, ServerSGD

    of_table: Table = {
        "algorithm": ALGORITHMS.get(settings.get("algorithm.name", "")),
        "model": OBJECTIVES.get(settings.get("model.name", "")),
    }
    if "algorithm.name" in settings:
        for key, known in (("client_optimizer", CLIENT_OPTIMIZERS), ("server_optimizer", SERVER_OPTIMIZERS)):
            of_table[key] = known.get(settings.get(f"{key}.name", "sgd"))
    kind = of_table.get(table)
    fields = () if kind is None else dataclasses.fields(kind)
    defaults = {key_of(field): _listed(field.default) for field in fields if field.default is not dataclasses.MISSING}
    return defaults | ({"name": "sgd"} if kind in (SGD, ServerSGD) else {})


def _listed(value: object) -> object:
    """A value as a job file has it."""
    return list(value) if isinstance(value, tuple) else value


def part_of(count: int, whole: int) -> str:
    """3, or 3 of 5."""
    return str(whole) if count == whole else f"{count} of {whole}"


def mean_text(name: str, mean: Mean | None, whole: int) -> str:
    """0.123 +- 0.004; with the number of points in the mean, where not all of the `whole` have the column."""
    if mean is None:
        return ""
    text = value_of(name, mean.mean)
    if mean.deviation:
        text += f" +- {value_of(name, mean.deviation, digits=2)}"
    return text if mean.having == whole else f"{text} ({mean.having} of {whole})"


def limits_met(setting: Setting) -> str:
    """How many of its runs with limits meet them; empty where none has limits."""
    met = [point.meets_limits() for point in setting.counted if point.limits]
    return f"{met.count(True)} of {len(met)}" if met else ""


def setting_text(value: object) -> str:
    """A value as TOML; empty for a key that only jobs of other runs have."""
    return "" if value is None else toml_text(value)


def name_columns(settings: Sequence[Setting]) -> list[Shown]:
    """The names of the settings: their labels, where they have such, and then their runs beside these."""
    runs = [names(setting.points) for setting in settings]
    if not any(setting.label for setting in settings):
        return [Shown("points", runs, "names")]
    called = names_of(settings)
    beside = [own if name == setting.label else "" for own, name, setting in zip(runs, called, settings, strict=True)]
    return [Shown(LABEL, called, "names"), *([Shown("points", beside, "setting")] if any(beside) else [])]


def setting_columns(settings: Sequence[Setting]) -> list[Shown]:
    """A column for each key in which the settings differ, but for what their labels say."""
    tables = [_unlabelled(setting, settings) for setting in settings]
    return [Shown(key, [setting_text(table[key]) for table in tables], "setting") for key in varying(tables)]


def _unlabelled(setting: Setting, settings: Sequence[Setting]) -> Table:
    """The settings without the keys whose value follows from the label, where all have one."""
    if not all(other.label for other in settings):
        return {key: value for key, value in setting.settings.items() if key != LABEL}
    values: dict[str, dict[str, set[str]]] = {}
    for other in settings:
        for key, value in other.settings.items():
            values.setdefault(key, {}).setdefault(other.label, set()).add(json.dumps(value, sort_keys=True))
    varying_within = [key for key, by_label in values.items() if any(len(several) > 1 for several in by_label.values())]
    return {key: setting.settings.get(key) for key in varying_within}


def _fitted(columns: Sequence[Shown], most: int) -> tuple[list[Shown], list[Shown]]:
    """(the columns of the table, those listed below it)."""
    beside, below = list(columns), []

    def too_wide() -> bool:
        return sum(column.width + 2 for column in beside) - 2 > most

    def moved(column: Shown) -> None:
        beside.remove(column)
        below.append(column)

    numbers = [column for column in columns if column.kind == "number" and len(column.cells) > 1]
    for column in [column for column in numbers if len(set(column.cells)) == 1]:
        if too_wide():
            moved(column)
    settings = [column for column in columns if column.kind == "setting"]
    for column in sorted(settings, key=lambda column: -column.width):
        if too_wide() and column.width > _NARROW:
            moved(column)
    if too_wide() and columns[0].kind == "names" and columns[0].width > _NAMES and len(columns[0].cells) > 1:
        moved(columns[0])
        beside.insert(0, Shown("row", [str(number) for number in range(1, len(columns[0].cells) + 1)], "names"))
    return beside, below


def _below(beside: Sequence[Shown], below: Sequence[Shown]) -> Iterator[str]:
    """A line for numbers that are the same in all rows, and a line per row for each other column."""
    alike = [f"{column.name} {column.cells[0]}" for column in below if column.kind == "number"]
    if alike:
        yield f"In all rows: {', '.join(alike)}"
    for column in below:
        if column.kind != "number":
            yield f"{column.name}:"
            yield from (f"  {row}: {cell}" for row, cell in zip(beside[0].cells, column.cells, strict=True) if cell)


def _text(table: RichTable) -> tuple[str, int]:
    """(a table as text, its width); no line is wrapped, and no number truncated."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=_WIDEST, force_terminal=table.box is not None, highlight=False)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    return "\n".join(line.rstrip() for line in lines), console.measure(table).maximum


def _table(columns: Sequence[Shown], terminal: bool, between: str) -> RichTable:
    """A plain table, or at a terminal one with a ruled header; `between` replaces the spaces where cells may break."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=SIMPLE_HEAD if terminal else None, pad_edge=False)
    for column in columns:
        table.add_column(Text(column.name), justify="left" if column.kind in ("names", "setting") else "right")
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(Text(re.sub(r"(?<!to) (?=\+-|to |point-|\()", between, cell)) for cell in row))
    return table
