"""The history of a run, history.csv: the measured rounds, a row each.

However a run ends, it can be read: a row is a single write. An incomplete last row is ignored by the reader and removed
by `History.resume`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from mpifed.core.errors import DataError, UsageError
from mpifed.core.io_errors import named_in_errors
from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.core.text import shown
from mpifed.files.atomic import aside
from mpifed.files.history_csv import FIRST, HISTORY, LEDGER, as_csv, cell_of, columns_of, read_lines, renewed_lines
from mpifed.files.json_file import content

_CHOSEN = ("test_", "client_test_")  # columns that `[record]` chooses, which may change when a run is resumed


class History:
    """The measured rounds of a run, one row each; on rank 0, no call is collective.

    Columns are `FIRST`, then the algorithm's own in the order of its first row, then `LEDGER`.
    """

    def __init__(self, directory: str | os.PathLike[str], columns: tuple[str, ...] = ()) -> None:
        """`columns`: those of an existing history; a new one takes them from its first row."""
        self._path, self._columns, self._resumed = Path(directory, HISTORY), columns, bool(columns)
        self._rows = 0
        if self._path.exists() and not columns:
            raise UsageError(
                f"{self._path}: another run's history is here; continue that run with --resume, or choose another --out"
            )

    @classmethod
    def resume(
        cls,
        directory: str | os.PathLike[str],
        round: int,
        renewed: Mapping[str, bool] = MappingProxyType({}),
        measured: int = 0,
    ) -> History:
        """The history up to and including the checkpointed `round`, to append to, without later or incomplete rows.

        Parameters
        ----------
        renewed : columns whose earlier values no longer hold; True: cells become empty, False: the column is dropped
        measured : number of rows at the checkpoint

        Raises
        ------
        DataError
            when it is not a history, or has fewer rows than `measured`.
        """
        path = Path(directory, HISTORY)
        lines = _lines(path) if path.exists() else []
        if len(rows := [row for row in lines[1:] if int(row[0]) <= round]) < measured:
            raise DataError(
                f"{path}: has {len(rows)} whole rows up to round {round}, and by the checkpoint {measured} had been "
                "measured; restore the file, or start anew without --resume, into another folder"
            )
        if not lines:
            path.unlink(missing_ok=True)
            return cls(directory)
        header = lines[0]
        for name, goes_on in renewed.items():
            header, *rows = renewed_lines([header, *rows], name, goes_on)
        with aside(path) as temporary:
            temporary.write_text(as_csv([header, *rows]), encoding="utf-8")
        resumed = cls(directory, tuple(header))
        resumed._rows = len(rows)
        return resumed

    def append(self, row: Mapping[str, float | int | None]) -> None:
        """Append a measured round; a column of `FIRST` or `LEDGER` that is absent or None becomes an empty cell."""
        lines = []
        if not self._columns:
            of_algorithm = (name for name in row if name not in FIRST + LEDGER)
            self._columns = (*FIRST, *of_algorithm, *LEDGER)
            lines.append(self._columns)
        differing = set(self._columns) ^ {*row, *FIRST, *LEDGER}
        if differing and self._resumed and all(name.startswith(_CHOSEN) for name in differing):
            if added := [name for name in row if name in differing]:
                self._add(added)
            differing = set()
        assert "round" in row and (self._resumed or not differing), (tuple(row), self._columns)
        if differing:
            names = ", ".join(sorted(map(shown, differing)))
            raise DataError(
                f"{self._path}: has other columns than this run measures ({names}); restore the file, or start anew "
                "without --resume, into another folder"
            )
        lines.append(tuple(cell_of(row.get(name)) for name in self._columns))
        with named_in_errors(self._path), open(self._path, "a", encoding="utf-8", newline="") as file:
            file.write(as_csv(lines))
        self._rows += 1

    def _add(self, names: Iterable[str]) -> None:
        """Add columns, with empty cells in the rows that are there."""
        lines = _lines(self._path)
        for name in names:
            lines = renewed_lines(lines, name, goes_on=True)
        with aside(self._path) as temporary:
            temporary.write_text(as_csv(lines), encoding="utf-8")
        self._columns = tuple(lines[0])

    def sync(self) -> int:
        """Flush the file to the disk; the number of measured rounds."""
        if self._path.exists():
            with named_in_errors(self._path), open(self._path, "r+b") as file:
                os.fsync(file.fileno())
        return self._rows

    def last(self) -> Table:
        """The last measured round, by column; empty where there is none."""
        columns = read_history(self._path.parent) if self._columns else {}
        return {name: values[-1].item() for name, values in columns.items() if len(values)}


def read_history(run_dir: str | os.PathLike[str]) -> dict[str, Array]:
    """The columns of a run's history.csv.

    Parameters
    ----------
    run_dir
        The directory of a run; it may still be running.

    Returns
    -------
    dict
        By column, [measured rounds]: int64 where every cell is a whole number, else float64 with NaN for empty cells.
        Empty where a run ended before its first measured round was written.

    Raises
    ------
    DataError
        history.csv is missing, or is not a history.
    """
    path = Path(run_dir, HISTORY)
    return columns_of(path, _lines(path))


def read_ends(run_dir: str | os.PathLike[str]) -> dict[str, Array]:
    """The columns of the first and the last measured round alone, [2], as `read_history` gives them, in less time."""
    path = Path(run_dir, HISTORY)
    header, *rows = _lines(path) or [[]]
    return columns_of(path, [header, rows[0], rows[-1]]) if rows else {}


def _lines(path: Path) -> list[list[str]]:
    try:
        return read_lines(path, content(path))
    except OSError as error:
        raise DataError(
            f"{path}: no history here ({error.strerror}); name the directory of a run that measured a round"
        ) from error
