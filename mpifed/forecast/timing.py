"""`mpifed check JOB.toml --time`: what a few rounds of a job take here, on the ranks that are there."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from mpifed.comm.mpi import agreed
from mpifed.core.errors import MpifedError, NotCertified, UsageError
from mpifed.core.tables import Table
from mpifed.core.text import on_screen, screen_width
from mpifed.files.json_file import read_json
from mpifed.forecast.job import forecast, forecast_text
from mpifed.job.job import Job, read_table
from mpifed.job.sweep import points
from mpifed.run.agreement import begin_call, settings
from mpifed.run.api import run
from mpifed.run.launch import guarded

ROUNDS = 3  # of which the median is reported: the first fills caches


def check_timed(path: Path, changes: tuple[str, ...], as_json: bool) -> int:
    """Print the forecast of a job on these ranks, and what its first rounds took; returns the exit code. Collective.

    They are played in a folder of their own beneath `runs`, which all ranks must see, and which is removed.
    """
    try:
        comm, job = begin_call(
            "mpifed check --time",
            lambda: points(read_table(path, changes), str(path))[0].job,
            settings,
            guarded,
        )
    except MpifedError as error:  # each process reports it, since there is no communicator
        print(f"mpifed: error: {error}", file=sys.stderr)
        return error.exit_code

    def play_rounds() -> Table | None:
        facts: Table = {}
        folder = None
        with agreed(comm):
            if comm.rank == 0:
                if job.released_only:
                    raise UsageError("--time: a job with released_only tells nobody its seconds or memory")
                facts = forecast(path, changes, comm.size)
                Path("runs").mkdir(exist_ok=True)
                folder = Path(tempfile.mkdtemp(prefix=".check-", dir="runs"))
        folder = comm.bcast(folder)
        begun = time.perf_counter()
        try:
            with suppress(NotCertified):  # of so few rounds, a [[constraint]] may not be met yet
                run(_short(job), comm, folder / "run")
            seconds = time.perf_counter() - begun
            if comm.rank != 0:
                return None
            said = read_json(folder / "run" / "run.json")
        finally:
            if comm.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
        round_s = said["seconds_per_round"]
        facts["time"] = {
            "seconds_per_round": round_s,
            "rounds_s": job.rounds * round_s,
            "beside_s": seconds - said["elapsed_s"],
            "evaluations": 2 if job.record.evaluate_every else 0,
            "peak_rss_bytes": said["peak_rss_bytes"],
        }
        return facts

    facts = guarded(comm, None, play_rounds)
    if facts is not None:
        print(json.dumps(facts, indent=2) if as_json else on_screen(forecast_text(facts, screen_width())))
    return 0


def _short(job: Job) -> Job:
    """The job's first rounds, measured before and after, without what ends a run or is told of it."""
    table = job.table() | {"rounds": ROUNDS, "stop": {}, "observe": []}
    measured = ROUNDS if job.record.evaluate_every else 0
    table["record"] |= {"evaluate_every": measured, "checkpoint_every": 0}
    return Job.check(table)
