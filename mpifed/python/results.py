"""What runs and sweeps have left: their histories, models and summaries, in tables and in figures."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

import numpy as np

from mpifed.batch.states import status_of
from mpifed.core.errors import DataError, MpifedError, UsageError
from mpifed.core.record import Array, map_leaves
from mpifed.core.tables import Table
from mpifed.data.applied import APPLIED, Applied, applied, read_applied
from mpifed.data.places import Places
from mpifed.data.recipe import Encoding, Recipe
from mpifed.data.samples import Values, check_layout, in_kind, labels_of, rows_of
from mpifed.data.store import MEMORY, open_federation
from mpifed.data.table import as_table
from mpifed.files.clients import CLIENTS, read_clients
from mpifed.files.history import read_history
from mpifed.files.history_csv import HISTORY
from mpifed.files.model_file import MODEL, model_arrays, read_model
from mpifed.files.run_folder import JOB, RUN, SUMMARY, summary
from mpifed.files.write import replace_text, sha256
from mpifed.job.job import Job
from mpifed.job.sweep import SweepPoint
from mpifed.maths.metrics import r2
from mpifed.maths.objectives import Objective
from mpifed.maths.parameters import Head, Parameters
from mpifed.privacy.ledger_file import spent
from mpifed.python import describe
from mpifed.python.ranks import spoken
from mpifed.python.values import check_index, is_frame
from mpifed.results.run_warnings import run_warnings
from mpifed.run.identity import check_same_data
from mpifed.run.sweep import PointEnd
from mpifed.text import counted, listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from mpifed.plots.curves import Band
    from mpifed.plots.style import SizeName
    from mpifed.results.compare import Comparison

Drawn: TypeAlias = Union[str, "PathLike[str]"]  # a run or a sweep, or its folder


@spoken()
def compare(
    *results: Drawn | Sequence[Drawn],
    by: str | Sequence[str] = (),
    against: str | None = None,
    to: str | Sequence[str] = (),
) -> Comparison:
    """What `mpifed compare` says of sweeps and runs: means over seeds, paired differences, what targets take.

    The folders are read, on every rank that calls it. Runs that differ in their seed alone are one row, named by what
    sets it apart; in place of a mean of epsilons stands the largest.

    Parameters
    ----------
    results
        Sweeps, runs, or their folders.
    by
        Columns to compare in pairs over equal seeds; by default the test accuracy, or else the objective, where at
        least two rows share three seeds.
    against
        The row to compare the others with, or the folder of one of its runs; by default the best.
    to
        Targets, as "test_accuracy>=0.95" or "train_loss<=0.1".

    Returns
    -------
    Comparison
        Printed, the tables; `frame`, their numbers, a row for each label and column; `runs`, a row for each run.

    Raises
    ------
    UsageError
        when there is no such column, label or target, or objectives that differ are to be compared.
    """
    from mpifed.results.compare import compare as compared

    columns, targets = ([text] if isinstance(text, str) else list(text) for text in (by, to))
    return compared(*_folders("compare", results), by=columns, against=against, to=targets)


@spoken()
def plot(
    what: Drawn | Sequence[Drawn] | Mapping[str, Drawn | Sequence[Drawn]],
    y: str | Sequence[str] | None = None,
    x: str | Sequence[str] = "round",
    *,
    band: Band = "range",
    size: SizeName = "screen",
    relative_to: float | None = None,
) -> Figure:
    """Columns of histories against others, in a panel for each pair; runs that differ in their seed are one line.

    Parameters
    ----------
    what
        Runs, sweeps, or their folders: one or several. Lines are labelled by what sets them apart. A dict gives labels:
        all runs of an entry are one line, their mean.
    y
        Columns of the history, or "bytes", those of both directions; from top to bottom. By default losses, accuracy
        and certificates, where measured.
    x
        Columns for horizontal axes, such as "round", "elapsed_s", "bytes" or "epsilon"; from left to right.
    band
        Around the mean of several runs: "range", from the least to the largest, standard "deviation", the 95 %
        "interval" of the mean (Student's), or "none".
    size
        "screen", "column" (3.4 inches wide, text of 8 points) or "page" (7 inches).
    relative_to
        The least objective P*, positive: then (P - P*) / P* is drawn in the place of the loss, where it is positive.

    Returns
    -------
    matplotlib.figure.Figure
        To change, to save, and to be the value of a notebook's cell. pyplot knows nothing of it, so there is nothing
        to close.

    Raises
    ------
    UsageError
        No run has such a column, or there are more than 30 lines.
    DataError
        A folder is no run or sweep, or nothing was measured.
    """
    from mpifed.plots.curves import figure

    entries = what if isinstance(what, Mapping) else {"": what}
    lines = {str(label): _folders("plot", members) for label, members in (entries or {"": ()}).items()}
    folders = [] if isinstance(what, Mapping) else lines.pop("")
    return figure(folders, joined=lines, x=x, y=y, band=band, size=size, relative_to=relative_to)


def _folders(call: str, results: object) -> list[Path]:
    if isinstance(results, (str, PathLike)):
        return [Path(results)]
    if not isinstance(results, (list, tuple)):
        raise UsageError(f"{call}: a {type(results).__name__}; expected a run or a sweep, or the folder of one")
    if not results:
        raise UsageError(f"{call}: no run; give runs or sweeps, or their folders")
    return [folder for each in results for folder in _folders(call, each)]


@spoken()
def load(folder: str | Path) -> Run:
    """A run that is in a folder, finished or not. On every rank that calls it."""
    return read_run(Path(folder))


@dataclass(frozen=True)
class Run:
    """What a run has left: its history and its model are read from its folder when they are first asked for.

    DataError then where another run has taken that folder meanwhile.

    Attributes
    ----------
    path : its folder
    summary : what `mpifed show RUN --json` says, such as `train_loss`, `test_accuracy`, `epsilon` and `model_sha256`
    warnings : that it has diverged, ended worse than a model it has measured, or has an unsafe `sigma`; or empty
    """

    path: Path
    summary: Table
    warnings: tuple[str, ...] = ()
    _digest: str | None = field(default=None, compare=False)  # SHA-256 of run.json of a run that has ended

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        shown = [f"{key}={self.summary[key]:.6g}" for key in ("rounds", "train_loss", "test_accuracy")
                 if self.summary[key] is not None]  # fmt: skip
        return f"Run({', '.join([repr(str(self.path)), *shown, *(f'warning: {text}' for text in self.warnings)])})"

    @property
    def exit(self) -> int | None:
        """The exit code; None of a run that has not ended, or was killed."""
        code: int | None = self.summary["exit"]
        return code

    @cached_property
    @spoken()
    def columns(self) -> dict[str, Array]:
        """The columns of its history, by name, [measured rounds]; nan where nothing was measured."""
        if not self._has(HISTORY):
            return {}
        return dict(read_history(self.path))

    @property
    def history(self) -> DataFrame:
        """A row for each measured round."""
        return frame(self.columns)

    @property
    def clients(self) -> DataFrame:
        """The clients' scores on their own test rows, when last measured: client, rows, quality, loss, name."""
        self._has(CLIENTS)
        return frame(read_clients(self.path))

    @cached_property
    def job(self) -> WrittenJob:
        """The job, as it was run."""
        self._has(JOB)
        return WrittenJob(Job.read(self.path / JOB))

    @cached_property
    @spoken()
    def model(self) -> dict[str, Array]:
        """The parameters of the last model, by name."""
        if not self._has(MODEL):
            return {}
        return dict(read_model(self.path / MODEL))

    def _has(self, file: str) -> bool:
        """Whether its folder has a file; DataError where it is another run's, or this rank does not see the folder."""
        if self.summary["rounds"] is not None and not self.path.is_dir():
            raise DataError(
                f"{self.path}: no such folder: it was removed, or this rank does not see it; give the run an out that "
                "stays, and that all ranks see"
            )
        if self._digest not in (None, *map(sha256, self.path.glob(RUN))):
            raise DataError(
                f"{self.path}: a run has written here since this one was read; mpifed.load reads it as it is now, and "
                "another out would have kept both"
            )
        return (self.path / file).exists()

    @spoken()
    def predict(self, X: Values) -> Array:
        """The labels [s] of samples X [s, ...], [s, L] of several each, or the values of real targets.

        A frame has the columns of `data.names()`, in any order; an array has as many, in that order. Raw values are
        scaled as the training rows were.
        """
        objective, head, scores, data = self._scored(X, "predict")
        found: Array = objective.predict(head, scores)[0]
        return _labelled(found, data.labels, data.named) if objective.classifies and data.labels else found

    @spoken()
    def predict_proba(self, X: Values) -> Array:
        """Probabilities [s, classes] in float64, or [s, L] of several labels being 1, in their order.

        Classes ascend, integers by value and texts as they sort, unless they were stated in another order. X is as for
        `predict`. Outputs of a network count as logits, whatever its own loss is.
        """
        objective, head, scores, _ = self._scored(X, "predict_proba")
        found = objective.sample_loss.probabilities(objective.class_scores(head, scores)[0].astype(np.float64))
        if found is None:
            raise UsageError(
                f"predict_proba: {type(objective).__name__} has no probabilities; softmax, logistic, multilabel "
                "and networks with a cross-entropy have some"
            )
        return found

    @spoken()
    def score(self, X: Values, y: Values) -> float:
        """As scikit-learn's: the share of rows that are predicted right, of several labels all of them, or R2.

        X is as for `predict`, and y [s] or [s, t] as it was given to train with.
        """
        check_index("score: X and y", X, y)
        found, data = self.predict(X), self._applied
        labels = labels_of(_labels(y, data.columns), Places({"score: y": 0}))
        labels = in_kind(labels, found.dtype.kind)
        if (labels.dtype.kind, labels.shape) != (found.dtype.kind, found.shape):
            came, predicted = (f"{values.dtype} {list(values.shape)}" for values in (labels, found))
            raise UsageError(f"score: y is {came}, and predictions are {predicted}; give labels as in training")
        if labels.dtype.kind == "f":
            found, labels = (values.reshape(len(values), -1) for values in (found, labels))
            return r2(((found - labels) ** 2).sum(axis=0), labels)
        return float((labels == found).reshape(len(found), -1).all(axis=1).mean())

    @cached_property
    def _applied(self) -> Applied:
        """How samples become inputs; of a private run the data say it, since its folder says nothing of them."""
        if self.job.job.privacy is None and self._has(APPLIED):
            return read_applied(self.path / APPLIED)
        data = open_federation(self.job.job.data.path)
        check_same_data(self.path, data)
        return applied(data)

    def _scored(self, X: Values, what: str) -> tuple[Objective, Head, Array, Applied]:
        """(the model, its head, [1, s, h] the scores of samples, how these became inputs)."""
        if not self.model:
            read_model(self.path / MODEL)  # says why there is none
        data, dtype = self._applied, self.job.job.compute.dtype
        rows = data.inputs(_rows(X, data, f"{what}: X"), dtype)
        objective = self.job.job.make_objective().of_shape(data.shape)
        like: Parameters = objective.start(data.features, data.classes or data.targets, np.random.default_rng(0), dtype)
        ordered = iter([self.model[name] for name in model_arrays(like)])
        parameters = map_leaves(lambda _: next(ordered), like)
        return objective, parameters.head, objective.scores_of(parameters, rows[None]), data

    plot = plot  # of which `what` is this


@dataclass(frozen=True)
class Sweep:
    """What the runs of a sweep have left.

    Attributes
    ----------
    path : its folder
    runs : by label, one for each seed, those that failed included; `exit` is the exit code of each
    seeds : of the runs of a label, in order
    failed : the messages of the runs that failed, by label and seed
    """

    path: Path
    runs: dict[str, list[Run]]
    seeds: tuple[int, ...]
    failed: dict[tuple[str, int], str] = field(default_factory=dict)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        warned = [f"; {label}, seed {seed}: {text}" for label, seed, run in self._each() for text in run.warnings]
        failed = f"; {counted(len(self.failed), 'run')} failed" if self.failed else ""
        labels, seeds = ", ".join(self.runs), counted(len(self.seeds), "seed")
        return f"Sweep({str(self.path)!r}: {labels}; {seeds}{failed}{''.join(warned)})"

    def __str__(self) -> str:
        return "\n".join(
            [str(compare(self)), *(f"{label}, seed {seed}: {why}" for (label, seed), why in self.failed.items())]
        )

    @property
    def history(self) -> DataFrame:
        """The rows of all histories, with columns `label` and `seed`; needs pandas."""
        from pandas import concat

        each = [run.history.assign(label=label, seed=seed) for label, seed, run in self._each() if run.columns]
        return concat(each, ignore_index=True)

    @property
    def summary(self) -> DataFrame:
        """A row for each run: label, seed, what `Run.summary` has, and `warnings`, a text; needs pandas."""
        return frame(
            [
                {"label": label, "seed": seed, **run.summary, "warnings": "; ".join(run.warnings)}
                for label, seed, run in self._each()
            ]
        )

    plot = plot  # of which `what` is this

    def _each(self) -> list[tuple[str, int, Run]]:
        return [(label, seed, run) for label, runs in self.runs.items()
                for seed, run in zip(self.seeds, runs, strict=True)]  # fmt: skip


@dataclass(frozen=True)
class Submitted:
    """A job that Slurm has.

    Attributes
    ----------
    path : the folder of its run, or of its sweep
    """

    path: Path

    @spoken()
    def result(self, every_s: float = 10.0) -> Run | list[Run]:
        """Wait until it is neither queued nor running; its run, or those of a sweep in order.

        Parameters
        ----------
        every_s
            Seconds between two looks.

        Raises
        ------
        MpifedError
            A run has failed, or was ended before its last round.
        """
        while (status := status_of(self.path)).of("queued", "running") or not status.answered:
            time.sleep(every_s)
        for point in status.points:
            if point.state != "done":
                raise MpifedError(f"{self.path}: {point.point} is {point.state}: {point.why}; next: `{status.next}`")
        runs = [read_run(self.path / point.point if status.sweep else self.path) for point in status.points]
        return runs if status.sweep else runs[0]


@dataclass(frozen=True)
class WrittenJob:
    """A job that can be written to a file."""

    job: Job

    def __str__(self) -> str:
        return self.job.text()

    def to_toml(self, path: str | Path) -> Path:
        """Write the job for `mpifed run`; UsageError where it names what only this process knows."""
        table = self.job.table()
        if unknown := describe.of_this_process(table):
            raise UsageError(
                f"to_toml: {', '.join(unknown)}: cannot be imported by another process; "
                'define it at the top of a module, say mine.py, and import it from there: a job names it "mine:NAME"'
            )
        if table["data"]["path"].startswith(MEMORY):
            raise UsageError("to_toml: the data are in the memory of this process; write them to a folder, by `out`")
        replace_text(Path(path), self.job.text())
        return Path(path)


def frame(columns: Mapping[str, object] | Sequence[Mapping[str, object]]) -> DataFrame:
    """A pandas DataFrame, where one is asked for: importing pandas takes long."""
    from pandas import DataFrame

    return DataFrame(columns)


def _rows(X: Values, data: Applied, what: str) -> Array:
    """[s, p] raw rows of samples: of a frame by the names of its columns, of an array by position."""
    if is_frame(X):
        names = [Encoding(name=name) for name in data.names or ()]
        if not names:
            raise UsageError(
                f"{what}: a frame, and the data have no names of columns; give an array, as of .to_numpy()"
            )
        rows, shape = Recipe(data.recipe or tuple(names)).rows(as_table(X, what), what), None
    else:
        found, shape = rows_of(X, what)
        rows = found if isinstance(found, np.ndarray) else found.toarray()
    check_layout(what, shape, data.shape or (data.features,))
    if rows.shape[1] != data.features:
        raise UsageError(f"{what}: samples of {rows.shape[1]} numbers; the model was trained with {data.features}")
    if data.are_bytes != (rows.dtype == np.uint8):
        came = "are" if data.are_bytes else "are no"
        raise UsageError(f"{what}: {rows.dtype}, and the data {came} bytes, 0 to 255; give samples as in training")
    return rows


def _labels(y: Values, names: Sequence[str]) -> Values:
    """The labels of a frame, by the names that their columns had in training; what is no frame as it is."""
    if not is_frame(y):
        return y
    own = list(map(str, y.column_names if hasattr(y, "column_names") else y.columns))
    if not (own[1:] or names[1:]):
        return y
    if not names or any(own.count(name) != 1 for name in names):
        raise DataError(f"score: y: a frame with the columns {listed(own)}; expected the labels {listed(names)}, once")
    return np.asarray(y)[:, [own.index(name) for name in names]]


def _labelled(found: Array, meaning: Sequence[str], named: bool) -> Array:
    """Class numbers as the labels they stand for: integers where all are, unless they were `named` by texts."""
    labels = np.array(list(meaning))
    if not named:
        with contextlib.suppress(ValueError):
            labels = labels.astype(int)
    return labels[found]


def read_run(folder: Path) -> Run:
    """The run in a folder."""
    if (folder / "sweep.csv").exists():
        raise UsageError(
            f"{folder}: holds a sweep; the same mpifed.sweep(..., out={str(folder)!r}, resume=True) gives it back "
            "without running anything again, and load reads one run of it, by the name of its folder"
        )
    if not (folder / JOB).exists() or not (folder / RUN).exists():
        there = "no run here" if folder.is_dir() else "no such folder"
        raise DataError(f"{folder}: {there}; give the folder that a run has written, its out")
    warnings = tuple(str(warning) for warning in run_warnings(folder))
    results = summary(folder, spent(folder))
    return Run(folder, results, warnings, None if results["exit"] is None else sha256(folder / RUN))


def read_sweep(folder: Path, points: Sequence[SweepPoint], ends: Mapping[str, PointEnd]) -> Sweep:
    """What the runs of a sweep have left, whose points have just ended."""
    runs: dict[str, list[Run]] = {}
    failed: dict[tuple[str, int], str] = {}
    for point in points:
        label, end = str(point.settings["label"]), ends[point.name]
        early = Run(folder / point.name, {**dict.fromkeys(SUMMARY), "exit": end.code if end.error else None})
        runs.setdefault(label, []).append(read_run(early.path) if (early.path / RUN).exists() else early)
        if end.error is not None:
            failed[label, point.job.seed] = str(end.error)
    return Sweep(folder, runs, tuple(dict.fromkeys(point.job.seed for point in points)), failed)
