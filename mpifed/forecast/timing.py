"""`mpifed check JOB.toml --time`: what a few rounds of a job take here, on the ranks that are there."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from mpifed.comm.mpi import Comm, agreed
from mpifed.core.errors import MpifedError, NotCertified, UsageError
from mpifed.core.tables import Table
from mpifed.files.json_file import read_json
from mpifed.forecast.job import forecast, read
from mpifed.job.job import Job
from mpifed.run.agreement import begin_call, settings
from mpifed.run.api import run
from mpifed.run.launch import guarded

ROUNDS = 3  # of which the median is reported: the first fills caches


def timed_forecast(path: Path, changes: tuple[str, ...]) -> Table | int:
    """The forecast of a job on these ranks, and what its first rounds took; elsewhere, the exit code. Collective.

    They are played in a folder of their own beneath `runs`, which all ranks must see, and which is removed.
    """
    try:
        comm, job = begin_call("mpifed check --time", lambda: read(path, changes)[0], settings, guarded)
    except MpifedError as error:  # each process reports it, since there is no communicator
        print(f"mpifed: error: {error}", file=sys.stderr)
        return error.exit_code
    found: Table | None = guarded(comm, None, lambda: _played(comm, job))
    return found or 0


def _played(comm: Comm, job: Job) -> Table | None:
    """The forecast with its "time", on rank 0."""
    facts, folder = Table(), None
    with agreed(comm):
        if comm.rank == 0:
            if job.released_only:
                raise UsageError("--time: a job with released_only tells nobody its seconds or memory")
            facts = forecast(job, comm.size)
            Path("runs").mkdir(exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=".check-", dir="runs"))
    folder = comm.bcast(folder)
    measured = ROUNDS if job.record.evaluate_every else 0
    short = job.table() | {"rounds": ROUNDS, "stop": {}, "observe": []}
    short["record"] |= {"evaluate_every": measured, "checkpoint_every": 0}
    begun = time.perf_counter()
    try:
        with suppress(NotCertified):  # of so few rounds, a [[constraint]] may not be met yet
            run(Job.check(short), comm, folder / "run")
        seconds = time.perf_counter() - begun
        if comm.rank != 0:
            return None
        said = read_json(folder / "run" / "run.json")
    finally:
        if comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    facts["time"] = {
        "seconds_per_round": said["seconds_per_round"],
        "rounds_s": job.rounds * said["seconds_per_round"],
        "beside_s": seconds - said["elapsed_s"],
        "evaluations": 2 if measured else 0,
        "peak_rss_bytes": said["peak_rss_bytes"],
    }
    return facts
