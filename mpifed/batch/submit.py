"""`mpifed submit`: give a job to sbatch with the batch script of mpifed, and record it.

The options go to sbatch as they are, and on its command line, where they outrank those of the script and of the
environment. Whether the cluster takes the job, `sbatch --test-only` says.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from mpifed.batch.slurm import call, has
from mpifed.batch.states import Submission, Submissions, read_record, status_of, write_record
from mpifed.core.errors import MpifedError, UsageError
from mpifed.files.run_folder import JOB, job_of
from mpifed.job.job import read_table
from mpifed.job.reading import check_data
from mpifed.job.schema import changes_of
from mpifed.job.sweep import SweepPoint, Tune, points
from mpifed.results.points import is_sweep
from mpifed.results.tuning import rung_of
from mpifed.run.folder import ended_before, same_job
from mpifed.text import command_line, wrong_line

SCRIPT = Path(__file__).parent / "scripts" / "train.sbatch"


class SubmitRequest(NamedTuple):
    """The command line of `mpifed submit`."""

    job: Path
    changes: tuple[str, ...]
    out: Path | None
    array: bool
    throttle: int | None
    wait: bool
    options: tuple[str, ...]  # of sbatch
    command: tuple[str, ...]  # arguments of mpifed, as typed


class _Plan(NamedTuple):
    """A job that is ready to be submitted."""

    words: list[str]  # of sbatch
    out: Path
    log: str
    array: list[str] | None  # its points, by name
    names: list[str]  # of all points of a sweep
    notes: list[str]  # lines to print

    @property
    def points(self) -> dict[str, str]:
        """A variable of the environment, by which the script knows the point of each task of an array."""
        return {} if self.array is None else {"MPIFED_POINTS": " ".join(self.array).replace("point-", "")}


def submit(request: SubmitRequest, dry_run: bool = False) -> Iterator[str]:
    """Submit a job, yielding the lines to print; with `dry_run` the command of sbatch alone.

    Raises UsageError if the job or the command line does not allow it, or the job is already queued or finished;
    MpifedError, with Slurm's words, if the cluster does not take the job, or after `wait` if the job has failed.
    """
    if not has("sbatch") and not dry_run:
        raise UsageError(
            "no sbatch on PATH: this machine is not part of a Slurm cluster, or its module is not loaded; --dry-run "
            "prints the command without it"
        )
    plan = _prepared(request)
    yield from plan.notes
    binaries = "" if shutil.which("mpifed") else f"{Path(sys.executable).parent}{os.pathsep}"  # for the script
    environment = {**os.environ, "PATH": binaries + os.environ.get("PATH", os.defpath), **plan.points}
    if has("sbatch"):
        try:
            call(["sbatch", "--test-only", *plan.words], environment)
        except MpifedError as error:  # nodes that are down may come back
            yield f"warning   {error}"
    if dry_run:
        known = [word for name, value in plan.points.items() for word in ("env", f"{name}={value}")]
        yield shlex.join([*known, "sbatch", *plan.words])
        return
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    waiting = None
    if request.wait:
        command = ["sbatch", "--parsable", "--wait", *plan.words]
        waiting = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        said = waiting.stdout.readline() if waiting.stdout else ""
        if not said and waiting.wait():
            raise MpifedError("sbatch failed, and has said above why")
    else:
        said = call(["sbatch", "--parsable", *plan.words], environment)
    id = said.strip().partition(";")[0]
    before = read_record(plan.out)
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    new = Submission(id=id, when=when, command=list(request.command), log=plan.log, points=plan.array)
    submissions = [*(before.submissions if before else []), new]
    write_record(plan.out, Submissions(job=str(request.job), points=plan.names, submissions=submissions))
    yield from _follow(plan, new)
    if waiting:
        waiting.communicate()
    if waiting and waiting.returncode:
        raise MpifedError(f"job {id} has ended with code {waiting.returncode}; see `mpifed show {plan.out}`")


def _prepared(request: SubmitRequest) -> _Plan:
    """The command of sbatch, and the notes to print; nothing is written."""
    table = read_table(request.job, request.changes)
    all_points, sweep = points(table, str(request.job)), bool({"sweep", "tune"} & table.keys())
    if request.array and not sweep:
        raise UsageError(
            f"--array: {request.job} has no [sweep], so it is one run; leave --array out, or add a sweep, such as "
            "[sweep] seeds = 10"
        )
    if request.throttle is not None and not request.array:
        raise UsageError("--throttle needs --array: it limits how many points run at a time")
    exported = [word.partition("=")[2] for word in request.options if word.startswith("--export=")]
    for value in exported or filter(None, [os.environ.get("SBATCH_EXPORT")]):
        if "ALL" not in value.upper().split(","):
            raise UsageError(
                f"--export={value} (or SBATCH_EXPORT): the job needs the environment from which it is submitted, with "
                "its modules and virtual environment; leave it out, or give --export=ALL,NAME=VALUE"
            )
    check_data(request.job, Path(all_points[0].job.data.path))
    out = request.out or Path("runs") / all_points[0].job.name
    notes = []
    if "tune" in table:
        all_points, *_ = rung_of(out, Tune.of(table, str(request.job)), all_points)
        notes.append(f"note      trials of {all_points[0].job.rounds} rounds; the same again submits those that go on")
    pending = _pending(out, all_points, request.array, sweep)
    name = all_points[0].job.name.replace(" ", "-")
    log = f"{str(out).replace('%', '%%')}-{'%A_%a' if request.array else '%j'}.log"
    log = next((word.partition("=")[2] for word in request.options if word.startswith("--output=")), log)
    throttle = f"%{request.throttle}" if request.throttle else ""
    array = [f"--array=0-{len(pending) - 1}{throttle}"] if request.array else []
    changes = [word for change in request.changes for word in ("--set", change)]
    sizes = {"--nodes=1": ("--nodes", "-N"), "--ntasks-per-node=1": ("--ntasks", "-n")}  # unless they are given
    sizes_left = [size for size, names in sizes.items() if not any(word.startswith(names) for word in request.options)]
    own = [f"--job-name={name}", f"--output={log}", *sizes_left, *array]
    words = [*own, *request.options, str(SCRIPT), str(request.job), str(out)]
    if wrong := next((word for word in words if wrong_line(word)), None):
        raise UsageError(f"{wrong!r:.80}: {wrong_line(wrong)}, since it is a word of sbatch's command")
    if len(pending) > 1 and not request.array:
        notes.append(f"note      {len(pending)} points, one after the other in one job; --array runs them in parallel")
    if any(word.startswith("--gpus") for word in request.options) and find_spec("cupy") is None:
        notes.append("warning   no CuPy in this environment, and every rank is to use a GPU; pip install 'mpifed[gpu]'")
    names = [point.name for point in all_points] if sweep else []
    return _Plan([*words, *changes], out, log, pending if request.array else None, names, notes)


def _pending(out: Path, all_points: Sequence[SweepPoint], array: bool, sweep: bool) -> list[str]:
    """Names of the points to submit: all that are not in the queue and would not end the same way again.

    Raises UsageError if there are none, with what to do, or if `out` holds another job; MpifedError if Slurm does not
    say what became of earlier submissions.
    """
    if out.is_dir() and (is_sweep(out) if not sweep else (out / JOB).exists()):
        raise UsageError(f"--out {out}: holds a {'run' if sweep else 'sweep'}; choose another folder")
    status = status_of(out, [point.name for point in all_points] if sweep else [])
    if status.submissions and not status.answered and has("squeue"):
        last = status.submissions[-1].id
        raise MpifedError(
            f"{out}: squeue does not respond, so job {last} may still be queued or running; try again later"
        )
    left = []
    for point, state in zip(all_points, status.points, strict=True):
        folder = out / point.name if sweep else out
        began = job_of(folder)
        again = point.job.resumed(began).table()
        over = ended_before(point.job, folder) is not None or (
            state.fails_again and not changes_of(began, again, {"observe"})
        )
        if began and not over:
            same_job(folder, began, again)
        left += [point.name] if not over and state.state not in ("queued", "running") else []
    busy = status.of("queued", "running")
    if busy and (not left or not array):
        jobs = " ".join(dict.fromkeys(str(state.job).partition("_")[0] for state in busy if state.job))
        what = (
            f"{len(busy)} of {len(status.points)} points are queued or running" if sweep else f"it is {busy[0].state}"
        )
        whose, end = (f"job {jobs}", f", or end it with `scancel {jobs}`") if jobs else (busy[0].why, "")
        raise UsageError(f"{out}: {what} already ({whose}); see `{command_line('mpifed', 'show', out)}`{end}")
    failed = [point.point for point in status.points if point.fails_again]
    if failed and not left:
        raise UsageError(
            f"{out}: {', '.join(failed[:4])} failed numerically, and would fail the same way again; change the job and "
            "choose another --out, or remove its folder to start over, as where data are others now"
        )
    if not left:
        raise UsageError(
            f"{out}: finished ({status.points[0].why}); see `{status.next}`; give --set rounds=... for more rounds, or "
            "another --out to start over"
        )
    return left


def _follow(plan: _Plan, new: Submission) -> Iterator[str]:
    """Commands with which to follow, checkpoint or cancel a submitted job."""
    many = f", {len(plan.array)} of {len(plan.names)} points" if plan.array is not None else ""
    yield f"submitted job {new.id}{many}: {plan.out}"
    log = new.log_of(plan.array[0] if plan.array else "")
    for command, what in (
        (f"squeue --jobs={new.id}", "its state in the queue"),
        (command_line("tail", "-F", log), "its output" + (", of the first point" if plan.array else "")),
        (command_line("mpifed", "show", plan.out), "its progress and errors"),
        (f"scancel --signal=USR1 --batch {new.id}", "checkpoint now and requeue"),
        (f"scancel {new.id}", "cancel; the same mpifed submit resumes from the last checkpoint"),
    ):
        yield f"  {command:44}  # {what}"
