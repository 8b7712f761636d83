"""The options of `mpifed data`, and which of them contradict each other."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Literal

from mpifed.core.errors import UsageError
from mpifed.data.source_files import check_choices
from mpifed.data.sources import Source
from mpifed.text import nearest

SCALES = ("none", "unit", "minmax", "standard", "unit-rows")
# by what divides the data: why other options say nothing, the one that is needed, and others that are read
_DIVIDE = {
    "by": ("the data say whose each row is", None, "split"),
    "rows": ("--split rows gives all columns to each client", "clients", "split", "partition", "skew"),
    "columns": ("--split columns gives all rows to each client", "clients", "split"),
    "grid": ("--grid says how many groups there are", "grid", "split", "partition", "skew"),
}
_DIVIDING = ("clients", "grid", "partition", "skew")


@dataclass(frozen=True)
class Options:
    """The options of `mpifed data`; the docstring below a field is its help. Python's functions pass them, too."""

    name: str
    source: Source
    out: Path | None  # None, from Python: the data stay in memory
    """Folder for the files."""
    split: Literal["rows", "columns", "grid"] | None = None
    """What clients divide: samples, features, or both. Not where data say whose each row is, as by --by."""
    clients: int | None = None
    """Number of clients; --by and --grid imply it."""
    grid: str | None = field(default=None, metadata={"metavar": "RxC"})
    """R groups of rows times C groups of columns."""
    partition: str = field(default="iid", metadata={"metavar": "iid|dirichlet:A|classes:K|shards:K"})
    """Distribution of the classes of --labels over groups of rows: equal, in Dirichlet(A) proportions, K classes each
    (all classes with equally many clients), or K runs each of the rows sorted by class."""
    skew: str | float | None = field(default=None, metadata={"metavar": "A|power:A"})
    """Draw the sizes of groups of rows from Dirichlet(A), or make them k^-A for k = 1, 2, ..."""
    labels: str = field(default="all", metadata={"metavar": "all|even-odd|class:K"})
    """The classes: every label, odd against even, or label K against the rest."""
    scale: str | None = field(default=None, metadata={"metavar": "|".join(SCALES)})
    """unit: divide by the largest value. minmax, standard: each column to [0, 1], or to mean 0 and variance 1.
    unit-rows: each row to norm 1. Several in sequence: minmax,unit-rows. By default standard for tables (csv, parquet,
    frames), bytes divided by 255, else none."""
    test_fraction: float | None = None
    """Hold out this fraction of rows for testing."""
    client_test_fraction: float | None = None
    """Hold out this fraction of each client's rows, with which that client tests, for a table of scores by client in
    clients.csv; where rows are divided."""
    seed: int = 0
    """Seed of partition, test rows and synthetic data."""
    force: bool = field(default=False, metadata={"off": ""})
    """Replace the data in --out."""

    def __post_init__(self) -> None:
        """Raise UsageError for options that contradict each other, for the command line and Python."""
        check_choices(self)
        route = "by" if self.natural else self.split
        if route is None:
            by = ", or --by NAME for a client of each identifier" if hasattr(self.source, "by") else ""
            raise UsageError(f"--split is missing; expected rows, columns or grid, as --split rows --clients 10{by}")
        why, needed, *read = _DIVIDE[route]
        for option in fields(self):
            given = getattr(self, option.name) != option.default
            if option.name == needed and not given:
                raise UsageError(f"--split {route}: --{needed} is missing")
            if given and option.name in _DIVIDING and option.name not in (needed, *read):
                raise UsageError(f"--{option.name}: {why}; leave it out")
        if self.natural and self.split in ("columns", "grid"):
            raise UsageError(f"--split {self.split}: {why}; leave it out")
        for kind in self.scalings:
            if kind not in SCALES:
                raise UsageError(
                    f"--scale {str(self.scale)[:80]}: {kind[:40]!r} is not a scaling{nearest(kind, SCALES)}; expected "
                    f"one of {', '.join(SCALES)}, or several, with commas"
                )
        if self.grid and not self.groups:
            raise UsageError(f"--grid {self.grid[:40]}: expected R groups of rows and C of columns, as 5x2")
        for name, fraction in (("test", self.test_fraction), ("client-test", self.client_test_fraction)):
            if fraction is not None and not (isinstance(fraction, Real) and 0 < fraction < 1):
                raise UsageError(
                    f"--{name}-fraction {str(fraction)[:80]}: expected a number above 0 and below 1, as 0.2"
                )
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"--seed {self.seed}: expected 0 or more, and less than 2^64")

    @property
    def natural(self) -> bool:
        """Whether the source says who holds what, and nothing else was asked for."""
        artificial = self.clients is not None or self.grid or self.split in ("columns", "grid")
        return self.source.names_clients and (not artificial or getattr(self.source, "by", None) is not None)

    @property
    def groups(self) -> tuple[int, int] | None:
        """How many groups of rows, and of columns, `grid` says."""
        numbers = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", self.grid or "")
        return None if numbers is None else (int(numbers[1]), int(numbers[2]))

    @property
    def scalings(self) -> list[str]:
        """The names in `scale`, in the order in which they are applied."""
        return [] if self.scale is None else self.scale.split(",")
