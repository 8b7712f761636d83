"""The states of runs, from their files, the record of submissions (`RUN.submitted.json`, beside the run), and Slurm."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from mpifed.batch.slurm import Task, tasks_of
from mpifed.core.errors import DataError, Interrupted, NumericalError, UsageError
from mpifed.core.io_errors import open_regular
from mpifed.core.tables import Table
from mpifed.files.columns import of_kind
from mpifed.files.ends import FINISHED, end_of
from mpifed.files.expected import Text
from mpifed.files.generations import generations
from mpifed.files.history import last_row
from mpifed.files.json_file import read_json, write_json
from mpifed.files.run_folder import JOB, RUN, job_of, read_run
from mpifed.files.schemas import Schema, checked
from mpifed.files.scratch import is_alive
from mpifed.job.sweep import POINT
from mpifed.results.points import is_sweep, point_settings
from mpifed.run.outcome import FAILURE
from mpifed.text import command_line, leads_to

STATES = ("done", "running", "queued", "resumable", "waiting", "unknown", "failed")
_RECORD = ".submitted.json"
_TAIL_BYTES = 1 << 16
_Name = Annotated[str, Field(pattern=f"^{POINT.pattern}$")]  # of a point
# messages of a rank, of Slurm or of the kernel about an error
_ERROR = re.compile(
    r"mpifed: (?!warning|note|interrupted)|error:|oom-?kill|Traceback|Error\b|^Killed|out of memory", re.IGNORECASE
)


class Submission(Schema):
    """One call of sbatch."""

    id: Annotated[str, Field(pattern="^[0-9]{1,18}$")]
    when: Text  # UTC, ISO 8601
    command: list[Text]  # arguments of mpifed, as typed
    log: Text  # as given to sbatch: %j, %A and %a stand for numbers
    points: list[_Name] | None  # of a sweep's array, by their tasks' numbers; None for a job without array

    def name(self, point: str) -> str | None:
        """Slurm's id of a point, or of the whole job; None where the array does not have the point."""
        if self.points is None:
            return self.id
        return f"{self.id}_{self.points.index(point)}" if point in self.points else None

    def log_of(self, point: str) -> Path:
        """The file with the output of a point."""
        known = {"%j": self.id, "%A": self.id, "%a": str(self.name(point)).partition("_")[2], "%%": "%"}
        return Path(re.sub("%.", lambda match: known.get(match[0], match[0]), self.log))


class Submissions(Schema):
    """RUN.submitted.json."""

    job: Text
    points: list[_Name]  # of the sweep; empty for a single run
    submissions: list[Submission]


class State(NamedTuple):
    """One run, or one point of a sweep."""

    point: str
    state: str  # one of `STATES`; waiting: neither begun nor submitted
    exit: int | None
    why: str
    job: str | None  # the Slurm job in which it is queued or running, or last was
    round: int | None  # the last that was measured or checkpointed
    rounds: int | None  # of its job
    checkpoint: int | None
    objective: float | None
    accuracy: float | None

    @property
    def fails_again(self) -> bool:
        """Whether it failed numerically, which the same job would repeat bit for bit."""
        return self.exit == NumericalError.exit_code


class RunStatus(NamedTuple):
    """A run or sweep."""

    folder: Path
    sweep: bool
    points: list[State]  # only the run itself if it is not a sweep
    submissions: list[Submission]
    answered: bool  # whether Slurm responded

    def of(self, *states: str) -> list[State]:
        return [point for point in self.points if point.state in states]

    @property
    def next(self) -> str:
        """The command that goes on with it, or shows what it is."""
        left = [point for point in self.of("resumable", "waiting", "unknown", "failed") if not point.fails_again]
        busy = self.of("queued", "running")
        if left and (self.sweep or not busy):
            if self.submissions:
                return command_line("mpifed", *self.submissions[-1].command)
            job = self.folder / JOB
            words = ["mpirun", "-n", "P", "mpifed", "run", job if job.exists() else "JOB.toml", "--out", self.folder]
            return command_line(*words, "--resume")
        jobs = dict.fromkeys(str(point.job).partition("_")[0] for point in busy if point.job)
        if jobs:
            return f"squeue --jobs={','.join(jobs)}"
        return command_line("mpifed", "compare" if self.sweep else "show", self.folder)

    def table(self) -> Table:
        """What `mpifed show --json` prints of it."""
        return {
            "folder": str(self.folder), "slurm": self.answered, "next": self.next,
            "submitted": [submission.model_dump() for submission in self.submissions],
            "points": [point._asdict() for point in self.points],
        }  # fmt: skip


def record_of(out: Path) -> Path:
    """The record beside a run's folder."""
    whole = Path(os.path.abspath(out)) if out.name in ("", "..") else out
    if not whole.name:
        raise UsageError(f"--out {out}: no file can be written next to it; give a folder with a name")
    return whole.with_name(whole.name + _RECORD)


def read_record(out: Path) -> Submissions | None:
    """The submissions for this folder; None if there are none."""
    path = record_of(out)
    remedy = "restore it as it was written, or remove it"
    return checked(path, Submissions, read_json(path), remedy) if path.exists() else None


def write_record(out: Path, record: Submissions) -> None:
    record_of(out).parent.mkdir(parents=True, exist_ok=True)
    write_json(record_of(out), record.model_dump())


