"""The result files of a run, which rank 0 writes: history.csv, history.h5, model.h5, run.json.

However a run ends, its files can be read: a row of the history is a single write, and all other files are written under
a temporary name and renamed. An incomplete last row is ignored by the reader and removed by `History.resume`.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError, UsageError
from mpifed.core.io_errors import named_in_errors
from mpifed.core.text import shown
from mpifed.run import columns
from mpifed.run.history_file import FIRST as FIRST
from mpifed.run.history_file import HISTORY as HISTORY
from mpifed.run.history_file import LEDGER as LEDGER
from mpifed.run.history_file import as_csv, cell_of, columns_of, read_lines, renewed_lines
from mpifed.run.json_file import as_json as as_json
from mpifed.run.json_file import content
from mpifed.run.json_file import read_json as read_json
from mpifed.run.json_file import read_run as read_run
from mpifed.shards.hdf5 import array_of, attribute_of, reading_hdf5, write_hdf5

SUMMARY = tuple(column.name for column in columns.shown("summary"))

_OF_ROW = ("elapsed_s", "up_bytes", "down_bytes")  # both in a row and in run.json
_NO_MODEL = "no readable model", "let the run reach its end, or resume it"


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

    def sync(self) -> int:
        """Flush the file to the disk; the number of measured rounds."""
        if self._path.exists():
            with named_in_errors(self._path), open(self._path, "r+b") as file:
                os.fsync(file.fileno())
        return self._rows

    def last(self) -> dict[str, Any]:
        """The last measured round, by column; empty where there is none."""
        columns = read_history(self._path.parent) if self._columns else {}
        return {name: values[-1].item() for name, values in columns.items() if len(values)}

    def close(self) -> None:
        """Write history.h5: every column as a dataset [measured rounds], NaN where a cell is empty."""
        if self._columns:
            _write_arrays(self._path.with_suffix(".h5"), read_history(self._path.parent))


def read_history(run_dir: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
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


def _lines(path: Path) -> list[list[str]]:
    try:
        return read_lines(path, content(path))
    except OSError as error:
        raise DataError(
            f"{path}: no history here ({error.strerror}); name the directory of a run that measured a round"
        ) from error


def write_model(
    path: str | os.PathLike[str],
    arrays: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, int | str] = MappingProxyType({}),
) -> None:
    """Write named arrays as the datasets of an HDF5 file, with root attributes; replaces the file atomically."""
    _write_arrays(Path(path), arrays, attributes)


def read_model(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The named arrays of a file that `write_model` wrote; DataError when it is missing or damaged."""
    with reading_hdf5(path, *_NO_MODEL) as file:
        return {name: array_of(file, name) for name in file}


def read_attributes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The attributes of a file that `write_model` wrote; DataError when it is missing or damaged."""
    with reading_hdf5(path, *_NO_MODEL) as file:
        return {name: attribute_of(file, name) for name in file.attrs}


def model_sha256(arrays: Mapping[str, NDArray[Any]]) -> str:
    r"""The hexadecimal SHA-256 of named arrays: equal exactly when names, shapes, dtypes and all bits are.

    Hashed are, for each name in ascending order of code points and with nothing in between: the name, a zero byte,
    numpy's string of the dtype in little-endian order (``<f4``), a zero byte, the decimal lengths of the axes joined by
    commas (``784,128``; nothing for a scalar), a zero byte, all in UTF-8; then the values in C order, little-endian.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        values = np.asarray(arrays[name])
        values = values.astype(values.dtype.newbyteorder("<"), order="C", copy=False)
        digest.update(f"{name}\0{values.dtype.str}\0{','.join(map(str, values.shape))}\0".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def write_json(path: str | os.PathLike[str], table: Mapping[str, Any]) -> None:
    """Write a table as JSON with its checksum, replacing the file atomically; ValueError if a number is not finite."""
    text = as_json(table)
    with aside(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The ("table.key", value) pairs of nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def summary(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """What `mpifed show RUN --json` prints: exactly the keys `SUMMARY`, None for values that the run does not have.

    Values are those of run.json, else of the last row of history.csv (a number that is not finite counts as absent);
    `constraint_values` lists the columns `constraint_*` in their order, `multipliers` the columns `multiplier_*`; the
    hash and the count of nonzero entries come from model.h5.
    """
    run, result = Path(run_dir), dict.fromkeys(["round", *SUMMARY])
    if (run / HISTORY).exists():
        result |= History(run, FIRST).last()
    about = read_run(run)  # null where the last model, over all rows, has no such number
    if about.get("exit") is None and result["round"] is not None:  # it is as at the start: the last row knows more
        about = {**about, "rounds": result["round"]} | {
            name: result[name] for name in _OF_ROW if result[name] is not None
        }
    result |= {name: value for name, value in about.items() if value is not None or name not in FIRST + LEDGER}
    result = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in result.items()
    }
    for name, prefix in (("constraint_values", "constraint_"), ("multipliers", "multiplier_")):
        numbered = [key for key in result if re.fullmatch(rf"{prefix}\d+", key)]
        result[name] = [result[key] for key in sorted(numbered, key=lambda key: int(key.removeprefix(prefix)))] or None
    if (run / "model.h5").exists():
        model = read_model(run / "model.h5")
        nonzeros = sum(int(np.count_nonzero(values)) for values in model.values())
        result |= {"model_sha256": model_sha256(model), "nonzeros": nonzeros}
    return {name: result[name] for name in SUMMARY}


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to; without an error, that file is synced and replaces `path`."""
    temporary = path.with_name(path.name + ".new")
    try:
        with named_in_errors(path):
            yield temporary
            with open(temporary, "r+b") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        with suppress(OSError):  # where the folder was removed, say
            temporary.unlink(missing_ok=True)


def _write_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], attributes: Mapping[str, int | str] = MappingProxyType({})
) -> None:
    assert not any("/" in name for name in arrays), tuple(arrays)
    with aside(path) as temporary, write_hdf5(temporary) as file:
        for name, values in arrays.items():
            file[name] = values
        file.attrs.update(attributes)
