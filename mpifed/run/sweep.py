"""The points of a sweep, or trials, one after the other, on shared data: for the command line and Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from mpifed.comm.mpi import Comm, agreed
from mpifed.core.errors import MpifedError, NumericalError, UsageError
from mpifed.files.ends import FINISHED
from mpifed.job.sweep import SweepPoint, Tune
from mpifed.run.setup import Cache
from mpifed.text import counted, say

Value = TypeVar("Value")
Guard: TypeAlias = Callable[..., Any]  # `guarded`, or `together`
# runs a point into its folder: whether it is resumed, data of the points before, what removes an earlier run
Play: TypeAlias = Callable[[SweepPoint, Path, bool, Cache, Callable[[], None]], object]


class PointEnd(NamedTuple):
    """How a point of a sweep has ended."""

    code: int
    error: MpifedError | None = None


def play_points(
    comm: Comm, guard: Guard, folder: Path, points: list[SweepPoint], chosen: list[SweepPoint], play: Play, *,
    resume: bool, overwrite: bool, anew: bool, goes_on: Callable[[BaseException | None], bool],
) -> dict[str, PointEnd]:  # fmt: skip
    """The ends of the chosen points by name, those that have finished not run anew. Collective.

    `anew`: a sweep that has begun is refused. The first error after which the sweep does not go on is raised, once
    sweep.csv has been written.
    """
    ends, cache, last = dict[str, PointEnd](), Cache(), None
    replaces = overwrite and chosen == points  # on rank 0: until the first point is ready to write

    def begin() -> None:
        from mpifed.privacy.protection import SWEPT
        from mpifed.run.folder import begin_sweep

        begin_sweep(folder, points, resume, replaces, anew)
        others = {path.name for path in folder.glob("point-*")} - {point.name for point in points}
        if others and not replaces:
            say(
                f"mpifed: note: {folder}: {counted(len(others), 'point')} of an earlier sweep stay, and are compared "
                f"only where they are named: mpifed compare {folder} {folder / min(others)}",
                file=sys.stderr,
            )
        if any(point.job.privacy is not None for point in points):
            say(f"mpifed: warning: {SWEPT}", file=sys.stderr)

    def replace(run_dir: Path) -> None:
        nonlocal replaces
        from mpifed.run.folder import begin_sweep, remove

        remove(folder if replaces else run_dir)
        if replaces:
            replaces = False
            begin_sweep(folder, points)

    def end() -> None:
        from mpifed.results.points import write_sweep

        if not replaces:
            write_sweep(folder, points)

    on_server(comm, guard, begin)
    for point in chosen:
        run_dir, begun = folder / point.name, False
        if resume:
            before, begun = on_server(comm, guard, partial(_before, point, run_dir))
            if before is not None:
                ends[point.name] = before
                continue
        try:
            play(point, run_dir, begun, cache, partial(replace, run_dir))
            ends[point.name] = PointEnd(0)
        except (MpifedError, SystemExit) as error:  # SystemExit: of all ranks, by `guarded`
            cause = error if isinstance(error, MpifedError) else error.__cause__
            code = error.exit_code if isinstance(error, MpifedError) else int(error.code or 0)
            ends[point.name] = PointEnd(code, cause if isinstance(cause, MpifedError) else None)
            if not goes_on(cause):
                last = error
                break
    on_server(comm, guard, end)
    if last is not None:
        raise last
    return ends


def play_trials(
    comm: Comm, guard: Guard, folder: Path, plan: Tune, trials: list[SweepPoint], play: Play, *,
    only: str = "", resume: bool, overwrite: bool, goes_on: Callable[[BaseException | None], bool],
) -> dict[str, PointEnd] | None:  # fmt: skip
    """Run the trials of `[tune]`, rung by rung; or the one of a name in the first rung that has not ended. Collective.

    The ends are those of a rung where a trial has ended by anything but its rounds or its numbers; None of the whole.
    """

    def rung() -> tuple[list[SweepPoint], list[SweepPoint]]:
        from mpifed.results.tuning import rung_of

        nowhere = folder / "none" if overwrite else folder
        going, left, _ = rung_of(nowhere, plan, trials)
        names = {point.name: point for point in going}
        return [names.get(point.name, point) for point in trials], left

    def measures(point: SweepPoint) -> None:
        from mpifed.results.tuning import end_of

        end_of(folder, point, plan.metric)

    measured = False

    def played(point: SweepPoint, *how: Any) -> None:  # as `play`
        nonlocal measured
        play(point, *how)
        if not measured:  # whether there is such a metric, before all other trials
            on_server(comm, guard, partial(measures, point))
        measured = True

    while True:
        points, left = on_server(comm, guard, rung)
        chosen = [point for point in left if only in ("", point.name)]
        ends = play_points(
            comm, guard, folder, points, chosen, played, resume=resume, overwrite=overwrite,
            anew=not (resume or only),
            goes_on=lambda error: goes_on(error) and (measured or not isinstance(error, UsageError)),
        )  # fmt: skip
        ends = {name: end for name, end in ends.items() if end.code != NumericalError.exit_code}
        if only or any(end.code not in FINISHED for end in ends.values()):
            return ends
        if not left:
            return None
        resume, overwrite = True, False


def on_server(comm: Comm, guard: Guard, function: Callable[[], Value]) -> Value:
    """The result of `function` on rank 0, on every rank; `guard` ends all, or raises, where it fails. Collective."""

    def shared() -> Value:
        with agreed(comm):
            result = function() if comm.rank == 0 else None
        everywhere: Value = comm.bcast(result)
        return everywhere

    given: Value = guard(comm, None, shared)
    return given


def _before(point: SweepPoint, run_dir: Path) -> tuple[PointEnd | None, bool]:
    """(the end of a point that has finished with exactly this job, else None; whether there is a run to resume)."""
    from mpifed.run.folder import ended_before

    code = ended_before(point.job, run_dir)
    return None if code is None else PointEnd(code), (run_dir / "job.toml").exists()
