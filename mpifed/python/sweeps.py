"""`sweep`: methods compared over equal seeds, and what their runs have left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifed.comm.transport import connect
from mpifed.core.algorithm import Algorithm
from mpifed.core.errors import Interrupted, UsageError
from mpifed.core.record import Array
from mpifed.job.sweep import SweepPoint, points
from mpifed.maths.objectives import Objective
from mpifed.python import describe
from mpifed.python.arrays import FederatedDataset
from mpifed.python.ranks import alike
from mpifed.python.results import Run, frame, read_run
from mpifed.python.runs import Progress, job, run_folder, train
from mpifed.python.values import integer
from mpifed.results.points import write_sweep
from mpifed.run.data_cache import DataCache
from mpifed.run.overwrite import remove

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def sweep(
    methods: Mapping[str, Algorithm | Mapping[str, object]],
    data: FederatedDataset | str | Path,
    model: Objective | Mapping[str, object],
    *,
    rounds: int,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress = "none",
    **settings: Any,  # those of `job`
) -> Sweep:
    """Train each method with each seed, on the same data. Collective under MPI.

    Parameters
    ----------
    methods
        Algorithms by the label that tables and figures give them.
    seeds
        How many, from `seed` on, or which.
    out
        The folder, which `mpifed compare` and `mpifed plot` read too; by default a temporary one.
    overwrite
        Remove a sweep that is in `out`.
    resume
        Go on with the same sweep in `out`: runs that have ended are read, not run again.
    settings
        As `job` takes them, the same for all.
    """
    transport = connect()

    def described() -> list[SweepPoint]:
        if not isinstance(methods, Mapping) or not methods:
            came = "no method" if isinstance(methods, Mapping) else f"methods: a {type(methods).__name__}"
            raise UsageError(f"sweep: {came}; give algorithms by label, as {{'FedAvg': mpifed.FedAvg(...)}}")
        if resume and (out is None or overwrite):
            wrong = "without out: name the folder of the sweep" if out is None else "with overwrite: give one of them"
            raise UsageError(f"sweep: resume=True {wrong}")
        first = integer(settings.get("seed", 1), "seed")
        chosen = _seeds(seeds, first)
        tables = [describe.method(one) for one in methods.values()]
        base = job(next(iter(methods.values())), data, model, **{"name": "sweep", **settings, "rounds": rounds})
        labelled = [{"label": str(label), **table} for label, table in zip(methods, tables, strict=True)]
        return points({**base, "seed": first, "sweep": {"methods": labelled, "seed": chosen}}, "sweep")

    all_points = alike(transport, described)
    folder = run_folder(transport, out, "mpifed-sweep-")
    alike(transport, lambda: None if transport.rank else _prepare(folder, all_points, overwrite, resume))
    cache = DataCache()
    for point in all_points:
        try:
            train(transport, point.job, folder / point.name, progress=progress, cache=cache, resume=resume)
        except Interrupted as error:
            remedy = f"resume=True, out={str(folder)!r}" if out is not None else "out=..., to keep what is done"
            raise Interrupted(
                f"sweep: interrupted in {point.name} of {len(all_points)} runs; again with {remedy}"
            ) from error
    alike(transport, lambda: None if transport.rank else write_sweep(folder, all_points))
    found: Sweep = transport.share(_of(folder, all_points) if transport.rank == 0 else None)
    return found


def _seeds(seeds: object, first: int) -> list[int]:
    """The seeds: so many from the first on, or those that are given."""
    given: list[int] = []
    if isinstance(seeds, Iterable) and not isinstance(seeds, str):
        given = [integer(seed, "seeds") for seed in seeds]
    elif (count := integer(seeds, "seeds")) > 0:
        given = list(range(first, first + count))
    if not given or len(set(given)) < len(given):
        raise UsageError(f"seeds = {seeds!r}: expected how many, 1 or more, or a list of different ones")
    return given


@dataclass(frozen=True)
class Sweep:
    """What the runs of a sweep have left.

    Attributes
    ----------
    path : its folder
    runs : by label, one for each seed
    seeds : of the runs of a label, in order
    """

    path: Path
    runs: dict[str, list[Run]]
    seeds: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Sweep({str(self.path)!r}: {', '.join(self.runs)}; {len(self.seeds)} seeds)"

    @property
    def history(self) -> DataFrame:
        """The rows of all histories, with columns `label` and `seed`; needs pandas."""
        histories = [(label, seed, run.columns) for label, seed, run in self._each()]
        names = list(dict.fromkeys(name for *_, columns in histories for name in columns))
        together: dict[str, Any] = {  # columns of numbers and of texts
            "label": np.repeat([label for label, *_ in histories], [_rows(columns) for *_, columns in histories]),
            "seed": np.repeat([seed for _, seed, _ in histories], [_rows(columns) for *_, columns in histories]),
        }
        for name in names:
            parts = [columns.get(name, np.full(_rows(columns), np.nan)) for *_, columns in histories]
            together[name] = np.concatenate(parts)
        return frame(together)

    @property
    def summary(self) -> DataFrame:
        """A row for each run: label, seed, and what `Run.summary` has; needs pandas."""
        rows = [{"label": label, "seed": seed, **run.summary} for label, seed, run in self._each()]
        return frame({name: [row[name] for row in rows] for name in rows[0]})

    def plot(self, y: str = "test_accuracy", x: str = "round", band: str = "range") -> Figure:
        """The mean over seeds of a column of the histories against another, a line for each label.

        Parameters
        ----------
        y, x
            Columns of the history; x may be "bytes", sent up and down.
        band
            Around each line: "range" from the least to the largest, "deviation", the standard one, or "none".

        Returns
        -------
        matplotlib.figure.Figure
        """
        from mpifed.plots import compared

        return compared({label: [run.columns for run in runs] for label, runs in self.runs.items()}, x, y, band)

    def _each(self) -> list[tuple[str, int, Run]]:
        return [(label, seed, run) for label, runs in self.runs.items()
                for seed, run in zip(self.seeds, runs, strict=True)]  # fmt: skip


def _rows(columns: Mapping[str, Array]) -> int:
    return len(next(iter(columns.values()), ()))


def _prepare(folder: Path, all_points: list[SweepPoint], overwrite: bool, resume: bool) -> None:
    """Make the folder of a sweep; that of another sweep or run is not changed."""
    if overwrite:
        remove(folder)
    others = [name for name in ("sweep.csv", "job.toml") if (folder / name).exists()]
    if others and not resume:
        raise UsageError(
            f"{folder}: holds a {'sweep' if others[0] == 'sweep.csv' else 'run'} already; give another out, continue a "
            "sweep with resume=True, or replace it with overwrite=True"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "sweep.csv").exists():  # that of a resumed sweep stays until its runs have ended
        write_sweep(folder, all_points)


def _of(folder: Path, all_points: list[SweepPoint]) -> Sweep:
    runs: dict[str, list[Run]] = {}
    seeds: dict[str, list[int]] = {}
    for point in all_points:
        label = str(point.settings["label"])
        runs.setdefault(label, []).append(read_run(folder / point.name))
        seeds.setdefault(label, []).append(point.job.seed)
    return Sweep(folder, runs, tuple(next(iter(seeds.values()))))
