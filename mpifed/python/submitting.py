"""`submit`: a job for Slurm, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpifed.algorithms.algorithm import Algorithm
from mpifed.batch.states import status_of
from mpifed.batch.submit import SubmitRequest
from mpifed.batch.submit import submit as submitted
from mpifed.core.errors import MpifedError, UsageError
from mpifed.maths.objectives import Objective
from mpifed.python.arrays import FederatedDataset
from mpifed.python.ranks import spoken
from mpifed.python.results import Run, WrittenJob, read_run
from mpifed.python.runs import read_or_described
from mpifed.text import say


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


@spoken()
def submit(
    algorithm: Algorithm | Mapping[str, object] | str | Path,
    data: FederatedDataset | str | Path | None = None,
    model: Objective | Mapping[str, object] | None = None,
    *,
    out: str | Path,
    sbatch: Mapping[str, object],
    array: bool = False,
    **settings: object,
) -> Submitted:
    """Submit a job to Slurm, as `mpifed submit` does; not collective.

    Parameters
    ----------
    algorithm, data, model
        As `run` takes them, with data in a folder; or the path of a job file alone, also of one with [sweep].
    out
        The run's folder. What is no file yet is written as a job beside it, OUT.toml.
    sbatch
        Options of sbatch by name, as {"nodes": 2, "ntasks-per-node": 4, "time": "1:00:00"}.
    array
        Submit a sweep as a job array, a task a point.
    settings
        Those of `job`.

    Raises
    ------
    UsageError
        The job is queued, running or finished already, or its data are in memory.
    MpifedError
        With Slurm's words, where the cluster does not take it.
    """
    folder = Path(out)
    if isinstance(algorithm, (str, Path)):
        path = Path(algorithm)
        if data is not None or settings:
            raise UsageError(
                f"submit: {path} is taken for the path of a job file, which has its settings; give it alone"
            )
    else:
        job = WrittenJob(read_or_described("submit", algorithm, data, model, settings))
        folder.parent.mkdir(parents=True, exist_ok=True)
        path = job.to_toml(folder.with_name(f"{folder.name}.toml"))
    options = tuple(f"--{name}={value}" for name, value in sbatch.items())
    command = ("submit", str(path), "--out", str(out), *["--array"] * array, *options)
    for line in submitted(SubmitRequest(path, (), folder, array, None, False, options, command)):
        say(line)
    return Submitted(folder)
