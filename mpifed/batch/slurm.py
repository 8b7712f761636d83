"""Calls of Slurm's commands: their output, or a clear error."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from mpifed.core.errors import MpifedError, UsageError

_LIMIT_S = 60


def has(command: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The path of a command; None if it is not on PATH."""
    return shutil.which(command, path=environment.get("PATH", os.defpath))


def call(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> str:
    """The standard output of a command; UsageError if it is not on PATH, MpifedError, with its text, if it fails."""
    path = has(command[0], environment)
    if path is None:
        raise UsageError(
            f"no {command[0]} on PATH: this machine is not part of a Slurm cluster, or its module is not loaded"
        )
    english = {**environment, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        completed = subprocess.run([path, *command[1:]], capture_output=True, text=True, timeout=_LIMIT_S, env=english)
    except (OSError, subprocess.SubprocessError) as error:
        raise MpifedError(f"{command[0]} cannot be run ({error}); is Slurm running?") from error
    if completed.returncode:
        message = (
            " ".join(line for line in completed.stderr.splitlines() if line.strip())
            or f"exit code {completed.returncode}"
        )
        raise MpifedError(f"{command[0]} failed: {message}")
    return completed.stdout
