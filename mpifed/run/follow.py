"""`mpifed show RUN --follow`: the rows of a history as they are measured, read from its files, until the run ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import click

from mpifed.core.errors import UsageError
from mpifed.core.io_errors import open_regular
from mpifed.core.text import shown_lines
from mpifed.files.columns import column_of, shown
from mpifed.files.history_csv import HISTORY, read_lines
from mpifed.files.json_file import content
from mpifed.files.run_folder import RUN, read_run
from mpifed.results.points import is_sweep
from mpifed.results.text import meaning
from mpifed.run.folder import FAILURE
from mpifed.run.lock import ENDING_S, is_held
from mpifed.run.progress import number_text

POLL_S = 0.5
_WIDTH = 10


def follow(folder: Path) -> int:
    """Print the rows of a run until it ends; of one that has not begun, once it has. Neither MPI nor locks.

    Returns
    -------
    0 at its end, 130 after Ctrl-C

    Raises
    ------
    UsageError, DataError
        when it is a sweep, or a file is damaged.
    """
    try:
        _follow(folder)
    except KeyboardInterrupt:
        return 130
    return 0


def _follow(folder: Path) -> None:
    rows, table = NewRows(folder / HISTORY), RowTable()
    told, silent_since = False, None
    while True:
        if is_sweep(folder):
            raise UsageError(f"{folder}: is a sweep; follow one of its runs, such as {folder / 'point-0000'}")
        end = _end(folder)  # before the rows, of which none comes after it
        for row in rows.read():
            for line in table.lines(row):
                click.echo(line)
        if end is not None and is_held(folder):
            end = None  # it ends, or has begun to go on, at this moment
        if not told and not (folder / RUN).exists() and end is None:
            told = True
            click.echo(f"mpifed: note: {folder}: waiting for the run to begin", err=True)
        if end is None and (folder / RUN).exists() and not is_held(folder):
            # a run that fails frees its folder before it writes its exit code
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since > ENDING_S:
                end = f"killed, after round {max(rows.last, 0)} at least; go on with --resume"
        else:
            silent_since = None
        if end is not None:
            click.echo(end)
            return
        time.sleep(POLL_S)


def _end(folder: Path) -> str | None:
    """How a run has ended, in a line; None where it has not."""
    if not (folder / RUN).exists():
        if (folder / FAILURE).exists():
            return shown_lines(content(folder / FAILURE).decode("utf-8", "replace").rstrip("\n"))
        return None
    code = read_run(folder)["exit"]
    return None if code is None else f"{meaning(code)} (exit {code})"


class NewRows:
    """The rows of a history that have not been read yet.

    A run that is resumed replaces the file, and measures rows again: those of rounds that were read are left out.

    Attributes
    ----------
    last : the round of the last row that was read; -1 before the first
    """

    def __init__(self, path: Path) -> None:
        self.last = -1
        self._path, self._inode, self._offset, self._header = path, 0, 0, b""

    def read(self) -> Iterator[dict[str, str]]:
        """The cells of new rows, by column."""
        if not self._path.exists():
            return
        with open_regular(self._path) as file:
            about = os.fstat(file.fileno())
            if about.st_ino != self._inode or about.st_size < self._offset:
                self._inode, self._offset, self._header = about.st_ino, 0, b""
            file.seek(self._offset)
            whole = file.read()
        whole = whole[: whole.rfind(b"\n") + 1]  # the last row may be incomplete
        if not whole:
            return
        lines = read_lines(self._path, self._header + whole)
        self._header = self._header or whole[: whole.find(b"\n") + 1]
        self._offset += len(whole)
        for cells in lines[1:]:
            row = dict(zip(lines[0], cells, strict=True))
            if int(row["round"]) > self.last:
                self.last = int(row["round"])
                yield row


class RowTable:
    """Rows as lines of a table: the columns of a progress bar that the first row has."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def lines(self, row: dict[str, str]) -> Iterator[str]:
        """The line of a row, after the header before the first."""
        if not self._names:
            names = [column.name for column in shown("progress")] + [n for n in row if n.startswith("constraint_")]
            self._names = ["round", "elapsed_s", *(name for name in names if row.get(name))]
            yield "  ".join(f"{_label(name):>{_width(name)}}" for name in self._names)
        texts = ((name, row.get(name, "")) for name in self._names)
        yield "  ".join(f"{_text(name, cell):>{_width(name)}}" for name, cell in texts)


def _label(name: str) -> str:
    column = column_of(name)
    return "seconds" if column.unit == "s" else f"{column.label} {name.removeprefix(column.name)}".strip()


def _width(name: str) -> int:
    return max(_WIDTH, len(_label(name)))


def _text(name: str, cell: str) -> str:
    if name == "round" or not cell:
        return cell
    return f"{float(cell):.2f}" if name == "elapsed_s" else number_text(name, float(cell))
