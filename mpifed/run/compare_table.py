"""The table of `mpifed compare`: names first, then what sets the runs apart, then their numbers.

What does not fit beside the rest stands below: first the numbers that are the same in all rows, then the widest
settings, then names.
"""

from __future__ import annotations

import dataclasses
import io
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mpifed.run.best import Setting, toml_text
from mpifed.run.parts import key_of

if TYPE_CHECKING:
    from rich.table import Table

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
        """Of its widest cell, or its head."""
        return max(map(len, (self.name, *self.cells)))


def drawn(columns: Sequence[Shown], terminal: bool = False) -> str:
    """The table, and what stands below it."""
    screen = shutil.get_terminal_size((WIDTH, 24)).columns if terminal else WIDTH
    beside, below = _fitted(columns, screen)
    text, width = _text(_table(beside, terminal, " "))
    if terminal and width > screen:
        text, _ = _text(_table(beside, terminal, "\n"))
    return "\n".join([text, *_below(beside, below)])


def varying(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that set these settings apart.

    Left out are those of an algorithm or model where every value is the default of the one that is named, or absent:
    the name says it.
    """
    keys = [key for key, value in settings[0].items() if any(other[key] != value for other in settings)]
    return [key for key in keys if not all(_by_default(key, one) for one in settings)]


def _by_default(key: str, settings: Mapping[str, Any]) -> bool:
    """Whether a value is what the algorithm or model of this run has where its job does not say it."""
    value = settings[key]
    if value is None:
        return True
    table, _, name = key.partition(".")
    return name in (known := _defaults(table, settings)) and value == known[name]


def _defaults(table: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """By key, those of the class that a table names; of a table whose class is the same in all runs, nothing."""
    from mpifed.algorithms import ALGORITHMS
    from mpifed.maths.objectives import OBJECTIVES
    from mpifed.maths.optimizers import SGD, ServerSGD

    of_table: dict[str, Any] = {
        "algorithm": ALGORITHMS.get(settings.get("algorithm.name", "")),
        "model": OBJECTIVES.get(settings.get("model.name", "")),
        "client_optimizer": SGD if "algorithm.name" in settings else None,
        "server_optimizer": ServerSGD if "algorithm.name" in settings else None,
    }
    kind = of_table.get(table)
    fields = () if kind is None else dataclasses.fields(kind)
    found = {key_of(field): _listed(field.default) for field in fields if field.default is not dataclasses.MISSING}
    return found | ({"name": "sgd"} if kind in (SGD, ServerSGD) else {})


def _listed(value: Any) -> Any:
    """As a job file has it."""
    return list(value) if isinstance(value, tuple) else value


def setting_text(value: Any) -> str:
    """As a job has it; nothing for a key that this run's job has not and another's has."""
    return "" if value is None else toml_text(value)


def setting_columns(settings: Sequence[Setting]) -> list[Shown]:
    """A column for each key that sets them apart."""
    tables = [one.settings for one in settings]
    return [Shown(key, [setting_text(one[key]) for one in tables], "setting") for key in varying(tables)]


def _fitted(columns: Sequence[Shown], most: int) -> tuple[list[Shown], list[Shown]]:
    """The columns of the table, and those that stand below it."""
    beside, below = list(columns), []

    def too_wide() -> bool:
        return sum(column.width + 2 for column in beside) - 2 > most

    def moved(column: Shown) -> None:
        beside.remove(column)
        below.append(column)

    for column in [one for one in columns if one.kind == "number" and len(one.cells) > 1 and len(set(one.cells)) == 1]:
        if too_wide():
            moved(column)
    for column in sorted((one for one in columns if one.kind == "setting"), key=lambda one: -one.width):
        if too_wide() and column.width > _NARROW:
            moved(column)
    if too_wide() and columns[0].kind == "names" and columns[0].width > _NAMES and len(columns[0].cells) > 1:
        moved(columns[0])
        beside.insert(0, Shown("row", [str(number) for number in range(1, len(columns[0].cells) + 1)], "names"))
    return beside, below


def _below(beside: Sequence[Shown], below: Sequence[Shown]) -> Iterator[str]:
    """A line for what is the same in all rows, and a line for each other value, by row."""
    alike = [f"{column.name} {column.cells[0]}" for column in below if column.kind == "number"]
    if alike:
        yield f"In all rows: {', '.join(alike)}"
    for column in below:
        if column.kind != "number":
            yield f"{column.name}:"
            yield from (f"  {row}: {cell}" for row, cell in zip(beside[0].cells, column.cells, strict=True) if cell)


def _text(table: Table) -> tuple[str, int]:
    """A table as text, and how wide it is; no line is folded, and no number cut."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=_WIDEST, force_terminal=table.box is not None, highlight=False)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    return "\n".join(line.rstrip() for line in lines), console.measure(table).maximum


def _table(columns: Sequence[Shown], terminal: bool, between: str) -> Table:
    """Plain, or with a line below its head; `between` stands within its longer cells."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD if terminal else None, pad_edge=False)
    for column in columns:
        table.add_column(Text(column.name), justify="left" if column.kind in ("names", "setting") else "right")
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(Text(re.sub(r"(?<!to) (?=\+-|to |point-|\()", between, cell)) for cell in row))
    return table
