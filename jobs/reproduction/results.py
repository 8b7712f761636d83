"""What runs have measured, over their seeds, and the file of such curves."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.files.ends import FINISHED
from mpifed.files.history import read_history
from mpifed.files.json_file import read_json
from mpifed.files.run_folder import job_of
from mpifed.files.write import replace_text

Floats = NDArray[np.float64]
Rounds = NDArray[np.int64]


class Runs(NamedTuple):
    """Those that differ in their seed alone."""

    job: dict[str, Any]  # of the first
    folders: Sequence[Path]
    rounds: Rounds  # [T] that all of them have measured
    columns: Mapping[str, Floats]  # [seeds, T], NaN where a run has no such column


def read_runs(run_dirs: Sequence[Path], rounds: int, names: Sequence[str]) -> Runs | None:
    """Some columns of the runs that have come to round `rounds`; None without any."""
    folders = [run for run in run_dirs if ended(run, rounds)]
    if not folders:
        return None
    found = [read_history(run) for run in folders]
    common = found[0]["round"]
    for history in found:
        common = np.intersect1d(common, history["round"])
    common = common[common <= rounds]

    def column(history: Mapping[str, Any], name: str) -> Floats:
        values = history.get(name)
        return np.full(len(common), np.nan) if values is None else values[np.isin(history["round"], common)]

    columns = {name: np.stack([column(history, name) for history in found]) for name in names}
    return Runs(job_of(folders[0]), folders, common, columns)


def ended(run: Path, rounds: int, other_ends: Collection[int] = ()) -> bool:
    """Whether a run has come to round `rounds`, or ended with one of some other exit codes."""
    if not (run / "run.json").exists():
        return False
    found = read_json(run / "run.json")
    return found["exit"] in other_ends or (found["exit"] in FINISHED and found["rounds"] >= rounds)


def write_curves(path: Path, curves: Mapping[str, tuple[Rounds, Mapping[str, Floats]]]) -> Path:
    """A line of CSV for each curve, seed and measured round.

    Parameters
    ----------
    curves : by name the rounds [T] and columns [seeds, T], the same ones for all curves; NaN is an empty cell
    """
    names = next((list(columns) for _, columns in curves.values()), [])

    def lines() -> Iterator[Sequence[object]]:
        for name, (rounds, columns) in curves.items():
            for seed, values in enumerate(np.stack(list(columns.values()), axis=-1)):  # [T, columns]
                for at, numbers in zip(rounds.tolist(), values.tolist(), strict=True):
                    yield name, seed, at, *("" if np.isnan(number) else f"{number:.6g}" for number in numbers)

    return write_table(path, ("curve", "seed", "round", *names), lines())


def write_table(path: Path, header: Sequence[str], lines: Iterable[Sequence[object]]) -> Path:
    """Write a CSV file in the place of an earlier one; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((header, *lines))
    replace_text(path, text.getvalue())
    return path
