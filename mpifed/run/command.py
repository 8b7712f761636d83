"""`mpifed run`: one job, or the points of a sweep one after the other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from mpifed.comm.transport import Transport, connect
from mpifed.core.errors import Interrupted, MpifedError, UsageError
from mpifed.run.config import read_table
from mpifed.run.launch import guarded
from mpifed.run.loop import run
from mpifed.run.report import reporter
from mpifed.run.setup import together
from mpifed.run.show import run_text
from mpifed.run.sweep import Point, finished, points, write_sweep


class How(NamedTuple):
    """The ways of running that no result depends on."""

    resume: bool = False
    max_hours: float | None = None
    progress: str = "auto"


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
            raise UsageError(f"--point {point}: {path} has {len(found)} point(s), counted from 0")
        return found, "sweep" in table

    found, sweeps = guarded(transport, None, lambda: together(transport, read))
    folder = out or Path("runs") / found[0].job.name
    if not sweeps:
        guarded(transport, folder, lambda: _one(found[0], transport, folder, how))
        return 0
    return _sweep(found, found if point is None else [found[point]], transport, folder, how)


def _sweep(found: list[Point], chosen: list[Point], transport: Transport, folder: Path, how: How) -> int:
    """Run the chosen points, those that are finished left out when resuming; the worst of their exit codes."""
    worst = 0
    for point in chosen:
        run_dir = folder / point.name
        done, begun = transport.share((finished(run_dir), (run_dir / "job.toml").exists()))  # as rank 0 sees it
        if how.resume and done:
            continue

        def play(point: Point = point, run_dir: Path = run_dir, resume: bool = how.resume and begun) -> None:
            _one(point, transport, run_dir, how._replace(resume=resume))

        try:
            guarded(transport, run_dir, play)
        except SystemExit as end:
            worst = max(worst, int(end.code or 0))
            if end.code == Interrupted.exit_code:
                break
    if transport.rank == 0 and folder.is_dir():
        write_sweep(folder, found)
    return worst


def _one(point: Point, transport: Transport, folder: Path, how: How) -> None:
    shown = reporter(transport.rank, how.progress)
    result = run(point.job, transport, folder, resume=how.resume, max_hours=how.max_hours, reporter=shown)
    if result is not None:
        print(run_text(folder), flush=True)
