"""The result files of a run, written by rank 0 and read by everybody: history.csv, history.h5, model.h5, run.json.

Whatever ends a run, its files can be read: a row of the history is one write, and all other files are written aside and
renamed. A torn last row is ignored by the reader and removed by `History.resume`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError, UsageError
from mpifed.core.io_errors import named_in_errors, regular
from mpifed.shards.hdf5 import open_hdf5, write_hdf5

HISTORY = "history.csv"
FIRST = ("round", "elapsed_s", "train_loss", "test_accuracy")
LEDGER = ("up_bytes", "down_bytes", "epsilon")
SUMMARY = (
    "rounds", "exit", "model_sha256", "objective", "train_loss", "test_accuracy", "elapsed_s", "seconds_per_round",
    "up_bytes", "down_bytes", "peak_rss_bytes", "epsilon", "delta", "kkt_residual", "constraint_values",
    "stationarity", "feasibility", "complementarity", "multipliers", "lower_bound", "duality_gap", "nonzeros",
    "simulated_s", "epsilon_if_secret", "private",
)  # fmt: skip


class History:
    """The measured rounds of one run, one row each; lives on rank 0, no call is collective.

    Columns are `FIRST`, then the algorithm's own in the order of its first row, then `LEDGER`.
    """

    def __init__(self, directory: str | os.PathLike[str], columns: tuple[str, ...] = ()) -> None:
        """`columns` are those of a history that is already there; a new one takes them from its first row."""
        self._path, self._columns = Path(directory, HISTORY), columns
        if self._path.exists() and not columns:
            raise UsageError(
                f"{self._path}: another run's history is here; continue that run with --resume, or choose another --out"
            )

    @classmethod
    def resume(
        cls, directory: str | os.PathLike[str], round: int, renewed: Mapping[str, bool] = MappingProxyType({})
    ) -> History:
        """The history up to and including the checkpointed `round`, to append to; later and torn rows are dropped.

        `renewed` are columns whose earlier values no longer hold: whether they go on, as empty cells, or not at all.
        """
        path = Path(directory, HISTORY)
        if not path.exists() or not (lines := _complete_lines(path)):
            path.unlink(missing_ok=True)
            return cls(directory)
        header, *rows = lines
        rounds = _column(path, *next(zip(*lines, strict=True)))
        kept = [row for row, index in zip(rows, rounds, strict=True) if index <= round]
        for name, goes_on in renewed.items():
            header, *kept = _renewed([header, *kept], name, goes_on)
        with aside(path) as temporary:
            temporary.write_text(_csv([header, *kept]), encoding="utf-8")
        return cls(directory, tuple(header))

    def append(self, row: Mapping[str, float | int | None]) -> None:
        """Adds one measured round; a column of `FIRST` or `LEDGER` that is absent or None becomes an empty cell."""
        lines = []
        if not self._columns:
            own = (name for name in row if name not in FIRST + LEDGER)
            self._columns = (*FIRST, *own, *LEDGER)
            lines.append(self._columns)
        assert "round" in row and set(self._columns) == {*row, *FIRST, *LEDGER}, (tuple(row), self._columns)
        lines.append(tuple(_cell(row.get(name)) for name in self._columns))
        with named_in_errors(self._path), open(self._path, "a", encoding="utf-8", newline="") as file:
            file.write(_csv(lines))

    def sync(self) -> None:
        """What was added is on the disk."""
        if self._path.exists():
            with named_in_errors(self._path), open(self._path, "r+b") as file:
                os.fsync(file.fileno())

    def last(self) -> dict[str, Any]:
        """The last measured round, by column; empty where there is none."""
        columns = read_history(self._path.parent) if self._columns else {}
        return {name: values[-1].item() for name, values in columns.items() if len(values)}

    def close(self) -> None:
        """Writes history.h5: every column as a dataset [measured rounds], NaN where a cell is empty."""
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
    return {column[0]: _column(path, *column) for column in zip(*_complete_lines(path), strict=True)}


def write_model(
    path: str | os.PathLike[str],
    arrays: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, int | str] = MappingProxyType({}),
) -> None:
    """Writes named arrays as the datasets of an HDF5 file, with attributes of its root, replacing it as a whole."""
    _write_arrays(Path(path), arrays, attributes)


def read_model(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The named arrays of a file that `write_model` wrote; DataError when it is missing or damaged."""
    try:
        with open_hdf5(path) as file:
            return {name: np.asarray(file[name][()]) for name in file}
    except OSError as error:
        raise _no_model(path, error) from error


