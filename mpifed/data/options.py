"""The options of `mpifed data`, and which of them contradict each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from mpifed.core.errors import UsageError
from mpifed.data.sources import Source, Tables


@dataclass(frozen=True)
class Options:
    """The options of `mpifed data`."""

    name: str  # of the source
    source: Source
    out: Path | None  # the folder; None: the data stay in memory
    split: str | None = "rows"
    clients: int | None = None  # implied by `grid` and `map`
    grid: tuple[int, int] | None = None
    map: Path | None = None
    missing: str = "error"  # "zero" to allow cells of `map` that no client holds; how gaps of tables are filled
    min_rows: int | None = None  # that a natural client has at least, to train on or of `client_test_fraction`
    partition: str = "iid"
    skew: str | float | None = None
    min_samples: int = 1  # of each client
    feature_noise: float | None = None  # see `with_noise`
    labels: str = "all"
    scale: str = "none"  # or several scalings in sequence, separated by commas
    test_fraction: float | None = None
    client_test_fraction: float | None = None
    seed: int = 0
    force: bool = False
    origin: str | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for options that contradict each other."""
        from_tables = isinstance(self.source, Tables)
        if from_tables and (self.split not in (None, "grid") or self.clients or self.grid or self.map):
            raise UsageError(
                f"--split, --clients, --grid and --map: the files of {self.name} set the partition; leave them out"
            )
        gaps = hasattr(self.source, "missing") and not from_tables
        if self.missing == "zero" and not (from_tables or self.map or gaps):
            raise UsageError("--missing zero is for cells that no client holds, which only --map and tables can have")
        if self.missing not in ("error", "zero") and not gaps:
            raise UsageError(f"--missing {self.missing} is for gaps of tables such as csv; leave it out")
        if self.natural:
            self._check_natural()
        elif self.min_rows is not None:
            raise UsageError("--min-rows joins natural clients: give --by COLUMN, and no --clients or --map")
        elif not from_tables:
            self._check_split()
        if self._drawn and (self.split == "columns" or self.map or from_tables):
            raise UsageError(
                "--partition, --skew and --min-samples divide rows; leave them out with --split columns, --map or "
                "tables"
            )
        of_rows = self.split == "rows" or self.natural
        if self.feature_noise is not None and not (of_rows and 0 < self.feature_noise < math.inf):
            raise UsageError(
                f"--feature-noise {self.feature_noise:g}: expected a variance above 0, and --split rows or natural "
                "clients, where each row has one client"
            )
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"--seed {self.seed}: expected 0 or more, and less than 2^64")

    @property
    def natural(self) -> bool:
        """Whether the source says whose each row is, and nothing else was asked for."""
        artificial = self.clients is not None or self.grid or self.map or self.split in ("columns", "grid")
        return self.source.names_clients and (not artificial or getattr(self.source, "by", None) is not None)

    @property
    def _drawn(self) -> bool:
        return self.partition != "iid" or self.skew is not None or self.min_samples != 1

    def _check_natural(self) -> None:
        if self.clients is not None or self.grid or self.map or self.split not in (None, "rows"):
            raise UsageError(
                "--by says whose each row is; leave out --clients, --grid, --map, and --split or give rows"
            )
        if self._drawn:
            raise UsageError(
                "--partition, --skew and --min-samples divide rows at random; leave them out with natural clients, "
                "which --min-rows joins"
            )
        if self.min_rows is not None and not 1 <= self.min_rows < 2**62:
            raise UsageError(f"--min-rows {self.min_rows}: expected 1 or more")

    def _check_split(self) -> None:
        if self.split is None:
            by = ", or --by NAME for a client of each identifier" if hasattr(self.source, "by") else ""
            raise UsageError(f"--split is missing; expected rows, columns or grid, as --split rows --clients 10{by}")
        if self.map and self.source.names_clients:
            raise UsageError(f"--map counts rows as a file has them, and {self.name} sorts them; leave it out")
        if self.split == "grid":
            if (self.grid is None) == (self.map is None):
                raise UsageError("--split grid: give either --grid RxC or --map FILE")
            if self.grid and self.clients not in (None, self.grid[0] * self.grid[1]):
                raise UsageError(
                    f"--clients {self.clients}: --grid {self.grid[0]}x{self.grid[1]} is for "
                    f"{self.grid[0] * self.grid[1]} clients; leave --clients out"
                )
        elif self.grid or (self.map and self.split != "rows"):
            raise UsageError(f"--grid and --map are for --split grid, not for --split {self.split}")
        elif self.clients is None and not self.map:
            raise UsageError(f"--split {self.split}: --clients N is missing")
