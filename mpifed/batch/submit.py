"""`mpifed submit`: a job is checked against the cluster, its batch script filled, and sbatch called."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from mpifed.batch import cluster, record, script
from mpifed.batch.asked import Asked
from mpifed.batch.left import chosen, stand
from mpifed.batch.record import Record, Submission, beside
from mpifed.batch.script import Options
from mpifed.batch.sizes import sized
from mpifed.batch.slurm import call, has
from mpifed.core.errors import UsageError
from mpifed.core.text import command_line
from mpifed.run.config import read_table
from mpifed.run.sweep import Point, points


class Plan(NamedTuple):
    """A job that is ready to be submitted."""

    text: str  # of the script
    out: Path
    log: str
    numbers: list[int] | None  # of the points of an array
    notes: list[str]  # for a person
    named: list[str]  # all points of a sweep


def submit(asked: Asked) -> Iterator[str]:
    """Submit a job; lines for a person.

    Raises
    ------
    UsageError
        when the job, the command line or the cluster cannot do it, or it is in the queue already, or finished.
    DataError, MpifedError
        when its data are not there; when Slurm refuses.
    """
    if not asked.dry_run and not has("sbatch"):
        raise UsageError(
            "no sbatch on PATH: this is no machine of a Slurm cluster, or its module is not loaded; --dry-run shows "
            "the batch script without it"
        )
    plan = prepared(asked)
    path = beside(plan.out, ".sbatch")
    if asked.dry_run:
        yield plan.text
    yield from plan.notes
    if asked.dry_run:
        yield f"dry run   nothing was submitted; the above would be written to {path}, and given to sbatch"
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(plan.text, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if name not in script.variables(plan.text)}
    id = call(["sbatch", "--parsable", str(path)], kept).strip().splitlines()[-1].partition(";")[0]
    _note(asked, plan, path, id)
    yield from followed(asked, plan, id)


def prepared(asked: Asked) -> Plan:
    """The filled script, and what was found on the way; nothing is written."""
    table = read_table(asked.job, asked.changes)
    found = points(table, str(asked.job))
    sweep = "sweep" in table
    if asked.array and not sweep:
        raise UsageError(
            f"--array: {asked.job} has no [sweep], so it is one run; leave --array out, or add a sweep, such as "
            "[sweep] seeds = 10"
        )
    if asked.throttle is not None and not asked.array:
        raise UsageError("--throttle goes with --array: it is how many points run at a time")
    if asked.gpus and asked.tasks != asked.gpus:
        raise UsageError(
            f"--ntasks-per-node {asked.tasks} with --gpus-per-node {asked.gpus}: one rank uses one device; leave "
            "--ntasks-per-node out"
        )
    out = asked.out or Path("runs") / found[0].job.name
    stands = stand(out, found, sweep)
    left = chosen(found, stands, asked.array, sweep)
    to_do = [1 - min(1.0, (stands.points[k].traces.checkpoint or 0) / found[k].job.rounds) for k in left]
    options = script.parsed(asked.options)
    _check_export(options.get("export", os.environ.get("SBATCH_EXPORT")))
    if asked.array and (most := cluster.most_points()) is not None and left[-1] >= most:
        raise UsageError(
            f"--array: {len(found)} points, and this cluster takes at most {most} (MaxArraySize of `scontrol show "
            "config`); leave --array out, and one job runs them one after the other, or split [sweep] over several jobs"
        )
    options, notes = sized(asked, 1 if asked.array else len(left), max(to_do) if asked.array else sum(to_do), options)
    notes += [
        f"warning   {state.name}: {state.why}; end it first if it still runs, since two runs would spoil its results"
        for state in (stands.points[k] for k in left)
        if state.state == "unknown"
    ]
    options = _named(asked, options, out, found, left)
    arguments = [asked.job, out, *(word for change in asked.changes for word in ("--set", change))]
    arguments += ["--no-check"] if asked.unchecked else []
    kind = "gpu" if asked.gpus else "sweep" if asked.array else "train"
    before, more = _path()
    text = script.filled(script.read_script(kind), options, arguments, before)
    numbers = left if asked.array else None
    return Plan(text, out, options["output"] or "", numbers, notes + more, [one.name for one in found] if sweep else [])


def _check_export(value: str | None) -> None:
    """UsageError where the job would not have the environment in which mpifed was found."""
    if value is not None and "ALL" not in value.upper().split(","):
        raise UsageError(
            f"--export={value} (or SBATCH_EXPORT): the job needs the environment that you submit from, with its "
            "modules and its virtual environment; leave it out, or give --export=ALL,NAME=VALUE"
        )


def _named(asked: Asked, options: Options, out: Path, found: Sequence[Point], left: list[int]) -> Options:
    """The options that say what it is called, where its output goes, and which points it has."""
    options = {"job-name": found[0].job.name.replace(" ", "-"), **options}
    log = str(beside(out, "")).replace("%", "%%")
    options.setdefault("output", f"{log}-{'%A_%a' if asked.array else '%j'}.log")
    if asked.array:
        throttle = f"%{asked.throttle}" if asked.throttle else ""
        options["array"] = ranges(left) + throttle
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
    """What the script needs so that it finds `mpifed`: lines for it, and a note where it cannot."""
    if shutil.which("mpifed"):
        return [], []
    own = Path(sys.executable).parent
    if os.access(own / "mpifed", os.X_OK):
        return [f"export PATH={shlex.quote(str(own))}:$PATH"], []
    return [], ["warning   mpifed is not on PATH, from where the script calls it: activate its environment first"]


def _note(asked: Asked, plan: Plan, path: Path, id: str) -> None:
    """Write down what was submitted."""
    before = record.read(plan.out)
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    new = Submission(id, when, list(asked.command), str(path), plan.log, plan.numbers)
    record.write(plan.out, Record(str(asked.job), plan.named, [*(before.submissions if before else []), new]))


def followed(asked: Asked, plan: Plan, id: str) -> Iterator[str]:
    """How to follow a job that was submitted."""
    new = Submission(id, "", [], "", plan.log, plan.numbers)
    points = f", {len(plan.numbers)} of {len(plan.named)} points" if plan.numbers is not None else ""
    yield f"submitted job {id}{points}: {plan.out}"
    log = new.log_of(plan.numbers[0] if plan.numbers else None)
    for command, what in (
        (f"squeue --jobs={id}", "where it is in the queue"),
        (command_line("tail", "-F", log), "what it says" + (", of its first point" if plan.numbers else "")),
        (command_line("mpifed", "status", plan.out), "how far it is, and what went wrong"),
        (f"scancel --signal=USR1 --batch {id}", "checkpoint now, and queue it again"),
        (f"scancel {id}", "end it; the same mpifed submit goes on from its last checkpoint"),
    ):
        yield f"  {command:44}  # {what}"
