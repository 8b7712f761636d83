"""The modules that a job would import for "module:Class", determined without importing any."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mpifed.core.contract import own_module
from mpifed.core.tables import ReadOnlyTable
from mpifed.core.text import shown
from mpifed.job.components import ALGORITHM, MINIMIZE, MODEL, REGULARIZER
from mpifed.job.own_sources import file_of


class Module(NamedTuple):
    """A module that would be imported, together with its packages and with what it imports itself."""

    table: str  # of the job
    name: str  # "module:Class"
    module: str
    file: str | None  # from which it would come; None where none is found

    def __str__(self) -> str:
        return f"{self.module} ({self.file or 'no file found'}), for [{self.table}] {self.name}"


def own_modules(table: ReadOnlyTable) -> list[Module]:
    """The modules of a job's tables, and of all points of its sweep, in order."""
    modules = []
    for place, name in dict.fromkeys(_names(table)):
        module = own_module(name)
        if module is not None:
            modules.append(Module(place, name, module, _file(module)))
    return modules


def _names(table: ReadOnlyTable) -> Iterator[tuple[str, str]]:
    """(table, name) of each part; all texts of a sweep, since any may become a name."""
    for kind in (MODEL, MINIMIZE, ALGORITHM, REGULARIZER):
        yield from _name(kind.table, table.get(kind.table))
    for several in ("constraint", "observe"):
        parts = table.get(several)
        for number, part in enumerate(parts if isinstance(parts, list) else [], 1):
            yield from _name(f"{several} {number}", part)
    left = [table.get("sweep")]
    while left:
        value = left.pop(0)
        if isinstance(value, str):
            yield "sweep", value
        elif isinstance(value, (dict, list)):
            left[:0] = value.values() if isinstance(value, dict) else value


def _name(table: str, part: object) -> Iterator[tuple[str, str]]:
    if isinstance(part, Mapping):
        yield from ((table, value) for value in part.values() if isinstance(value, str))


def _file(module: str) -> str | None:
    """The file of a module. In a package it is searched for, since `importlib` would import the package."""
    top, _, rest = module.partition(".")
    path = sys.path
    try:
        sys.path = ["", *path]  # as for the import itself; restored below for other imports
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    finally:
        sys.path = path
    if spec is None:
        return None
    if not rest:
        return spec.origin
    files = (file_of(rest, Path(folder)) for folder in spec.submodule_search_locations or [])
    return next((str(file) for file in files if file is not None), None)


def lines(modules: list[Module]) -> str:
    """The modules as text, a line for each."""
    return "\n".join(f"{'' if number else 'Imports':12}{shown(str(module))}" for number, module in enumerate(modules))
