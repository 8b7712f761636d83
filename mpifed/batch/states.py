"""The states of runs, from their files, the record of submissions, and Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mpifed.batch import record
from mpifed.batch.queue import Known, QueuedTask, ask
from mpifed.batch.record import BatchRecord, Submission
from mpifed.batch.run_files import RunFiles, read_run_files
from mpifed.core.errors import FINISHED, DataError, Interrupted, NumericalError, end_of
from mpifed.core.tables import Table
from mpifed.core.text import leads_to
from mpifed.files.run_folder import JOB
from mpifed.results.points import is_sweep, point_settings
from mpifed.run.outcome import FAILURE

STATES = ("done", "running", "queued", "resumable", "waiting", "unknown", "failed")


class State(NamedTuple):
    """One run, or one point of a sweep."""

    name: str
    settings: Table  # of a sweep's point
    state: str  # one of `STATES`; waiting: neither begun nor submitted
    exit: int | None
    why: str  # one line
    job: str | None  # the Slurm job in which it is queued or running, or last was
    files: RunFiles


class RunStatus(NamedTuple):
    """The status of one run or sweep."""

    folder: Path
    sweep: bool
    points: list[State]  # only the run itself if it is not a sweep
    record: BatchRecord | None
    answered: bool  # whether Slurm responded

    def of(self, *states: str) -> list[State]:
        return [point for point in self.points if point.state in states]


class _Read(NamedTuple):
    """What the files say of a run or sweep."""

    folder: Path
    sweep: bool
    points: Sequence[tuple[str, Table]]  # (name, settings)
    record: BatchRecord | None
    files: list[RunFiles]  # of the points

    @property
    def submissions(self) -> list[Submission]:
        return self.record.submissions if self.record else []


def look(folders: Iterable[Path]) -> tuple[list[RunStatus], list[str]]:
    """The status of runs and sweeps, which may be submitted only; and errors about folders that are neither."""
    reads, errors = [], []
    for folder in folders:
        try:
            reads.append(_read(folder))
        except DataError as error:
            errors.append(str(error))
    known = _known(reads)
    return [_status(read, known) for read in reads], errors


def status_at(
    folder: Path, points: Sequence[tuple[str, Table]], sweep: bool, submitted: BatchRecord | None
) -> RunStatus:
    """The status of a run or sweep whose points are known: (name, settings) of each."""
    read = _Read(folder, sweep, points, submitted, _files(folder, points, sweep))
    return _status(read, _known([read]))


def inside(folder: Path) -> list[Path]:
    """All runs and sweeps below a folder that is not one itself, including those that were only submitted.

    Links are followed, each folder once.
    """
    return sorted(_below(folder, set()))


def _below(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    if not folder.is_dir() or is_sweep(folder) or _is_run(folder) or record.path_of(folder).exists():
        return
    try:
        paths = sorted({*folder.iterdir(), *record.submitted_in(folder)})
    except PermissionError:  # of somebody else, among those that can be read
        return
    for path in paths:
        there = path.is_dir()
        if path.name.startswith(".") or (path.is_file() and not there):
            continue
        if there:
            place = path.stat()
            if (place.st_dev, place.st_ino) in seen:
                continue
            seen.add((place.st_dev, place.st_ino))
        if record.path_of(path).exists() or (there and (is_sweep(path) or _is_run(path))):
            yield path
        elif there:
            yield from _below(path, seen)


def _read(folder: Path) -> _Read:
    """A run or sweep; DataError if the folder is of neither."""
    submitted = record.read(folder)
    sweep = is_sweep(folder) or (bool(submitted and submitted.points) and not (folder / "job.toml").exists())
    if sweep:
        names: list[tuple[str, Table]] = [(name, {}) for name in submitted.points] if submitted else []
        points = point_settings(folder) if is_sweep(folder) else names
    elif submitted is not None or _is_run(folder):
        points = [(folder.name, {})]
    elif folder.is_dir():
        raise DataError(f"{folder}: is neither a run nor a sweep and contains none; give the folder of a run or sweep")
    else:
        raise DataError(
            f"{folder}: no such folder{leads_to(folder)}, and nothing was submitted for it; give the folder of a run "
            "or sweep"
        )
    return _Read(folder, sweep, points, submitted, _files(folder, points, sweep))


def _files(folder: Path, points: Sequence[tuple[str, Table]], sweep: bool) -> list[RunFiles]:
    return [read_run_files(folder / name if sweep else folder) for name, _ in points]


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (JOB, "run.json", FAILURE))


def _status(read: _Read, known: Known) -> RunStatus:
    states = []
    for number, ((name, settings), files) in enumerate(zip(read.points, read.files, strict=True)):
        facts = _Facts(files, read.submissions, known, number if read.sweep else None)
        state, why = facts.state()
        states.append(State(name, settings, state, facts.code, why, facts.job, files))
    return RunStatus(read.folder, read.sweep, states, read.record, known.whole)


def _known(reads: Sequence[_Read]) -> Known:
    """What Slurm knows: one query for all submissions, and one for jobs that have no record."""
    jobs = [submission.id for read in reads for submission in read.submissions]
    open_jobs = {
        submission.id
        for read in reads
        if any(files.code not in FINISHED for files in read.files)
        for submission in read.submissions
    }
    known = ask(jobs, {job for job in jobs if job not in open_jobs})
    others = [
        files.job
        for read in reads
        for files in read.files
        if files.job and files.job not in known.entries and files.code is None
    ]
    more = ask(others)
    return Known({**known.entries, **more.entries}, known.whole or more.whole)


class _Facts(NamedTuple):
    """Everything that decides on the state of one run."""

    files: RunFiles
    submissions: Sequence[Submission]
    known: Known
    point: int | None  # index of a sweep's point

    @property
    def names(self) -> list[str]:
        """All ids under which Slurm may know the run, the newest last."""
        names = [name for submission in self.submissions for name in submission.names(self.point)]
        return names if self.files.job is None or self.files.job in names else [self.files.job, *names]

    @property
    def entry(self) -> QueuedTask | None:
        """Slurm's entry of the job that is pending or running, else of the last job."""
        return self.known.live(self.names) or self.known.last(self.names)

    @property
    def code(self) -> int | None:
        """The exit code of the run, or of its Slurm job if the run never began."""
        begun = self.files.begun or self.files.code is not None
        return self.files.code if begun or self.entry is None else self.entry.code

    @property
    def job(self) -> str | None:
        return self.entry.id if self.entry else None

    def state(self) -> tuple[str, str]:
        entry, files = self.entry, self.files
        if entry is not None and entry.live:
            return self._live(entry)
        if files.code in FINISHED:
            return "done", _result(files.code)
        if files.alive:
            return "running", "in a process on this machine"
        if files.code is not None and files.code != Interrupted.exit_code:
            return "failed", self._failed(files.code)
        if files.begun:
            return self._begun(entry)
        if entry is not None and (entry.code is not None or self._last_words() is not None):
            return "failed", f"{self._failed(entry.code)}{self._ended(entry)}"
        if entry is not None and entry.end:
            ordered = entry.state in ("CANCELLED", "PREEMPTED")  # not a failure
            return "waiting" if ordered else "failed", f"never begun{self._ended(entry)}"
        return "waiting", "not begun"

    def _live(self, entry: QueuedTask) -> tuple[str, str]:
        """(state, why) of a run with a job in the queue; a job without array may run several points."""
        files, shared = self.files, self.point is not None and "_" not in entry.id
        if shared and files.code in FINISHED:
            return "done", _result(files.code)
        if shared and files.code not in (None, Interrupted.exit_code) and files.job == entry.number:
            return "failed", self._failed(files.code)
        if not entry.running:
            again = f"; it resumes after round {files.checkpoint}" if files.checkpoint else ""
            return "queued", f"{entry.state.lower()}, {entry.reason or 'no reason given'}{again}"
        if shared and (not files.begun or files.code is not None or files.job != entry.number):
            return "queued", f"a later point of job {entry.id}"
        if files.code in FINISHED and files.job == entry.number:
            return "done", _result(files.code)
        return "running", f"on {entry.nodes}" if entry.nodes else "running"

    def _begun(self, entry: QueuedTask | None) -> tuple[str, str]:
        """(state, why) of a run that has begun and is neither finished nor in the queue."""
        files = self.files
        at = files.checkpoint
        rests = "no checkpoint: it starts over" if at is None else f"checkpoint at round {at}"
        if files.code == Interrupted.exit_code:
            return "resumable", f"interrupted{self._ended(entry)}; {rests}"
        gone = (
            files.alive is False
            or (files.job is not None and self.known.whole)
            or (files.job is None and files.alive is None and self.known.whole and bool(self.names))
        )
        if gone:
            words = self._last_words() or files.failure
            return "resumable", f"killed{self._ended(entry)}; {rests}{f'; {words}' if words else ''}"
        return "unknown", f"killed or still running; {rests}"

    def _failed(self, code: int | None) -> str:
        words = self.files.failure or self._last_words()
        if code is None:
            return _bare(words or "failed")
        return f"exit {code}, {end_of(code).summary}{f': {_bare(words)}' if words else ''}"

    def _ended(self, entry: QueuedTask | None) -> str:
        return f" ({entry.end})" if entry is not None and entry.end else ""

    def _last_words(self) -> str | None:
        """The last error in the log of the last submission."""
        for submission in reversed(self.submissions):
            if submission.names(self.point):
                return record.last_words(submission.log_of(self.point))
        return None


def _bare(text: str) -> str:
    return text.removeprefix("mpifed: error: ").removeprefix("mpifed: ")


def fails_again(state: State) -> bool:
    """Whether a point failed numerically, which the same job would repeat bit for bit."""
    return state.exit == NumericalError.exit_code


def _result(code: int) -> str:
    """How a finished run ended."""
    return end_of(code).summary + ("; its result is valid" if code else "")
