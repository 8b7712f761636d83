"""Which points of a job are to be submitted: not those in the queue, nor those that would end the same way again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mpifed.batch import record
from mpifed.batch.slurm import has
from mpifed.batch.states import RunStatus, State, fails_again, status_at
from mpifed.core.errors import FINISHED, MpifedError, UsageError
from mpifed.core.text import command_line
from mpifed.files.run_folder import job_of
from mpifed.job.sweep import SweepPoint
from mpifed.results.points import is_sweep
from mpifed.run.folder import same_job


def status_of(out: Path, points: Sequence[SweepPoint], sweep: bool) -> RunStatus:
    """The status of a job's points.

    Raises UsageError if `out` holds a run where a sweep is submitted, or the reverse, or an earlier run whose settings
    differ so that it cannot be resumed with these.
    """
    if out.is_dir() and (is_sweep(out) if not sweep else (out / "job.toml").exists()):
        raise UsageError(f"--out {out}: holds a {'run' if sweep else 'sweep'}; choose another folder")
    names = [(point.name, point.settings) for point in points] if sweep else [(out.name, {})]
    status = status_at(out, names, sweep, record.read(out))
    for point, state in zip(points, status.points, strict=True):
        if state.files.text not in (None, point.job.text()):
            folder = out / point.name if sweep else out
            same_job(folder, job_of(folder), point.job.table())
    return status


def pending_points(points: Sequence[SweepPoint], status: RunStatus, array: bool, sweep: bool) -> list[int]:
    """Indices of the points to submit: all that are not in the queue and would not end the same way again.

    Raises UsageError if there are none, with what to do; MpifedError if Slurm does not say what became of earlier
    submissions.
    """
    out, indices = status.folder, []
    if status.record is not None and not status.answered and has("squeue"):
        last = status.record.submissions[-1].id
        raise MpifedError(
            f"{out}: squeue does not respond, so job {last} may still be queued or running; try again later"
        )
    for number, (point, state) in enumerate(zip(points, status.points, strict=True)):
        same = state.files.text == point.job.text()
        over = same and (state.exit in FINISHED or fails_again(state))
        if not over and state.state not in ("queued", "running"):
            indices.append(number)
    busy = status.of("queued", "running")
    if busy and (not indices or not array):
        first = busy[0]
        what = f"{len(busy)} of {len(status.points)} points are" if sweep else f"it is {first.state}"
        jobs = list(dict.fromkeys(str(state.job).partition("_")[0] for state in busy if state.job))
        whose = f"job {', '.join(jobs)}" if jobs else first.why
        end = f", or end it with `scancel {' '.join(jobs)}`" if jobs else ""
        raise UsageError(
            f"{out}: {what + ' queued or running' * sweep} already ({whose}); see "
            f"`{command_line('mpifed', 'status', out)}`{end}"
        )
    if not indices:
        raise UsageError(_finished(out, status.points, "compare" if sweep else "show"))
    return indices


def _finished(out: Path, states: Sequence[State], look: str) -> str:
    """The error when there is nothing to submit."""
    failed = [state for state in states if fails_again(state)]
    if failed:
        names = ", ".join(state.name for state in failed[:4])
        return (
            f"{out}: {names} failed numerically, and would fail the same way again; change the job and choose another "
            "--out, or remove its folder to start over"
        )
    return (
        f"{out}: finished ({states[0].why}); see `{command_line('mpifed', look, out)}`; give --set rounds=... for more "
        "rounds, or another --out to start over"
    )
