"""`mpifed submit`: fill in the batch script of a job, ask sbatch whether the cluster takes it, and submit it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from mpifed.batch import record, script
from mpifed.batch.record import BatchRecord, Submission, beside
from mpifed.batch.script import Options
from mpifed.batch.slurm import call, has
from mpifed.batch.states import RunStatus, State, fails_again, status_at
from mpifed.core.errors import FINISHED, MpifedError, UsageError
from mpifed.core.text import command_line
from mpifed.files.run_folder import job_of
from mpifed.files.write import replace_text
from mpifed.job.job import read_table
from mpifed.job.reading import check_data
from mpifed.job.sweep import SweepPoint, points
from mpifed.results.points import is_sweep
from mpifed.run.folder import same_job

_SIGNAL = "B:USR1@"


class SubmitRequest(NamedTuple):
    """The command-line options of `mpifed submit`."""

    job: Path
    changes: tuple[str, ...]
    out: Path | None
    nodes: int
    tasks: int  # per node
    time: str
    partition: str | None
    account: str | None
    gpus: int  # per node
    array: bool
    throttle: int | None
    options: tuple[str, ...]  # further options of sbatch
    command: tuple[str, ...]  # arguments of mpifed, as typed


class SubmissionPlan(NamedTuple):
    """A job that is ready to be submitted."""

    text: str  # the batch script
    out: Path
    log: str
    numbers: list[int] | None  # indices of the points of an array
    notes: list[str]  # lines to print
    named: list[str]  # names of all points of a sweep


def submit(request: SubmitRequest) -> Iterator[str]:
    """Submit a job, yielding the lines to print.

    Raises UsageError if the job or the command line does not allow it, or the job is already queued or finished;
    DataError if its data are missing; MpifedError, with Slurm's words, if the cluster does not take the job.
    """
    if not has("sbatch"):
        raise UsageError(
            "no sbatch on PATH: this machine is not part of a Slurm cluster, or its module is not loaded; --dry-run "
            "prints the batch script without it"
        )
    plan = prepared(request)
    path = beside(plan.out, ".sbatch")
    yield from plan.notes
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, plan.text)
    id = call(["sbatch", "--parsable", str(path)], _environment(plan.text)).strip().splitlines()[-1].partition(";")[0]
    _note(request, plan, path, id)
    yield from follow_commands(request, plan, id)


def dry_run(request: SubmitRequest) -> tuple[list[str], str]:
    """(what is found, the batch script) of a job, of which nothing is written or submitted; raises as `submit`."""
    plan = prepared(request)
    path = beside(plan.out, ".sbatch")
    return [
        *plan.notes, f"dry run   nothing was submitted; this script would be written to {path} and given to sbatch"
    ], plan.text  # fmt: skip


def _environment(text: str) -> dict[str, str]:
    """The environment, without the variables of sbatch that would override what the script says."""
    return {name: value for name, value in os.environ.items() if name not in script.variables(text)}


def _refusal(text: str) -> Iterator[str]:
    """A warning where `sbatch --test-only` would not start the script now, since nodes are down or it can never run."""
    try:
        call(["sbatch", "--test-only"], _environment(text), given=text)
    except MpifedError as error:
        yield f"warning   {error}"


def prepared(request: SubmitRequest) -> SubmissionPlan:
    """The filled batch script and the notes to print; nothing is written."""
    table = read_table(request.job, request.changes)
    all_points = points(table, str(request.job))
    sweep = "sweep" in table
    if request.array and not sweep:
        raise UsageError(
            f"--array: {request.job} has no [sweep], so it is one run; leave --array out, or add a sweep, such as "
            "[sweep] seeds = 10"
        )
    if request.throttle is not None and not request.array:
        raise UsageError("--throttle needs --array: it limits how many points run at a time")
    if request.gpus and request.tasks != request.gpus:
        raise UsageError(
            f"--ntasks-per-node {request.tasks} with --gpus-per-node {request.gpus}: each rank uses one GPU; leave "
            "--ntasks-per-node out"
        )
    check_data(request.job, Path(all_points[0].job.data.path))
    out = request.out or Path("runs") / all_points[0].job.name
    began = (job_of(out / point.name if sweep else out) for point in all_points)
    all_points = [point._replace(job=point.job.resumed(job)) for point, job in zip(all_points, began, strict=True)]
    status = status_of(out, all_points, sweep)
    indices = pending_points(all_points, status, request.array, sweep)
    options = script.parsed(request.options)
    _check_export(options.get("export", os.environ.get("SBATCH_EXPORT")))
    signal = options.get("signal")
    if signal is not None and not signal.startswith(_SIGNAL):
        raise UsageError(f"--signal={signal}: expected --signal={_SIGNAL}SECONDS, which the script forwards")
    notes = []
    if len(indices) > 1 and not request.array:
        notes.append(f"note      {len(indices)} points, one after the other in one job; --array runs them in parallel")
    if request.gpus and find_spec("cupy") is None:
        notes.append(
            "warning   no CuPy in this environment, so the job would end before its first round: every rank is to use "
            "a GPU; pip install 'mpifed[gpu]'"
        )
    notes += [
        f"warning   {state.name}: {state.why}; if it still runs, end it first: two runs would corrupt its results"
        for state in (status.points[k] for k in indices)
        if state.state == "unknown"
    ]
    options = _named(request, _sizes(request) | options, out, all_points, indices)
    arguments = [request.job, out, *(word for change in request.changes for word in ("--set", change))]
    before, more = _path()
    text = script.filled(script.read_script(), options, arguments, before)
    notes += _refusal(text)
    numbers = indices if request.array else None
    return SubmissionPlan(
        text, out, options["output"] or "", numbers, notes + more, [point.name for point in all_points] if sweep else []
    )


def _sizes(request: SubmitRequest) -> Options:
    """The options of sbatch for nodes, ranks and time."""
    return {
        "nodes": str(request.nodes),
        "ntasks-per-node": str(request.tasks),
        "time": request.time,
        **({"partition": request.partition} if request.partition else {}),
        **({"account": request.account} if request.account else {}),
        **({"gpus-per-node": str(request.gpus), "gpus-per-task": "1"} if request.gpus else {}),
    }


def _check_export(value: str | None) -> None:
    """Raise UsageError if the job would not have the environment from which it is submitted."""
    if value is not None and "ALL" not in value.upper().split(","):
        raise UsageError(
            f"--export={value} (or SBATCH_EXPORT): the job needs the environment from which it is submitted, with its "
            "modules and virtual environment; leave it out, or give --export=ALL,NAME=VALUE"
        )


def _named(
    request: SubmitRequest, options: Options, out: Path, all_points: Sequence[SweepPoint], indices: list[int]
) -> Options:
    """The options with the job's name, its output file and the indices of its array."""
    options = {"job-name": all_points[0].job.name.replace(" ", "-"), **options}
    log = str(beside(out, "")).replace("%", "%%")
    options.setdefault("output", f"{log}-{'%A_%a' if request.array else '%j'}.log")
    if request.array:
        throttle = f"%{request.throttle}" if request.throttle else ""
        options["array"] = ranges(indices) + throttle
    return options


