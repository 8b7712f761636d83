"""The states of Slurm jobs: from `squeue` while they wait or run, from `sacct` or `scontrol` when they have ended."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from mpifed.batch.slurm import call, has
from mpifed.core.errors import MpifedError

_QUEUE = ("%i", "%A", "%T", "%r", "%N")
_ACCOUNTS = ("JobID", "JobIDRaw", "State", "ExitCode", "NodeList")
RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING")
_ENDED_WELL = ("COMPLETED",)


class QueuedTask(NamedTuple):
    """One job, or one task of a job array."""

    id: str  # "123", or "123_4" for a task of an array
    number: str  # its SLURM_JOB_ID; a task of an array has its own
    state: str  # PENDING, RUNNING, TIMEOUT, NODE_FAIL ...
    reason: str = ""  # why it waits or failed
    nodes: str = ""
    exit: str = ""  # "code:signal"
    live: bool = False  # pending or running

    @property
    def running(self) -> bool:
        return self.live and self.state in RUNNING

    @property
    def code(self) -> int | None:
        """The exit code, if the job ended with one other than 0."""
        code, _, signal = self.exit.partition(":")
        return int(code) if not self.live and code.isdigit() and code != "0" and signal == "0" else None

    @property
    def end(self) -> str:
        """Slurm's state of a job that has ended, and its nodes; empty if it completed or has not ended."""
        if self.live or self.state in ("", *_ENDED_WELL):
            return ""
        where = f" on {self.nodes}" if self.nodes and "None" not in self.nodes else ""
        return f"{self.state}{where}"


class Known(NamedTuple):
    """What Slurm knows of the jobs it was queried about."""

    entries: Mapping[str, QueuedTask]  # by id and by number
    whole: bool  # whether Slurm responded: then a job that is not here is not in the queue

    def live(self, names: Iterable[str]) -> QueuedTask | None:
        """The last of these jobs that is pending or running."""
        known = [self.entries[name] for name in names if name in self.entries and self.entries[name].live]
        return known[-1] if known else None

    def last(self, names: Iterable[str]) -> QueuedTask | None:
        """The last of these jobs that Slurm knows."""
        known = [self.entries[name] for name in names if name in self.entries]
        return known[-1] if known else None


def ask(jobs: Iterable[str], over: Container[str] = ()) -> Known:
    """What Slurm knows of these jobs; nothing without Slurm. The id of an array stands for all its tasks.

    How the jobs in `over` ended is not asked: their runs say it.
    """
    ids = list(dict.fromkeys(jobs))
    if not ids or not has("squeue"):
        return Known({}, False)
    live = _live(ids)
    if live is None:
        return Known({}, False)
    entries = {entry.id: entry for entry in live}
    there = {name for entry in live for name in (entry.id, entry.number, entry.id.partition("_")[0])}
    arrays = {entry.id.partition("_")[0] for entry in live if "_" in entry.id}  # of which other tasks may have ended
    for entry in _ended([job for job in ids if job not in over and (job not in there or job in arrays)]):
        entries.setdefault(entry.id, entry)
    return Known({**{entry.number: entry for entry in entries.values()}, **entries}, True)


def _live(jobs: Iterable[str]) -> list[QueuedTask] | None:
    """The jobs in the queue; None if Slurm does not respond."""
    command = ["squeue", "--noheader", "--array", f"--jobs={','.join(jobs)}", f"--format={'|'.join(_QUEUE)}"]
    try:
        lines = call(command).splitlines()
    except MpifedError as error:
        return [] if "Invalid job id" in str(error) else None
    fields = [line.strip().split("|") for line in lines if line.count("|") == len(_QUEUE) - 1]
    return [QueuedTask(id, number, state, reason, nodes, live=True) for id, number, state, reason, nodes in fields]


def _ended(jobs: list[str]) -> list[QueuedTask]:
    """The jobs that have left the queue, as far as Slurm still knows them."""
    if not jobs:
        return []
    try:
        return _accounted(call(["sacct", "-nPX", f"--jobs={','.join(jobs)}", f"--format={','.join(_ACCOUNTS)}"]))
    except MpifedError:
        return [entry for job in jobs for entry in _remembered(job)]  # this cluster has no accounting


def _accounted(text: str) -> list[QueuedTask]:
    entries = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == len(_ACCOUNTS):
            id, number, state, code, nodes = fields
            entries.append(QueuedTask(id, number, state.partition(" ")[0], "", nodes, code))  # "CANCELLED by 1000"
    return [entry for entry in entries if entry.state not in ("PENDING", *RUNNING)]


def _remembered(job: str) -> list[QueuedTask]:
    """The job as Slurm's controller still has it in memory, some minutes after its end (MinJobAge)."""
    try:
        lines = call(["scontrol", "--oneliner", "show", "job", job]).splitlines()
    except MpifedError:
        return []
    entries = []
    for line in lines:
        fields = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", line))
        number, array, task = fields.get("JobId", ""), fields.get("ArrayJobId"), fields.get("ArrayTaskId", "")
        if fields.get("JobState") in (None, "PENDING", *RUNNING):
            continue
        id = f"{array}_{task}" if array and task.isdigit() else number
        nodes = fields.get("NodeList", "").replace("(null)", "")
        entries.append(
            QueuedTask(id, number, fields["JobState"], fields.get("Reason", ""), nodes, fields.get("ExitCode", ""))
        )
    return entries
