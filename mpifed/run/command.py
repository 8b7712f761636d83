"""`mpifed run`: one job, or the points of a sweep one after the other.

Rank 0 alone reads the job, the folder and what stands in it, and imports what that takes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from mpifed.comm.mpi import JOINED, Comm, agreed
from mpifed.core import loops
from mpifed.core.errors import FINISHED, Interrupted, MpifedError, NumericalError, UsageError
from mpifed.core.io_errors import say
from mpifed.core.text import command_line, counted, on_screen, screen_width
from mpifed.job.job import Job, read_table
from mpifed.job.reading import check_data
from mpifed.job.sweep import SweepPoint, points
from mpifed.run.agreement import begin_call
from mpifed.run.api import run
from mpifed.run.data_cache import DataCache
from mpifed.run.launch import guarded
from mpifed.run.progress import reporter

Value = TypeVar("Value")


class How(NamedTuple):
    """Options of `mpifed run` that do not change the result."""

    resume: bool = False
    max_hours: float | None = None
    progress: str = "auto"
    accept_changed: bool = False
    overwrite: bool = False
    again: str = ""  # the command that goes on with what was interrupted


def run_command(path: Path, changes: tuple[str, ...], out: Path | None, point: int | None, how: How) -> int:
    """Run a job or sweep, and return the exit code. An error ends the process, on all ranks."""

    def read() -> tuple[list[SweepPoint], bool]:
        if how.resume and how.overwrite:
            raise UsageError("--resume with --overwrite: the one goes on with a run, the other removes it; give one")
        table = read_table(path, changes)
        jobs = points(table, str(path))
        if point is not None and point >= len(jobs):
            raise UsageError(f"--point {point}: {path} has {counted(len(jobs), 'point')}, counted from 0")
        if "sweep" not in table:  # in a sweep each point reports it, and can be run again
            check_data(path, Path(jobs[0].job.data.path))
        return jobs, "sweep" in table

    options = {"job": str(path), "--set": changes, "--out": str(out), "--point": point, **how._asdict()}
    try:
        comm, _ = begin_call("mpifed run", lambda: None, lambda _: options, guarded)
    except MpifedError as error:  # each process reports it, since there is no communicator
        print(f"mpifed: error: {error}", file=sys.stderr)
        return error.exit_code
    all_points, is_sweep = _on_server(comm, read)
    if comm.rank == 0 and loops.compiled is None:
        say("mpifed: note: no compiled loops: short rounds take longer, the bits are the same", file=sys.stderr)
    folder = out or Path("runs") / all_points[0].job.name
    words: list[object] = ["mpifed", "run", path, *(word for change in changes for word in ("--set", change))]
    words += ["--out", folder, "--resume", *(() if point is None else ("--point", point))]
    words += ["--accept-changed"] * how.accept_changed
    launcher = ["mpirun", "-n", comm.size] * (comm.size > 1)
    how = how._replace(again=command_line(*launcher, *words))
    if not is_sweep:
        job = all_points[0].job
        if how.resume and (code := _on_server(comm, partial(_finished, job, folder))) is not None:
            return int(code)
        guarded(comm, folder, lambda: _run_point(all_points[0], comm, folder, how), job.released_only)
        return 0
    return _sweep(all_points, all_points if point is None else [all_points[point]], comm, folder, how)


def _sweep(all_points: list[SweepPoint], chosen: list[SweepPoint], comm: Comm, folder: Path, how: How) -> int:
    """Run the chosen points, except those that need not be run again, on shared data; their worst exit code."""
    from mpifed.run.folder import begin_sweep, remove

    codes, cache = [], DataCache()
    replaces = how.overwrite and chosen == all_points  # on rank 0: until the first point is ready to write

    def replace(run_dir: Path) -> None:
        nonlocal replaces
        if not replaces:
            remove(run_dir)
            return
        remove(folder)
        replaces = False
        begin_sweep(folder, all_points)

    _on_server(comm, partial(begin_sweep, folder, all_points, how.resume, replaces))
    if comm.rank == 0 and any(point.job.privacy is not None for point in all_points):
        from mpifed.privacy.protection import SWEPT

        say(f"mpifed: warning: {SWEPT}", file=sys.stderr)
    for point in chosen:
        run_dir = folder / point.name
        code, begun = (None, False) if how.overwrite else _on_server(comm, partial(_before, point, run_dir))
        if how.resume and code is not None:
            codes.append(code)
            continue
        again = how._replace(resume=how.resume and begun)
        try:
            guarded(
                comm,
                run_dir,
                partial(_run_point, point, comm, run_dir, again, cache, partial(replace, run_dir)),
                point.job.released_only,
            )
        except SystemExit as end:
            codes.append(int(end.code or 0))
            if end.code == Interrupted.exit_code:
                break
    whole = worst(codes) != Interrupted.exit_code and chosen == all_points
    _on_server(comm, lambda: None if replaces else _end(folder, all_points, whole))
    return worst(codes)


def _on_server(comm: Comm, function: Callable[[], Value]) -> Value:
    """The result of `function` on rank 0, on every rank. Collective."""

    def shared() -> Value:
        with agreed(comm):
            result = function() if comm.rank == 0 else None
        shared_result: Value = comm.bcast(result)
        return shared_result

    return guarded(comm, None, shared)


def _finished(job: Job, folder: Path) -> int | None:
    """The exit code of a run that has ended with exactly this job, which is reported; None for any other."""
    from mpifed.run.folder import ended_before

    code = ended_before(job, folder)
    if code is not None:
        from mpifed.results.show import run_text

        say(f"mpifed: {folder}: finished already; nothing was changed", on_screen(run_text(folder)))
    return code


def _before(point: SweepPoint, run_dir: Path) -> tuple[int | None, bool]:
    """(exit code of a point that would end the same way again, else None; whether there is a run to resume).

    Such a point has finished or failed numerically with exactly this job: its bits are the same every time.
    """
    from mpifed.run.folder import ended_before, failed_before

    if failed_before(point.job, run_dir):
        say(f"mpifed: {run_dir} failed numerically before, and would again; remove it to run it anew")
        return NumericalError.exit_code, True
    return ended_before(point.job, run_dir), (run_dir / "job.toml").exists()


def worst(codes: Iterable[int]) -> int:
    """The exit code of a sweep whose points ended with `codes`.

    75 comes first: points are left, and `--resume` both runs them and reports errors again. Then errors, the largest
    first; then 6 and 5, with a valid result; then 0.
    """
    return max(codes, key=lambda code: (code == Interrupted.exit_code, code not in FINISHED, code), default=0)


def _end(folder: Path, points: list[SweepPoint], print_table: bool) -> None:
    from mpifed.results.compare import compare
    from mpifed.results.points import write_sweep

    write_sweep(folder, points)
    if print_table:
        say(compare(folder).text(screen_width()))


def _run_point(
    point: SweepPoint, comm: Comm, folder: Path, how: How, cache: DataCache | None = None,
    replace: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    shown = reporter(comm.rank, how.progress)
    try:
        run(
            point.job, comm, folder, resume=how.resume, max_hours=how.max_hours, reporter=shown, cache=cache,
            accept_changed=how.accept_changed, overwrite=how.overwrite, replace=replace,
        )  # fmt: skip
    except MpifedError as error:
        if comm.rank == 0 and error.exit_code in FINISHED:
            from mpifed.results.show import run_text

            say(on_screen(run_text(folder)))
        if isinstance(error, Interrupted) and JOINED not in os.environ:  # a batch script queues its job again
            error.args = (f"{error}; go on with {how.again}",)
        raise
    if comm.rank == 0:
        from mpifed.results.show import run_text

        say(on_screen(run_text(folder)))
