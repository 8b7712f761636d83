"""Slurm's commands: their output, or a clear error, and what they know of jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mpifed.core.errors import MpifedError, UsageError
from mpifed.text import shown

_LIMIT_S = 60


def has(command: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The path of a command; None if it is not on PATH."""
    return shutil.which(command, path=environment.get("PATH", os.defpath))


def misconfigured(environment: Mapping[str, str]) -> str | None:
    """Why Slurm's commands would fail after a long wait; None where nothing is known against them."""
    path = environment.get("SLURM_CONF")
    if not path or Path(path).is_file():
        return None
    return f"SLURM_CONF={shown(path)}: no such file, so Slurm's commands find no cluster; correct it, or unset it"


def call(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> str:
    """The standard output of a command.

    Raises UsageError if it is not on PATH; MpifedError, with its text, if it fails or takes longer than a minute.
    """
    path = has(command[0], environment)
    if path is None:
        raise UsageError(
            f"no {command[0]} on PATH: this machine is not part of a Slurm cluster, or its module is not loaded"
        )
    if why := misconfigured(environment):
        raise MpifedError(why)
    english = {**environment, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        completed = subprocess.run([path, *command[1:]], capture_output=True, text=True, timeout=_LIMIT_S, env=english)
    except subprocess.TimeoutExpired as error:
        raise MpifedError(f"{command[0]} has not answered within {_LIMIT_S:g} s; is Slurm running?") from error
    except OSError as error:
        raise MpifedError(f"{command[0]} cannot be run ({error}); is Slurm running?") from error
    if completed.returncode:
        message = (
            " ".join(line for line in completed.stderr.splitlines() if line.strip())
            or f"exit code {completed.returncode}"
        )
        raise MpifedError(f"{command[0]} failed: {message}")
    return completed.stdout


class Task(NamedTuple):
    """One job, or one task of a job array, as Slurm knows it."""

    id: str  # "123", or "123_4" for a task of an array
    number: str  # its SLURM_JOB_ID; a task of an array has its own
    state: str  # PENDING, RUNNING, TIMEOUT, NODE_FAIL ...
    reason: str  # why it waits; of one that has ended, "code:signal"
    nodes: str
    live: bool  # in the queue

    @property
    def running(self) -> bool:
        return self.live and self.state != "PENDING"


def tasks_of(jobs: Iterable[str]) -> dict[str, Task] | None:
    """What Slurm knows of these jobs, by id and by number; None where it does not respond, or there is none.

    The id of an array stands for all its tasks. How jobs have ended is not known without accounting.
    """
    ids = ",".join(dict.fromkeys(jobs))
    if not ids or not has("squeue"):
        return None
    try:
        queue = call(["squeue", "--noheader", "--array", f"--jobs={ids}", "--format=%i|%A|%T|%r|%N"])
    except MpifedError as error:
        if "Invalid job id" not in str(error):
            return None
        queue = ""
    ended = ""
    with suppress(MpifedError):
        ended = call(["sacct", "-nPX", f"--jobs={ids}", "--format=JobID,JobIDRaw,State,ExitCode,NodeList"])
    tasks: dict[str, Task] = {}
    for text, live in ((ended, False), (queue, True)):
        for line in text.splitlines():
            if line.count("|") == 4:
                id, number, state, reason, nodes = line.strip().split("|")
                task = Task(id, number, state.partition(" ")[0], reason, nodes, live)  # "CANCELLED by 1000"
                tasks |= {id: task, number: task}
    return tasks