def read_attributes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The attributes of a file that `write_model` wrote; DataError when it is missing or damaged."""
    try:
        with open_hdf5(path) as file:
            return dict(file.attrs)
    except OSError as error:
        raise _no_model(path, error) from error


def _no_model(path: str | os.PathLike[str], error: OSError) -> DataError:
    return DataError(f"{path}: no readable model ({error}); let the run reach its end, or resume it")


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


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Writes `value` as JSON, replacing the file as a whole; not-finite numbers raise ValueError, JSON has none."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    with aside(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: str | os.PathLike[str]) -> Any:
    """The table of a JSON file; DataError when it is missing, not JSON, or something else."""
    try:
        if isinstance(found := json.loads(regular(path).read_text(encoding="utf-8")), dict):
            return found
        raise ValueError("it holds no table")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}); is this the directory of a run?") from error


def dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The ("table.key", value) pairs of nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def summary(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """What `mpifed show RUN --json` prints: exactly the keys `SUMMARY`, None for what the run did not yield.

    A value stands in run.json, else in the last row of history.csv (a number that is not finite counts as absent);
    `constraint_values` lists the columns `constraint_*` in their order, `multipliers` the columns `multiplier_*`; the
    hash and the count of nonzero entries come from model.h5.
    """
    run, found = Path(run_dir), dict.fromkeys(SUMMARY)
    if (run / HISTORY).exists():
        found |= History(run, FIRST).last()
    told = read_json(run / "run.json")  # null where the last model, over all rows, has no such number
    found |= {name: value for name, value in told.items() if value is not None or name not in FIRST + LEDGER}
    found = {name: None if isinstance(one, float) and not math.isfinite(one) else one for name, one in found.items()}
    for name, prefix in (("constraint_values", "constraint_"), ("multipliers", "multiplier_")):
        numbered = [key for key in found if re.fullmatch(rf"{prefix}\d+", key)]
        found[name] = [found[key] for key in sorted(numbered, key=lambda key: int(key.removeprefix(prefix)))] or None
    if (run / "model.h5").exists():
        model = read_model(run / "model.h5")
        nonzeros = sum(int(np.count_nonzero(values)) for values in model.values())
        found |= {"model_sha256": model_sha256(model), "nonzeros": nonzeros}
    return {name: found[name] for name in SUMMARY}


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; left without an error, that file is synced and takes the place of `path`."""
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


def _complete_lines(path: Path) -> list[list[str]]:
    """The header and rows of a history, each as long as the header; text after the last line end is a torn row."""
    try:
        whole, _, _ = regular(path).read_bytes().rpartition(b"\n")
        lines = list(csv.reader(io.StringIO(whole.decode("utf-8"), newline="")))
    except OSError as error:
        raise DataError(
            f"{path}: no history here ({error.strerror}); name the directory of a run that measured a round"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise _not_a_history(path, str(error)) from error
    if lines and tuple(lines[0][: len(FIRST)]) != FIRST:
        raise _not_a_history(path, f"its first line begins with {lines[0][:4]}, expected {list(FIRST)}")
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(lines[0]):
            raise _not_a_history(path, f"line {number} has {len(line)} cells, the header {len(lines[0])}")
    return lines


def _renewed(lines: list[list[str]], name: str, goes_on: bool) -> list[list[str]]:
    """Header and rows without the column `name`, or with an empty one in the place of an algorithm's own."""
    header = lines[0]
    without = [[cell for cell, column in zip(line, header, strict=True) if column != name] for line in lines]
    if not goes_on:
        return without
    end = without[0].index(LEDGER[0])
    return [[*line[:end], name if line is without[0] else "", *line[end:]] for line in without]


def _not_a_history(path: Path, why: str) -> DataError:
    return DataError(f"{path}: not the history of a run: {why}; restore the file, or resume from the checkpoint")


def _column(path: Path, name: str, *cells: str) -> NDArray[Any]:
    try:
        return np.array([int(cell) for cell in cells], dtype=np.int64)
    except ValueError:
        pass  # an empty cell, or a float
    try:
        return np.array([float(cell or "nan") for cell in cells], dtype=np.float64)
    except ValueError as error:
        raise _not_a_history(path, f"column {name}: {error}") from error


def _cell(value: float | int | None) -> str:
    """The shortest text that reads back as the same number; numpy's scalars are written like Python's."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))


def _csv(lines: Iterable[Iterable[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
