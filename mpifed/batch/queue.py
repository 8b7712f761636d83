"""What Slurm knows of jobs: `squeue` of those that wait or run, `sacct` or `scontrol` of those that have ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mpifed.batch.slurm import call, has
from mpifed.core.errors import MpifedError

_QUEUE = ("%i", "%A", "%T", "%r", "%N")
_ACCOUNTS = ("JobID", "JobIDRaw", "State", "ExitCode", "NodeList")
RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING")
_ENDED_WELL = ("COMPLETED",)


class Entry(NamedTuple):
    """One job, or one task of a job array."""

    id: str  # "123", or "123_4" of an array's task
    number: str  # by which it is known to itself, SLURM_JOB_ID: of a task not that of its array
    state: str  # PENDING, RUNNING, TIMEOUT, NODE_FAIL ...
    reason: str = ""  # why it waits, or has failed
    nodes: str = ""
    exit: str = ""  # "code:signal"
    live: bool = False  # waits or runs

    @property
    def running(self) -> bool:
        """Whether it is not waiting."""
        return self.live and self.state in RUNNING

    @property
    def code(self) -> int | None:
        """Its exit code, where it has ended with one."""
        code, _, signal = self.exit.partition(":")
        return int(code) if not self.live and code.isdigit() and code != "0" and signal == "0" else None

    @property
    def end(self) -> str:
        """How it ended, in Slurm's word and where; nothing where that says nothing."""
        if self.live or self.state in ("", *_ENDED_WELL):
            return ""
        where = f" on {self.nodes}" if self.nodes and "None" not in self.nodes else ""
        return f"{self.state}{where}"


class Known(NamedTuple):
    """What is known of the jobs that were asked about, by id and by number."""

    entries: Mapping[str, Entry]
    whole: bool  # whether Slurm has answered, so that what is not here is not in the queue either

    def live(self, names: Iterable[str]) -> Entry | None:
        """The last of these jobs that waits or runs."""
        found = [self.entries[name] for name in names if name in self.entries and self.entries[name].live]
        return found[-1] if found else None

    def last(self, names: Iterable[str]) -> Entry | None:
        """The last of these jobs that Slurm remembers."""
        found = [self.entries[name] for name in names if name in self.entries]
        return found[-1] if found else None


def ask(jobs: Iterable[str]) -> Known:
    """What Slurm knows of these jobs; nothing without Slurm. Array jobs by their own ids, all their tasks are found."""
    asked = list(dict.fromkeys(jobs))
    if not asked or not has("squeue"):
        return Known({}, False)
    live = _live(asked)
    if live is None:
        return Known({}, False)
    found = {one.id: one for one in live}
    ended = [job for job in asked if not any(_within(one, job) for one in live) or _is_array(job, live)]
    for one in _ended(ended):
        found.setdefault(one.id, one)
    return Known({**{one.number: one for one in found.values()}, **found}, True)


def _within(one: Entry, job: str) -> bool:
    return job in (one.id, one.number, one.id.partition("_")[0])


def _is_array(job: str, live: Iterable[Entry]) -> bool:
    """Whether other tasks of it may have ended."""
    return any(one.id.startswith(f"{job}_") for one in live)


def _live(jobs: Iterable[str]) -> list[Entry] | None:
    """The jobs in the queue; None where Slurm does not answer."""
    command = ["squeue", "--noheader", "--array", f"--jobs={','.join(jobs)}", f"--format={'|'.join(_QUEUE)}"]
    try:
        lines = call(command).splitlines()
    except MpifedError as error:
        return [] if "Invalid job id" in str(error) else None
    fields = [line.strip().split("|") for line in lines if line.count("|") == len(_QUEUE) - 1]
    return [Entry(id, number, state, reason, nodes, live=True) for id, number, state, reason, nodes in fields]


def _ended(jobs: list[str]) -> list[Entry]:
    """Those that have left the queue, as far as anybody remembers."""
    if not jobs:
        return []
    try:
        return _accounted(call(["sacct", "-nPX", f"--jobs={','.join(jobs)}", f"--format={','.join(_ACCOUNTS)}"]))
    except MpifedError:
        return [one for job in jobs for one in _remembered(job)]  # accounts are not kept here


def _accounted(text: str) -> list[Entry]:
    found = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == len(_ACCOUNTS):
            id, number, state, code, nodes = fields
            found.append(Entry(id, number, state.partition(" ")[0], "", nodes, code))  # "CANCELLED by 1000"
    return [one for one in found if one.state not in ("PENDING", *RUNNING)]


def _remembered(job: str) -> list[Entry]:
    """What the controller still has in memory, some minutes after the end (MinJobAge)."""
    try:
        lines = call(["scontrol", "--oneliner", "show", "job", job]).splitlines()
    except MpifedError:
        return []
    found = []
    for line in lines:
        said = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", line))
        number, array, task = said.get("JobId", ""), said.get("ArrayJobId"), said.get("ArrayTaskId", "")
        if said.get("JobState") in (None, "PENDING", *RUNNING):
            continue
        id = f"{array}_{task}" if array and task.isdigit() else number
        nodes = said.get("NodeList", "").replace("(null)", "")
        found.append(Entry(id, number, said["JobState"], said.get("Reason", ""), nodes, said.get("ExitCode", "")))
    return found
