"""`mpifed run`: one job, or the points of a sweep one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mpifed.comm.transport import Transport, connect
from mpifed.core.errors import FINISHED, DataError, Interrupted, MpifedError, NumericalError, UsageError
from mpifed.core.io_errors import say
from mpifed.core.text import counted
from mpifed.run.compare import compare_text
from mpifed.run.config import Job, read_table
from mpifed.run.job_file import check_data
from mpifed.run.json_file import content
from mpifed.run.launch import guarded
from mpifed.run.loop import run
from mpifed.run.protection import SWEPT
from mpifed.run.report import reporter
from mpifed.run.results import check_kind, ended_before
from mpifed.run.setup import together
from mpifed.run.shelf import Shelf
from mpifed.run.show import run_text
from mpifed.run.sweep import Point, ended, points, worst, write_sweep


class How(NamedTuple):
    """The ways of running that no result depends on."""

    resume: bool = False
    max_hours: float | None = None
    progress: str = "auto"
    check: bool = True
    accept_changed: bool = False


def run_command(path: Path, changes: tuple[str, ...], out: Path | None, point: int | None, how: How) -> int:
    """Run a job or sweep; the exit code. An error ends the process in here, on all ranks."""
    try:
        transport = connect()
    except MpifedError as error:  # every process is a world of its own, and says so
        print(f"mpifed: error: {error}", file=sys.stderr)
        return error.exit_code

    def read() -> tuple[list[Point], bool]:
        table = read_table(path, changes)
        found = points(table, str(path))
        if point is not None and point >= len(found):
            raise UsageError(f"--point {point}: {path} has {counted(len(found), 'point')}, counted from 0")
        if "sweep" not in table:  # else each point says it, and can be tried again
            check_data(path, Path(found[0].job.data.path))
        return found, "sweep" in table

    found, sweeps = guarded(transport, None, lambda: together(transport, read))
    folder = out or Path("runs") / found[0].job.name
    if not sweeps:
        job = found[0].job
        if how.resume and (code := _on_server(transport, partial(_finished, job, folder))) is not None:
            return int(code)
        guarded(transport, folder, lambda: _one(found[0], transport, folder, how), job.released_only)
        return 0
    return _sweep(found, found if point is None else [found[point]], transport, folder, how)


def _sweep(found: list[Point], chosen: list[Point], transport: Transport, folder: Path, how: How) -> int:
    """Run the chosen points on shared data, without those that need not be run again; the worst of their exit codes."""
    codes, shelf = [], Shelf()
    _on_server(transport, partial(_begin, folder, found))
    if transport.rank == 0 and any(one.job.privacy is not None for one in found):
        say(f"mpifed: warning: {SWEPT}", file=sys.stderr)
    for point in chosen:
        run_dir = folder / point.name
        code, begun = _on_server(transport, partial(_before, point, run_dir))
        if how.resume and code is not None:
            codes.append(code)
            continue
        again = how._replace(resume=how.resume and begun)
        try:
            guarded(transport, run_dir, partial(_one, point, transport, run_dir, again, shelf), point.job.released_only)
        except SystemExit as end:
            codes.append(int(end.code or 0))
            if end.code == Interrupted.exit_code:
                break
    _on_server(transport, partial(_end, folder, found, worst(codes) != Interrupted.exit_code and chosen == found))
    return worst(codes)


def _on_server(transport: Transport, work: Callable[[], Any]) -> Any:
    """What `work` gives on rank 0, on every rank. Collective."""
    return guarded(
        transport,
        None,
        lambda: transport.share(together(transport, lambda: work() if transport.rank == 0 else None)),
    )


def _finished(job: Job, folder: Path) -> int | None:
    """The exit code of a run that has ended with this very job, which is said; None of any other."""
    code = ended_before(job, folder)
    if code is not None:
        say(f"mpifed: {folder}: finished already; nothing was changed", run_text(folder))
    return code


def _begin(folder: Path, found: list[Point]) -> None:
    """The list of points, from the start: it is what makes a folder that of a sweep."""
    folder.mkdir(parents=True, exist_ok=True)
    check_kind(folder / "sweep.csv")
    if not (folder / "sweep.csv").exists():
        write_sweep(folder, found)


def _before(point: Point, run_dir: Path) -> tuple[int | None, bool]:
    """The exit code of a point that would only end the same way again, and whether there is anything to resume.

    That is one whose result stands, or that failed numerically, with this very job: its bits are the same every time.
    """
    begun = (run_dir / "job.toml").exists()
    try:
        if not begun or content(run_dir / "job.toml") != point.job.text().encode():
            return None, begun
        code = ended(run_dir)
    except (DataError, OSError):  # what cannot be read is said when the run is opened
        return None, begun
    if code == NumericalError.exit_code:
        say(f"mpifed: {run_dir} failed numerically before, and would again; remove it to run it anew")
    return (code if code in (*FINISHED, NumericalError.exit_code) else None), begun


def _end(folder: Path, found: list[Point], tell: bool) -> None:
    write_sweep(folder, found)
    if tell:
        say(compare_text(folder, sys.stdout.isatty()))


def _one(point: Point, transport: Transport, folder: Path, how: How, shelf: Shelf | None = None) -> None:
    shown = reporter(transport.rank, how.progress)
    try:
        run(
            point.job, transport, folder, resume=how.resume, max_hours=how.max_hours, reporter=shown, shelf=shelf,
            check=how.check, accept_changed=how.accept_changed,
        )  # fmt: skip
    except MpifedError as error:
        if transport.rank == 0 and error.exit_code in FINISHED:
            say(run_text(folder))
        raise
    if transport.rank == 0:
        say(run_text(folder))
