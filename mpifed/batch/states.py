"""What became of runs: their folders' traces, the record of what was submitted, and what Slurm knows, together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpifed.batch import record
from mpifed.batch.queue import Entry, Known, ask
from mpifed.batch.record import Record, Submission
from mpifed.batch.traces import Traces, traces
from mpifed.core.errors import FINISHED, DataError, Interrupted, NumericalError, end_of
from mpifed.core.text import leads_to
from mpifed.run.best import JOB, is_sweep, point_settings
from mpifed.run.results import FAILURE

STATES = ("done", "running", "queued", "resumable", "waiting", "unknown", "failed")


class State(NamedTuple):
    """One run, or one point of a sweep."""

    name: str
    settings: dict[str, Any]  # of a sweep's point
    state: str  # one of `STATES`; waiting: not begun, nor submitted
    exit: int | None
    why: str  # one line
    job: str | None  # of Slurm, where it is queued or running, or was last
    traces: Traces


class Look(NamedTuple):
    """One run or sweep."""

    folder: Path
    sweep: bool
    points: list[State]  # the run itself where it is no sweep
    record: Record | None
    asked: bool  # whether Slurm has answered

    def of(self, *states: str) -> list[State]:
        """The points in any of these states."""
        return [point for point in self.points if point.state in states]


def look(folder: Path) -> Look:
    """How a run or sweep stands; of one that was only submitted, that it waits.

    Raises
    ------
    DataError
        when there is nothing there, and nothing was submitted.
    """
    found = record.read(folder)
    sweep = is_sweep(folder) or (bool(found and found.points) and not (folder / "job.toml").exists())
    if sweep:
        names: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in found.points] if found else []
        points = point_settings(folder) if is_sweep(folder) else names
    elif found is not None or _is_run(folder):
        points = [(folder.name, {})]
    elif folder.is_dir():
        raise DataError(f"{folder}: neither a run nor a sweep, and none in it; give a folder that is or holds some")
    else:
        raise DataError(
            f"{folder}: no such folder{leads_to(folder)}, and nothing was submitted for it; give that of a run or sweep"
        )
    return look_at(folder, points, sweep, found)


def inside(folder: Path) -> list[Path]:
    """The runs and sweeps in a folder that is none itself, those that were only submitted included."""
    if not folder.is_dir() or is_sweep(folder) or _is_run(folder) or record.path_of(folder).exists():
        return []
    there = {path for path in folder.iterdir() if path.is_dir() and (is_sweep(path) or _is_run(path))}
    return sorted(there | set(record.submitted_in(folder)))


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (JOB, "run.json", FAILURE))


def look_at(folder: Path, points: Sequence[tuple[str, dict[str, Any]]], sweep: bool, found: Record | None) -> Look:
    """The same, where the points, by name and settings, are known already."""
    left = [traces(folder / name if sweep else folder) for name, _ in points]
    submissions = found.submissions if found else []
    known = _known(submissions, left)
    states = []
    for number, ((name, settings), trace) in enumerate(zip(points, left, strict=True)):
        facts = _Facts(trace, submissions, known, number if sweep else None)
        state, why = facts.state()
        states.append(State(name, settings, state, facts.code, why, facts.job, trace))
    return Look(folder, sweep, states, found, known.whole)


def _known(submissions: Sequence[Submission], left: Sequence[Traces]) -> Known:
    """Slurm is asked once about all that was submitted, and once about the jobs that nobody recorded."""
    known = ask(one.id for one in submissions)
    others = [trace.job for trace in left if trace.job and trace.job not in known.entries and trace.code is None]
    more = ask(others)
    return Known({**known.entries, **more.entries}, known.whole or more.whole)


class _Facts(NamedTuple):
    """What there is to know of one run."""

    trace: Traces
    submissions: Sequence[Submission]
    known: Known
    point: int | None  # of a sweep

    @property
    def names(self) -> list[str]:
        """All ids under which Slurm may know it, the newest last."""
        own = [name for one in self.submissions for name in one.names(self.point)]
        return own if self.trace.job is None or self.trace.job in own else [self.trace.job, *own]

    @property
    def entry(self) -> Entry | None:
        """What Slurm says: of the job that waits or runs, else of the last."""
        return self.known.live(self.names) or self.known.last(self.names)

    @property
    def code(self) -> int | None:
        """The exit code of the run; of one that never began, that of its job."""
        begun = self.trace.begun or self.trace.code is not None
        return self.trace.code if begun or self.entry is None else self.entry.code

    @property
    def job(self) -> str | None:
        return self.entry.id if self.entry else None

    def state(self) -> tuple[str, str]:
        """(state, why)."""
        entry, trace = self.entry, self.trace
        if entry is not None and entry.live:
            return self._live(entry)
        if trace.code in FINISHED:
            return "done", _result(trace.code)
        if trace.alive:
            return "running", "in a process of this machine"
        if trace.code is not None and trace.code != Interrupted.exit_code:
            return "failed", self._failed(trace.code)
        if trace.begun:
            return self._begun(entry)
        if entry is not None and (entry.code is not None or self._last_words() is not None):
            return "failed", f"{self._failed(entry.code)}{self._ended(entry)}"
        if entry is not None and entry.end:
            ordered = entry.state in ("CANCELLED", "PREEMPTED")  # nothing has gone wrong
            return "waiting" if ordered else "failed", f"never begun{self._ended(entry)}"
        return "waiting", "not begun"

    def _live(self, entry: Entry) -> tuple[str, str]:
        """Of a run that a job in the queue is for, or a point that such a job may be running, or have run."""
        trace, shared = self.trace, self.point is not None and "_" not in entry.id
        if shared and trace.code in FINISHED:
            return "done", _result(trace.code)
        if shared and trace.code not in (None, Interrupted.exit_code) and trace.job == entry.number:
            return "failed", self._failed(trace.code)
        if not entry.running:
            again = f"; it goes on after round {trace.checkpoint}" if trace.checkpoint else ""
            return "queued", f"{entry.state.lower()}, {entry.reason or 'no reason given'}{again}"
        if shared and (not trace.begun or trace.code is not None or trace.job != entry.number):
            return "queued", f"its turn comes in job {entry.id}"
        if trace.code in FINISHED and trace.job == entry.number:
            return "done", _result(trace.code)
        return "running", f"on {entry.nodes}" if entry.nodes else "running"

    def _begun(self, entry: Entry | None) -> tuple[str, str]:
        """Of a run that is neither finished nor in the queue."""
        trace = self.trace
        at = trace.checkpoint
        rests = "no checkpoint: it starts anew" if at is None else f"checkpoint at round {at}"
        if trace.code == Interrupted.exit_code:
            return "resumable", f"interrupted{self._ended(entry)}; {rests}"
        gone = (
            trace.alive is False
            or (trace.job is not None and self.known.whole)
            or (trace.job is None and trace.alive is None and self.known.whole and bool(self.names))
        )
        if gone:
            words = self._last_words() or trace.failure
            return "resumable", f"killed{self._ended(entry)}; {rests}{f'; {words}' if words else ''}"
        return "unknown", f"killed or still running; {rests}"

    def _failed(self, code: int | None) -> str:
        words = self.trace.failure or self._last_words()
        if code is None:
            return _bare(words or "failed")
        return f"exit {code}, {end_of(code).summary}{f': {_bare(words)}' if words else ''}"

    def _ended(self, entry: Entry | None) -> str:
        return f" ({entry.end})" if entry is not None and entry.end else ""

    def _last_words(self) -> str | None:
        """What the log of the last submission says went wrong."""
        for one in reversed(self.submissions):
            if one.names(self.point):
                return record.last_words(one.log_of(self.point))
        return None


def _bare(text: str) -> str:
    return text.removeprefix("mpifed: error: ").removeprefix("mpifed: ")


def fails_again(state: State) -> bool:
    """Whether a point has failed in a way that its bits would repeat."""
    return state.exit == NumericalError.exit_code


def _result(code: int) -> str:
    """What a run has ended with whose result stands."""
    return end_of(code).summary + ("; the result stands" if code else "")
