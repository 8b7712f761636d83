"""The options of `mpifed data`, and which of them contradict each other."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Literal

from mpifed.core.errors import UsageError
from mpifed.core.nearest import nearest
from mpifed.data.source_files import check_choices
from mpifed.data.sources import Source, Tables

SCALES = ("none", "unit", "minmax", "standard", "unit-rows")
_DRAWS = ("partition", "skew", "min_samples")
# by what divides the data: why other options say nothing, the one that is needed, and others that are read
_DIVIDE = {
    "by": ("--by says whose each row is", None, "split", "min_rows"),
    "tables": ("the files say who holds what", None),
    "map": ("--map says who holds what", None, "map", "split"),
    "rows": ("--split rows gives all columns to each client", "clients", "split", *_DRAWS),
    "columns": ("--split columns gives all rows to each client", "clients", "split"),
    "grid": ("--grid says how many groups there are", "grid", "split", *_DRAWS),
}
_DIVIDING = ("split", "clients", "grid", "map", "min_rows", *_DRAWS)


@dataclass(frozen=True)
class Options:
    """The options of `mpifed data`; the docstring below a field is its help. Python's functions pass them, too."""

    name: str
    source: Source
    out: Path | None  # None, from Python: the data stay in memory
    """Folder for the files."""
    split: Literal["rows", "columns", "grid"] | None = None
    """What clients divide: samples, features, or both. Not where data say whose each row is, as by --by, or tables."""
    clients: int | None = None
    """Number of clients; --by, --grid and --map imply it."""
    min_rows: int | None = None
    """Natural clients: leave out those of fewer training rows, counted before --client-test-fraction."""
    grid: str | None = field(default=None, metadata={"metavar": "RxC"})
    """R groups of rows times C groups of columns."""
    map: Path | None = None
    """What each client holds: a CSV file `client,rows,columns`, e.g. `0,0-99 120,all`. Row indices start from 0 and do
    not count the test rows of --test-fraction. Or a CSV file `row,client` with a line for each row."""
    missing: Literal["error", "zero", "drop", "mean", "median"] = "error"
    """What becomes of gaps in csv and the like: an error, zero (of one-hot categories: all zeros), their row is left
    out, or the mean or the median of the training rows, of categories the most frequent one. Of --map and tables: of
    cells that no client holds, error or zero."""
    partition: str = field(default="iid", metadata={"metavar": "iid|dirichlet:A|classes:K|random-classes:K|shards:K"})
    """Distribution of the classes of --labels over groups of rows: equal, in Dirichlet(A) proportions, K classes each
    (all classes with equally many clients, or drawn by each client), or K runs each of the rows sorted by class."""
    skew: str | float | None = field(default=None, metadata={"metavar": "A|lognormal:S|power:A"})
    """Draw the sizes of groups of rows from Dirichlet(A), or as exp of normal numbers with deviation S, or make them
    k^-A for k = 1, 2, ..."""
    min_samples: int = 1
    """Draw the partition again until every group of rows has so many."""
    feature_noise: float | None = None
    """A shift of features: V adds Gaussian noise of variance V n / N to scaled rows of client n = 1, ..., N."""
    labels: str = field(default="all", metadata={"metavar": "all|even-odd|class:K"})
    """The classes: every label, odd against even, or label K against the rest."""
    scale: str | None = field(default=None, metadata={"metavar": "|".join(SCALES)})
    """unit: divide by the largest value. minmax, standard: each column to [0, 1], or to mean 0 and variance 1.
    unit-rows: each row to norm 1. Several in sequence: minmax,unit-rows. By default standard for tables (csv, parquet,
    arrow, frames), bytes divided by 255, else none."""
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
        from_tables = isinstance(self.source, Tables)
        dividing = "map" if self.map else self.split
        route = "by" if self.natural else "tables" if from_tables else dividing
        if route is None:
            by = ", or --by NAME for a client of each identifier" if hasattr(self.source, "by") else ""
            raise UsageError(f"--split is missing; expected rows, columns or grid, as --split rows --clients 10{by}")
        why, needed, *taken = _DIVIDE[route]
        defaults = {field.name: field.default for field in fields(Options)}
        given = [name for name in _DIVIDING if getattr(self, name) != defaults[name] and name not in (needed, *taken)]
        if given:
            words = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{words}: {why}; leave {'it' if len(given) == 1 else 'them'} out")
        held_nowhere = self.missing == "zero" and (from_tables or self.map)
        fractions = {"test-fraction": self.test_fraction, "client-test-fraction": self.client_test_fraction}
        strange = next((kind for kind in self.scalings if kind not in SCALES), "")
        contradictions = (
            (bool(strange), f"--scale {str(self.scale)[:80]}: {strange[:40]!r} is not a scaling"
             f"{nearest(strange, SCALES)}; expected one of {', '.join(SCALES)}, or several, with commas"),
            (self.grid and not self.groups,
             f"--grid {str(self.grid)[:40]}: expected R groups of rows and C of columns as RxC, for example 5x2"),
            (needed and getattr(self, needed) is None,
             f"--split {route}: --clients N is missing; of a grid give either --grid RxC or --map FILE"),
            (route == "by" and self.split in ("columns", "grid"), f"--split {self.split}: {why}; leave it out"),
            (route == "map" and self.source.names_clients,
             f"--map counts rows as a file has them, and {self.name} sorts them; leave it out"),
            (self.missing != "error" and not held_nowhere and (from_tables or not hasattr(self.source, "missing")),
             f"--missing {self.missing}: for gaps of tables such as csv, and zero for cells that no client of --map or "
             "tables holds; leave it out"),
            (self.min_rows is not None and not 1 <= self.min_rows < 2**62,
             f"--min-rows {self.min_rows}: expected 1 or more"),
            (self.feature_noise is not None and not 0 < self.feature_noise < math.inf,
             f"--feature-noise {self.feature_noise}: expected a variance above 0"),
            *((fraction is not None and not (isinstance(fraction, Real) and 0 < fraction < 1),
               f"--{name} {str(fraction)[:80]}: expected a number above 0 and below 1, for example 0.2")
              for name, fraction in fractions.items()),
            (not 0 <= self.seed < 2**64, f"--seed {self.seed}: expected 0 or more, and less than 2^64"),
        )  # fmt: skip
        for contradicts, why in contradictions:
            if contradicts:
                raise UsageError(why)

    @property
    def natural(self) -> bool:
        """Whether the source says whose each row is, and nothing else was asked for."""
        artificial = self.clients is not None or self.grid or self.map or self.split in ("columns", "grid")
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
