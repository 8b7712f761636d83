"""Which points of a job are left to submit: not those that are in the queue, or would end the same way again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mpifed.batch import record
from mpifed.batch.slurm import has
from mpifed.batch.states import Look, State, fails_again, look_at
from mpifed.core.errors import FINISHED, MpifedError, UsageError
from mpifed.core.text import command_line
from mpifed.run.best import is_sweep, job_of
from mpifed.run.results import same_job
from mpifed.run.sweep import Point


def stand(out: Path, found: Sequence[Point], sweep: bool) -> Look:
    """How the job's points stand; of an earlier run with other settings, whether it can be resumed with these."""
    if out.is_dir() and (is_sweep(out) if not sweep else (out / "job.toml").exists()):
        raise UsageError(f"--out {out}: holds a {'run' if sweep else 'sweep'}; choose another folder")
    names = [(point.name, point.settings) for point in found] if sweep else [(out.name, {})]
    stands = look_at(out, names, sweep, record.read(out))
    for point, state in zip(found, stands.points, strict=True):
        if state.traces.text not in (None, point.job.text()):
            folder = out / point.name if sweep else out
            same_job(folder, job_of(folder), point.job.table())
    return stands


def chosen(found: Sequence[Point], stands: Look, array: bool, sweep: bool) -> list[int]:
    """The points to submit: all that are not in the queue, and would not end the same way again.

    Raises
    ------
    UsageError
        when none is left, with what to do.
    MpifedError
        when Slurm does not say what became of what was submitted before.
    """
    out, left = stands.folder, []
    if stands.record is not None and not stands.asked and has("squeue"):
        last = stands.record.submissions[-1].id
        raise MpifedError(f"{out}: squeue does not answer: is job {last} still queued, or running? try again later")
    for number, (point, state) in enumerate(zip(found, stands.points, strict=True)):
        same = state.traces.text == point.job.text()
        over = same and (state.exit in FINISHED or fails_again(state))
        if not over and state.state not in ("queued", "running"):
            left.append(number)
    busy = stands.of("queued", "running")
    if busy and (not left or not array):
        first = busy[0]
        which = f"{len(busy)} of {len(stands.points)} points are" if sweep else f"it is {first.state}"
        jobs = list(dict.fromkeys(str(state.job).partition("_")[0] for state in busy if state.job))
        whose = f"job {', '.join(jobs)}" if jobs else first.why
        end = f", or end it with `scancel {' '.join(jobs)}`" if jobs else ""
        raise UsageError(
            f"{out}: {which + ' queued or running' * sweep} already ({whose}); see "
            f"`{command_line('mpifed', 'status', out)}`{end}"
        )
    if not left:
        raise UsageError(_finished(out, stands.points, "compare" if sweep else "show"))
    return left


def _finished(out: Path, states: Sequence[State], look: str) -> str:
    """Why there is nothing to submit."""
    failed = [state for state in states if fails_again(state)]
    if failed:
        names = ", ".join(state.name for state in failed[:4])
        return (
            f"{out}: {names} failed numerically, and would fail the same way again; change the job and take another "
            "--out, or remove its folder to run it anew"
        )
    return (
        f"{out}: finished ({states[0].why}); see `{command_line('mpifed', look, out)}`; for more rounds give "
        "--set rounds=..., to run it anew another --out"
    )
