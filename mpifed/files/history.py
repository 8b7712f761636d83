"""The history of a run, history.csv: the measured rounds, a row each.

However a run ends, it can be read: a row is a single write. An incomplete last row is ignored by the reader and removed
by `History.resume`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.core.text import shown
from mpifed.files.history_csv import FIRST, HISTORY, LEDGER, as_csv, cell_of, columns_of, read_lines
from mpifed.files.json_file import as_written
from mpifed.files.write import append, replace_text, sync

# columns that may change when a run is resumed: `[record]` and the simulated network choose them
_CHOSEN = ("test_", "client_test_", "simulated_s")


class History:
    """The measured rounds of a run, one row each; on rank 0, no call is collective.

    Columns are `FIRST`, then the algorithm's own in the order of its first row, then `LEDGER`.
    """

    def __init__(self, directory: str | os.PathLike[str], lines: list[list[str]] | None = None) -> None:
        """`lines`: those of an existing history; a new one takes its columns from its first row."""
        self._path = Path(directory, HISTORY)
        self._resumed = lines  # what is left in the file of a run that goes on, until it is written
        self._columns, *rows = lines or [[*FIRST, *LEDGER]]
        self._rows = len(rows)
        if self._path.exists() and lines is None:
            raise UsageError(
                f"{self._path}: another run's history is here; continue that run with --resume, or choose another --out"
            )

    @classmethod
    def resume(
        cls, directory: str | os.PathLike[str], round: int, stale: Collection[str] = (), measured: int = 0
    ) -> History:
        """The history up to and including the checkpointed `round`, without later or incomplete rows, to `cut` first.

        Parameters
        ----------
        stale : columns whose earlier values no longer hold, and are left out
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
        at = [number for number, name in enumerate(lines[0] if lines else ()) if name not in stale]
        return cls(directory, [[line[number] for number in at] for line in (*lines[:1], *rows)])

    def rows(self) -> Iterator[Table]:
        """The rows of a history that was resumed, by column."""
        header, *lines = self._resumed or [[]]
        for line in lines:
            yield {name: values[0].item() for name, values in columns_of(self._path, [header, line]).items()}

    def cut(self) -> None:
        """Write what was resumed in place of what is in the file."""
        if self._resumed:
            replace_text(self._path, as_csv(self._resumed))
        elif self._resumed is not None:
            self._path.unlink(missing_ok=True)
        self._resumed = None

    def append(self, row: Mapping[str, float | int | None]) -> None:
        """Append a measured round; a column of `FIRST` or `LEDGER` that is absent or None becomes an empty cell."""
        assert "round" in row, tuple(row)
        differing = sorted({*self._columns} ^ {*row, *FIRST, *LEDGER})
        if strange := [name for name in differing if self._rows and not name.startswith(_CHOSEN)]:
            raise DataError(
                f"{self._path}: has other columns than this run measures ({', '.join(map(shown, strange))}); restore "
                "the file, or start anew without --resume, into another folder"
            )
        if not self._rows or differing:
            self._widen([name for name in row if name in differing])
        append(self._path, as_csv([[cell_of(row.get(name)) for name in self._columns]]).encode())
        self._rows += 1

    def _widen(self, added: list[str]) -> None:
        """Write the header with these columns, and empty cells in the rows that are there."""
        header, *rows = _lines(self._path) if self._rows else [self._columns]
        at = header.index(LEDGER[0])
        self._columns = [*header[:at], *added, *header[at:]]
        rows = [[*cells[:at], *("" for _ in added), *cells[at:]] for cells in rows]
        replace_text(self._path, as_csv([self._columns, *rows]))

    def sync(self) -> int:
        """Flush the file to the disk; the number of measured rounds."""
        if self._path.exists():
            sync(self._path)
        return self._rows


def last_row(run_dir: str | os.PathLike[str]) -> Table:
    """The last measured round of a run, by column; empty where there is none."""
    columns = read_ends(run_dir) if Path(run_dir, HISTORY).exists() else {}
    return {name: values[-1].item() for name, values in columns.items()}


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
        return read_lines(path, as_written(path))
    except OSError as error:
        raise DataError(
            f"{path}: no history here ({error.strerror}); name the directory of a run that measured a round"
        ) from error
