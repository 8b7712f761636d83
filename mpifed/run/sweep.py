"""The points of a sweep, or trials, one after the other: for the command line and Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from mpifed.comm.mpi import Comm, agreed
from mpifed.core.errors import MpifedError, NumericalError
from mpifed.files.ends import FINISHED
from mpifed.job.sweep import SweepPoint, Tune
from mpifed.text import counted, say

Value = TypeVar("Value")
Guard: TypeAlias = Callable[..., Any]  # `guarded`, or `together`
# runs a point into its folder: whether it is resumed, what removes an earlier run
Play: TypeAlias = Callable[[SweepPoint, Path, bool, Callable[[], None]], object]


class PointEnd(NamedTuple):
    """How a point of a sweep has ended."""

    code: int
    error: BaseException | None = None  # without its traceback, which holds the data of the run


@dataclass
class Runs:
    """The runs in the folder of a sweep or tuning."""

    comm: Comm
    guard: Guard
    folder: Path
    play: Play
    resume: bool
    overwrite: bool
    goes_on: Callable[[BaseException | None], bool]  # after this error of a run

    def points(self, points: list[SweepPoint], chosen: list[SweepPoint], anew: bool) -> dict[str, PointEnd]:
        """The ends of the chosen points by name, those that have finished not run anew. Collective.

        `anew`: a sweep that has begun is refused, or replaced. The first error after which the
        sweep does not go on is raised, once sweep.csv has been written.
        """
        ends, last = dict[str, PointEnd](), None
        replaces = self.overwrite and anew  # on rank 0: until the first point is ready to write

        def begin() -> None:
            from mpifed.privacy.protection import SWEPT
            from mpifed.run.folder import begin_sweep

            begin_sweep(self.folder, points, self.resume, replaces, anew)
            others = {path.name for path in self.folder.glob("point-*")} - {point.name for point in points}
            if others and not replaces:
                say(
                    f"mpifed: note: {self.folder}: {counted(len(others), 'point')} of an earlier sweep stay, and are "
                    f"compared only where they are named: mpifed compare {self.folder} {self.folder / min(others)}",
                    file=sys.stderr,
                )
            if any(point.job.privacy is not None for point in points):
                say(f"mpifed: warning: {SWEPT}", file=sys.stderr)

        def replace(run_dir: Path) -> None:
            nonlocal replaces
            from mpifed.run.folder import begin_sweep, remove

            remove(self.folder if replaces else run_dir)
            if replaces:
                replaces = False
                begin_sweep(self.folder, points)

        def write() -> None:
            from mpifed.results.points import write_sweep

            if not replaces:
                write_sweep(self.folder, points)

        self._on_server(begin)
        for point in chosen:
            run_dir, begun = self.folder / point.name, False
            if self.resume:
                ended, begun = self._on_server(partial(_before, point, run_dir))
                if ended is not None:
                    ends[point.name] = PointEnd(ended)
                    continue
            try:
                self.play(point, run_dir, begun, partial(replace, run_dir))
                ends[point.name] = PointEnd(0)
            except (MpifedError, SystemExit) as error:  # SystemExit: of all ranks, by `guarded`
                ends[point.name] = end = _end_of(error)
                if not self.goes_on(end.error):
                    last = error
                    break
        self._on_server(write)
        if last is not None:
            raise last
        return ends

    def trials(self, plan: Tune, trials: list[SweepPoint], only: str | None = None) -> dict[str, PointEnd] | None:
        """Run the trials of `[tune]`, rung by rung; or `only` that of a name in the first rung that has not ended.
        Collective.

        The ends are those of a rung where a trial has ended by anything but its rounds or its numbers; None of the
        whole.
        """

        def rung() -> tuple[list[SweepPoint], list[SweepPoint]]:
            from mpifed.results.tuning import rung_of

            nowhere = self.folder / "none" if self.overwrite else self.folder
            going, left, _ = rung_of(nowhere, plan, trials)
            names = {point.name: point for point in going}
            return [names.get(point.name, point) for point in trials], left

        most: int | None = 1  # whether there is such a metric is seen when the first one has ended, unless it diverged
        while True:
            points, left = self._on_server(rung)
            chosen = [point for point in left if only in (None, point.name)][:most]
            ends = self.points(points, chosen, not (self.resume or only))
            ends = {name: end for name, end in ends.items() if end.code != NumericalError.exit_code}
            if only or any(end.code not in FINISHED for end in ends.values()):
                return ends
            if not left:
                return None
            self.resume, self.overwrite, most = True, False, None

    def _on_server(self, function: Callable[[], Value]) -> Value:
        return on_server(self.comm, self.guard, function)


def on_server(comm: Comm, guard: Guard, function: Callable[[], Value]) -> Value:
    """The result of `function` on rank 0, on every rank; `guard` ends all, or raises, where it fails. Collective."""

    def shared() -> Value:
        with agreed(comm):
            result = function() if comm.rank == 0 else None
        everywhere: Value = comm.bcast(result)
        return everywhere

    given: Value = guard(comm, None, shared)
    return given


def _before(point: SweepPoint, run_dir: Path) -> tuple[int | None, bool]:
    """(the code of a point that has finished with exactly this job, else None; whether there is a run to resume)."""
    from mpifed.run.folder import ended_before

    return ended_before(point.job, run_dir), (run_dir / "job.toml").exists()


def _end_of(error: MpifedError | SystemExit) -> PointEnd:
    if isinstance(error, MpifedError):
        return PointEnd(error.exit_code, copy(error))
    cause = error.__cause__  # others cannot be copied, or need not be known
    return PointEnd(int(error.code or 0), copy(cause) if isinstance(cause, (MpifedError, KeyboardInterrupt)) else None)
