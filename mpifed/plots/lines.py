"""The lines of a figure: runs that differ in nothing but their seed, or that the user has joined, and their means."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.tables import Table
from mpifed.core.text import leads_to
from mpifed.files.history import read_history
from mpifed.files.history_csv import HISTORY
from mpifed.files.run_folder import JOB, job_of, read_run
from mpifed.job.reading import dotted
from mpifed.job.schema import free_in, is_free
from mpifed.plots.labels import LABEL, labels_of
from mpifed.plots.style import Floats
from mpifed.results.points import is_sweep, point_settings

Folder = str | os.PathLike[str]
Band = Literal["range", "deviation", "interval", "none"]
BANDS = {
    "range": " and range", "deviation": " and standard deviation", "interval": " and 95 % interval of the mean",
    "none": "",
}  # fmt: skip


class PlottedRun(NamedTuple):
    """What a figure needs of one run."""

    folder: Path
    settings: Table  # by dotted key, without those that change nothing; `label` where its method in a sweep has one
    seed: object
    # by column, [measured rounds]; `bytes` is up + down, `excess` max(F_m - limit_m), `relative` the objective's
    history: dict[str, Floats]


class Line(NamedTuple):
    """Runs that are drawn as one line."""

    label: str
    runs: list[PlottedRun]

    @property
    def seeds(self) -> bool:
        """Whether its runs differ in their seed alone."""
        alike = all(run.settings == self.runs[0].settings for run in self.runs)
        return alike and len({str(run.seed) for run in self.runs}) == len(self.runs)


class Curve(NamedTuple):
    """A line in a panel; `low` and `high` bound its band."""

    x: Floats  # [points]
    y: Floats  # [points]
    low: Floats  # [points]
    high: Floats  # [points]


class PlottedLines(NamedTuple):
    """All lines of a figure, and what its reader should know of them."""

    lines: list[Line]
    notes: list[str]

    def columns(self) -> list[str]:
        """The columns of which at least one run has a number."""
        runs = [run for line in self.lines for run in line.runs]
        return sorted({name for run in runs for name, values in run.history.items() if np.isfinite(values).any()})


def read_lines(
    folders: Sequence[Folder], joined: Mapping[str, Sequence[Folder]] | None = None, optimum: float | None = None
) -> PlottedLines:
    """The lines that folders of runs and sweeps make.

    Parameters
    ----------
    folders
        Runs, and sweeps, which count as their runs. Those that differ in nothing but their seed are one line, labelled
        by what sets it apart from the others.
    joined
        Folders that are one line each, by its label, whether or not they are among `folders`.
    optimum
        The least objective, positive: then runs have a column `relative`.

    Raises
    ------
    DataError
        A folder has no run, or its files are damaged, or it has not measured anything.
    """
    notes: list[str] = []
    lines = [Line(label, _runs(members, optimum, notes)) for label, members in (joined or {}).items()]
    drawn = {run.folder.resolve() for line in lines for run in line.runs}
    groups: dict[str, list[PlottedRun]] = {}
    for run in _runs(folders, optimum, notes):
        if run.folder.resolve() not in drawn:
            drawn.add(run.folder.resolve())
            groups.setdefault(json.dumps(run.settings, sort_keys=True, default=str), []).append(run)
    labels = labels_of([runs[0].settings for runs in groups.values()])
    lines += [Line(label, runs) for label, runs in zip(labels, groups.values(), strict=True)]
    return PlottedLines(lines, [*dict.fromkeys(notes), *_ended_early(lines)])


def _runs(folders: Sequence[Folder], optimum: float | None, notes: list[str]) -> list[PlottedRun]:
    """The runs of folders; points of sweeps that have not measured anything are named in `notes`."""
    runs = []
    for folder in map(Path, folders):
        if not is_sweep(folder):
            runs.append(_read(folder, {}, optimum))
            continue
        unmeasured, before = [], len(runs)
        for name, settings in point_settings(folder):
            if (folder / name / JOB).exists() and (folder / name / HISTORY).exists() and read_history(folder / name):
                label = {LABEL: settings[LABEL]} if LABEL in settings else {}
                runs.append(_read(folder / name, label, optimum))
            else:
                unmeasured.append(name)
        if len(runs) == before:
            raise DataError(f"{folder}: no run of this sweep has measured anything yet; run it, or go on with --resume")
        if unmeasured:
            listed = ", ".join(unmeasured[:5]) + (f" and {len(unmeasured) - 5} more" if len(unmeasured) > 5 else "")
            notes.append(f"{folder}: left out, since nothing was measured yet: {listed}")
    return runs


def _read(folder: Path, label: Table, optimum: float | None) -> PlottedRun:
    job = job_of(folder)
    if not job:
        there = f"no run, sweep or data here (no {JOB})" if folder.is_dir() else f"no such folder{leads_to(folder)}"
        raise DataError(f"{folder}: {there}; give a folder that `mpifed run` or `mpifed data` has written")
    history = {name: values.astype(np.float64) for name, values in read_history(folder).items()}
    if not history:
        raise DataError(f"{folder / HISTORY}: the run ended before its first measured round; resume it")
    history["bytes"] = history["up_bytes"] + history["down_bytes"]
    if optimum is not None:
        if "objective" not in history:
            raise DataError(f"{folder / HISTORY}: no column objective; draw it without --relative-to")
        above = (history["objective"] - optimum) / optimum
        history["relative"] = np.where(above > 0, above, np.nan)
    constraints = {str(m): constraint for m, constraint in enumerate(job.get("constraint", []), 1)}
    if constraints:
        lacking = [f"constraint_{m}" for m in constraints if f"constraint_{m}" not in history]
        if lacking:
            raise DataError(f"{folder / HISTORY}: no column {lacking[0]}, of which job.toml has the limit")
        excess = [history[f"constraint_{m}"] - float(constraint["limit"]) for m, constraint in constraints.items()]
        history["excess"] = np.max(excess, axis=0)
        job["constraint"] = constraints
    about = read_run(folder)
    free = free_in(job)
    settings = {key: value for key, value in dotted(job) if key != "seed" and not is_free(key, free)}
    settings["name"] = about.get("name", folder.name)  # which the user has given to tell runs apart
    settings["data_sha256"] = (about.get("data_sha256") or "")[:12] or job.get("data", {}).get("path")
    return PlottedRun(folder, {**label, **settings}, job.get("seed"), history)


def _ended_early(lines: Sequence[Line]) -> Iterator[str]:
    """What to say of lines that end where the shortest of their runs does."""
    for label, runs in lines:
        last = [run.history["round"].max(initial=0) for run in runs]
        if (common := common_rounds(runs)).max(initial=0) < max(last):
            where = f"round {common.max():g}, the last" if len(common) else "no round, since none is one"
            yield f"{label}: drawn up to {where} that all {len(runs)} runs have measured"


def common_rounds(runs: Sequence[PlottedRun]) -> Floats:
    """The rounds that all runs have measured, ascending."""
    return functools.reduce(np.intersect1d, [run.history["round"] for run in runs])


def curve(runs: Sequence[PlottedRun], x: str, y: str, band: Band = "range") -> Curve:
    """The mean and band of column `y` at the rounds that all runs have measured, against the mean of column `x`.

    Rounds in which a run has no finite number are left out. The band is from the least to the largest value, or the
    standard deviation or Student's 95 % interval about the mean; of a single run, and with "none", it is the line.
    """
    if band not in BANDS:
        raise UsageError(f"band = {band!r:.40}: expected one of {', '.join(BANDS)}")
    if not all({x, y} <= run.history.keys() for run in runs):
        return Curve(*np.empty((4, 0)))
    at = [np.isin(run.history["round"], common_rounds(runs)) for run in runs]
    xs, ys = (np.stack([run.history[name][here] for run, here in zip(runs, at, strict=True)]) for name in (x, y))
    finite = np.isfinite(xs).all(axis=0) & np.isfinite(ys).all(axis=0)
    xs, ys = xs[:, finite], ys[:, finite]
    middle, spread = ys.mean(axis=0), np.zeros(ys.shape[1])
    if band in ("deviation", "interval") and len(ys) > 1:
        spread = ys.std(axis=0, ddof=1) * (1.0 if band == "deviation" else _student(len(ys)))
    low, high = (ys.min(axis=0), ys.max(axis=0)) if band == "range" else (middle - spread, middle + spread)
    return Curve(xs.mean(axis=0), middle, low, high)


def _student(count: int) -> float:
    """Half the width of the 95 % interval of a mean, in standard deviations of `count` values."""
    from scipy.stats import t

    return float(t.ppf(0.975, count - 1) / np.sqrt(count))


def band_text(lines: Sequence[Line], band: Band) -> str:
    """What lines and bands are, as "mean and range of 5 seeds"; empty where every line is a single run."""
    counts = sorted({len(line.runs) for line in lines})
    if counts[-1] == 1:
        return ""
    what = "seeds" if all(line.seeds for line in lines) else "runs"
    return f"mean{BANDS[band]} of {counts[0] if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'} {what}"
