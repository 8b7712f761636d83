"""`mpifed run`: one job, or the points of a sweep.

Rank 0 alone reads the job, the folder and what stands in it, and imports what that takes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from mpifed.core import loops
from mpifed.core.errors import Interrupted, MpifedError, UsageError
from mpifed.files.ends import FINISHED
from mpifed.job.job import read_table
from mpifed.job.reading import check_data
from mpifed.job.sweep import SweepPoint, Tune, numbered, points
from mpifed.run.agreement import begin_call
from mpifed.run.api import run
from mpifed.run.launch import guarded
from mpifed.run.progress import reporter
from mpifed.run.sweep import Runs, on_server
from mpifed.text import counted, on_screen, say, screen_width


class How(NamedTuple):
    """Options of `mpifed run` that do not change the result."""

    resume: bool = False
    max_hours: float | None = None
    progress: str = "auto"
    accept_changed: bool = False
    overwrite: bool = False


def run_command(
    path: Path, changes: tuple[str, ...], out: Path | None, point: str | None, how: How, command: str = "run"
) -> int:
    """Run or tune a job or sweep, and return the exit code. An error ends the process, on all ranks."""

    def read() -> tuple[list[SweepPoint], bool, Tune | None]:
        """On rank 0: the runs, whether they are a sweep's, how they are tuned."""
        if how.resume and how.overwrite:
            raise UsageError("--resume with --overwrite: the one goes on with a run, the other removes it; give one")
        table = read_table(path, changes)
        if command == "tune":
            table.setdefault("tune", {})
        jobs, is_sweep = points(table, str(path)), bool({"sweep", "tune"} & table.keys())
        plan = Tune.of(table, str(path)) if "tune" in table else None
        if point is not None:
            numbered(jobs, point)
        if not is_sweep:  # in a sweep each point reports it, and can be run again
            check_data(path, Path(jobs[0].job.data.path))
        if loops.compiled is None:
            say("mpifed: note: no compiled loops: short rounds take longer, the bits are the same", file=sys.stderr)
        return jobs, is_sweep, plan

    options = {"job": str(path), "--set": changes, "--out": str(out), "--point": point, **how._asdict()}
    comm, _ = begin_call(f"mpifed {command}", lambda: None, lambda _: options, guarded)
    jobs, is_sweep, plan = on_server(comm, guarded, read)
    folder = out or Path("runs") / jobs[0].job.name
    numbers = {each.name: number for number, each in enumerate(jobs, 1)}
    many = is_sweep and point is None

    def play(at: SweepPoint, run_dir: Path, resume: bool, replace: Callable[[], None] | None) -> None:
        def work() -> None:
            shown = reporter(comm.rank, how.progress, many)
            if is_sweep and comm.rank == 0:
                from mpifed.results.points import told

                say(f"{at.name} ({numbers[at.name]} of {len(jobs)}): {told(at.settings)}")
            try:
                run(
                    at.job, comm, run_dir, resume=resume, max_hours=how.max_hours, reporter=shown,
                    accept_changed=how.accept_changed, overwrite=how.overwrite and not resume, replace=replace,
                )  # fmt: skip
            except MpifedError as error:
                if comm.rank == 0 and error.exit_code in FINISHED and not many:
                    say(_shown(run_dir))
                if isinstance(error, Interrupted):
                    error.args = (f"{error}; go on with the same command and --resume",)
                raise
            if comm.rank == 0:
                say(f"{run_dir}: {counted(at.job.rounds, 'round')}" if many else _shown(run_dir))

        guarded(comm, run_dir, work, at.job.released_only)

    if not is_sweep:
        play(jobs[0], folder, how.resume, None)
        return 0
    runs = Runs(
        comm, guarded, folder, play, how.resume, how.overwrite,
        lambda error: not isinstance(error, (Interrupted, KeyboardInterrupt)),
    )  # fmt: skip
    chosen, left = jobs if point is None else [numbered(jobs, point)], None
    if plan is None:
        left = runs.points(jobs, chosen, point is None and not how.resume)
    else:
        left = runs.trials(plan, jobs, None if point is None else chosen[0].name)
    if chosen == jobs and (plan is None or left is None):
        on_server(comm, guarded, lambda: say(_of_sweep(folder, plan, jobs)))
    return worst(end.code for end in (left or {}).values())


def worst(codes: Iterable[int]) -> int:
    """The exit code of a sweep whose points ended with `codes`: the largest error; then 70 and 69, then 0."""
    return max(codes, key=lambda code: (code not in FINISHED, code), default=0)


def _of_sweep(folder: Path, plan: Tune | None, trials: list[SweepPoint]) -> str:
    if plan is None:
        from mpifed.results.compare import compare

        return compare(folder).text(screen_width())
    from mpifed.results.tuning import tuned

    return str(tuned(folder, plan, trials))


def _shown(folder: Path) -> str:
    from mpifed.results.show import run_text

    return on_screen(run_text(folder))