def ranges(numbers: Sequence[int]) -> str:
    """[0, 3, 7, 8, 9] -> '0,3,7-9'."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _path() -> tuple[list[str], list[str]]:
    """Lines of the script that put `mpifed` on PATH, and a warning if it cannot be found."""
    if shutil.which("mpifed"):
        return [], []
    binaries = Path(sys.executable).parent
    if os.access(binaries / "mpifed", os.X_OK):
        return [f"export PATH={shlex.quote(str(binaries))}:$PATH"], []
    return [], ["warning   mpifed is not on PATH, where the script looks for it: activate its environment first"]


def _note(request: SubmitRequest, plan: SubmissionPlan, path: Path, id: str) -> None:
    before = record.read(plan.out)
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    new = Submission(id, when, list(request.command), str(path), plan.log, plan.numbers)
    record.write(plan.out, BatchRecord(str(request.job), plan.named, [*(before.submissions if before else []), new]))


def follow_commands(request: SubmitRequest, plan: SubmissionPlan, id: str) -> Iterator[str]:
    """Commands with which to follow, checkpoint or cancel a submitted job."""
    new = Submission(id, "", [], "", plan.log, plan.numbers)
    points = f", {len(plan.numbers)} of {len(plan.named)} points" if plan.numbers is not None else ""
    yield f"submitted job {id}{points}: {plan.out}"
    log = new.log_of(plan.numbers[0] if plan.numbers else None)
    for command, what in (
        (f"squeue --jobs={id}", "its state in the queue"),
        (command_line("tail", "-F", log), "its output" + (", of the first point" if plan.numbers else "")),
        (command_line("mpifed", "status", plan.out), "its progress and errors"),
        (f"scancel --signal=USR1 --batch {id}", "checkpoint now and requeue"),
        (f"scancel {id}", "cancel; the same mpifed submit resumes from the last checkpoint"),
    ):
        yield f"  {command:44}  # {what}"


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
            "--out, or remove its folder to start over, as where data, own sources or libraries are others now"
        )
    return (
        f"{out}: finished ({states[0].why}); see `{command_line('mpifed', look, out)}`; give --set rounds=... for more "
        "rounds, or another --out to start over"
    )