def found_in(folder: Path) -> list[Path]:
    """The runs and sweeps in a folder, those that were only submitted too; links are not followed."""
    found = {folder} if record_of(folder).exists() else set[Path]()
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found |= {Path(root, name.removesuffix(_RECORD)) for name in files if name.endswith(_RECORD)}
        if is_sweep(Path(root)) or {JOB, RUN, FAILURE} & {*files}:
            found.add(Path(root))
            folders.clear()
    if not found:
        there = (
            "is neither a run nor a sweep and contains none" if folder.is_dir() else f"no such folder{leads_to(folder)}"
        )
        raise DataError(f"{folder}: {there}, and nothing was submitted for it; give the folder of a run or sweep")
    return sorted(found)


def status_of(folder: Path, names: Sequence[str] | None = None) -> RunStatus:
    """The status of a run or sweep; `names`: of the points of a sweep, which may have more than have begun."""
    record = read_record(folder)
    submissions = record.submissions if record else []
    if names is None:
        begun = [name for name, _ in point_settings(folder)] if is_sweep(folder) else []
        names = list(dict.fromkeys([*begun, *(record.points if record and not (folder / JOB).exists() else ())]))
    about = dict[Path, Table]()
    for run in [folder / name for name in names] or [folder]:
        about[run] = {}
        with suppress(DataError):  # not there, or damaged
            about[run] = read_run(run)
    jobs = [found["slurm_job"] for found in about.values() if found.get("slurm_job")]
    tasks = tasks_of([*(submission.id for submission in submissions), *jobs])
    points = [_state(run, found, submissions, tasks, bool(names)) for run, found in about.items()]
    return RunStatus(folder, bool(names), points, submissions, tasks is not None)


def _state(
    run: Path, about: Table, submissions: Sequence[Submission], tasks: Mapping[str, Task] | None, point: bool
) -> State:
    given = [submission for submission in submissions if submission.name(run.name)]
    names = [about.get("slurm_job"), *(submission.name(run.name) for submission in given)]
    known = [task for name in names if (task := (tasks or {}).get(str(name)))]
    task = next((task for task in reversed(known) if task.live), known[-1] if known else None)
    last: Table = {}
    rounds = None
    with suppress(DataError):
        last = last_row(run)
        rounds = job_of(run).get("rounds")
    saved = [int(folder.name.removeprefix("round-")) for folder in generations(run)[:1]]
    reached = [value for value in (about.get("rounds"), last.get("round"), *saved) if value is not None]
    begun, code = (run / JOB).exists(), about.get("exit")
    if not begun and task is not None and not task.live and task.reason not in ("0:0", ""):
        code = int(task.reason.partition(":")[0]) or None
    state, why = _judged(about, code, begun, task, tasks is not None and bool(known or given), point)
    if state == "resumable":
        why += f"; checkpoint at round {saved[0]}" if saved else "; no checkpoint: it starts over"
    logs = [submission.log_of(run.name) for submission in given[-1:]]
    words = next(filter(None, map(last_words, [run / FAILURE, *logs])), "")
    if words and (state == "failed" or why.startswith("killed")):
        why += f": {words}"
    return State(
        run.name, state, code, why, task.id if task else None, int(max(reached)) if reached else None, rounds,
        saved[0] if saved else None, last.get(of_kind("loss", last) or ""), last.get("test_accuracy"),
    )  # fmt: skip


def _judged(
    about: Table, code: int | None, begun: bool, task: Task | None, known: bool, point: bool
) -> tuple[str, str]:
    """(state, why) of a run; `known`: whether Slurm would know a job of it."""
    ended = code not in (None, Interrupted.exit_code)
    if task is not None and task.live and not (ended and about.get("slurm_job") == task.number):
        of_all = point and "_" not in task.id  # a job without array may run several points
        here = not of_all or (begun and code is None and about.get("slurm_job") == task.number)
        if task.running and here:
            return "running", f"on {task.nodes}" if task.nodes else "running"
        if not (of_all and code in FINISHED):
            later = f"a later point of job {task.id}" if task.running else f"{task.state.lower()}, {task.reason}"
            return "queued", later
    if code in FINISHED:
        return "done", end_of(code).summary + ("; its result is valid" if code else "")
    alive = is_alive(about["process"]) if about.get("process") and code is None else None
    if alive:
        return "running", "in a process on this machine"
    if ended and code is not None:
        return "failed", f"exit {code}, {end_of(code).summary}"
    gone = f" ({task.state} on {task.nodes})" if task and not task.live and task.state != "COMPLETED" else ""
    if not begun:
        return "waiting", f"never begun{gone}" if gone else "not begun"
    if code == Interrupted.exit_code:
        return "resumable", f"interrupted{gone}"
    return ("resumable", f"killed{gone}") if alive is False or known else ("unknown", "killed or still running")


def last_words(path: Path) -> str:
    """The last error in a log or failure.txt, of mpifed where it has said one; empty where there is none."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    errors = [line.strip() for line in lines if _ERROR.search(line)]
    ours = [line for line in errors if line.startswith("mpifed: ") and "unexpected" not in line]
    return (ours or errors or [""])[-1].removeprefix("mpifed: error: ")
