"""The history of a run, history.csv: the measured rounds, a row each.

However a run ends, it can be read: a row is a single write. An incomplete last row is ignored by the reader and removed
by `History.resume`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.io_errors import PathLike
from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.files.history_csv import FIRST, HISTORY, LEDGER, as_csv, cell_of, columns_of, read_csv
from mpifed.files.json_file import as_written
from mpifed.files.reading import reading
from mpifed.files.write import append, replace_text, sync
from mpifed.text import shown


class History:
    """The measured rounds of a run, one row each; on rank 0, no call is collective.

    Columns are `FIRST`, then the algorithm's own in the order in which they first came, then `LEDGER`.
    """

    def __init__(self, directory: PathLike, resumed: list[list[str]] | None = None) -> None:
        """`resumed`: what is left of the file of a run that goes on, once it is `cut`; None: a new one."""
        self._path, self._lines = Path(directory, HISTORY), resumed or [[*FIRST, *LEDGER]]
        if self._path.exists() and resumed is None:
            raise UsageError(
                f"{self._path}: another run's history is here; continue that run with --resume, or choose another --out"
            )

    @classmethod
    def resume(cls, directory: PathLike, round: int, measured: int = 0) -> History:
        """The history up to and including the checkpointed `round`, without later or incomplete rows, to `cut` first.

        Parameters
        ----------
        measured : number of rows at the checkpoint

        Raises
        ------
        DataError
            when it is not a history, or has fewer rows than `measured`.
        """
        path = Path(directory, HISTORY)
        header, *lines = (_lines(path) if path.exists() else []) or [[]]
        rows = [row for row in lines if int(row[0]) <= round]
        if len(rows) < measured:
            raise DataError(
                f"{path}: has {len(rows)} whole rows up to round {round}, and by the checkpoint {measured} had been "
                "measured; restore the file, or start anew without --resume, into another folder"
            )
        return cls(directory, [header, *rows] if header else [])

    def rows(self) -> list[Table]:
        """The rows, by column."""
        columns = columns_of(self._lines)
        lines = zip(*map(np.ndarray.tolist, columns.values()), strict=True)
        return [dict(zip(columns, line, strict=True)) for line in lines]

    def cut(self) -> None:
        """Write the rows that were resumed in place of what is in the file."""
        if self._lines[1:]:
            replace_text(self._path, as_csv(self._lines))
        else:
            self._path.unlink(missing_ok=True)

    def append(self, row: Mapping[str, float | int | None]) -> None:
        """Append a measured round; a column that is absent or None becomes an empty cell, also in earlier rows."""
        assert "round" in row, tuple(row)
        header = self._lines[0]
        new = [name for name in row if name not in header]
        if new or not self._lines[1:]:
            at = header.index(LEDGER[0])
            for line in self._lines:
                line[at:at] = new if line is header else [""] * len(new)
            replace_text(self._path, as_csv(self._lines))
        self._lines.append([cell_of(row.get(name)) for name in header])
        append(self._path, as_csv(self._lines[-1:]).encode())

    def sync(self) -> int:
        """Flush the file to the disk; the number of measured rounds."""
        if self._path.exists():
            sync(self._path)
        return len(self._lines) - 1


def last_row(run_dir: PathLike) -> Table:
    """The last measured round of a run, by column; empty where there is none."""
    columns = history_so_far(run_dir)
    return {name: values[-1].item() for name, values in columns.items() if len(values)}


def read_history(run_dir: PathLike) -> dict[str, Array]:
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
    return columns_of(_lines(Path(run_dir, HISTORY)))


def history_so_far(run_dir: PathLike) -> dict[str, Array]:
    """The columns of a run's history.csv; none where it is not there, as before the first row."""
    return read_history(run_dir) if Path(run_dir, HISTORY).exists() else {}


def _lines(path: Path) -> list[list[str]]:
    """The header and rows of a history, each as long as the header; text after the last line end is an incomplete row.

    DataError where it is missing, or none: a column is missing or duplicate, or the rounds do not ascend.
    """
    remedy = "name the folder of a run that measured a round; restore what was changed, or resume from the checkpoint"
    with reading(path, remedy, OSError, ValueError):
        lines = read_csv(as_written(path).rpartition(b"\n")[0])
        if not lines:
            return []
        header, columns = lines[0], columns_of(lines)
        if (*header[: len(FIRST)],) != FIRST or not {*LEDGER} <= columns.keys() or len(columns) < len(header):
            expected = f"different columns: {', '.join((*FIRST, '...', *LEDGER))}"
            raise ValueError(f"its first line has {shown(', '.join(header))}, expected {expected}")
        rounds = columns[FIRST[0]]
        if rounds.dtype != np.int64 or (np.diff(rounds, prepend=-1) <= 0).any():
            raise ValueError(f"column {FIRST[0]} does not ascend from 0 or more")
        return lines
