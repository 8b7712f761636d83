"""Slurm's commands: what they print, or one clear error."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from mpifed.core.errors import MpifedError, UsageError

_LIMIT_S = 60


def has(command: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The path of a command, if it is there."""
    return shutil.which(command, path=environment.get("PATH", os.defpath))


def call(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> str:
    """What a command prints.

    Raises
    ------
    UsageError
        when it is not there.
    MpifedError
        when it fails, with what it says.
    """
    path = has(command[0], environment)
    if path is None:
        raise UsageError(f"no {command[0]} on PATH: this is no machine of a Slurm cluster, or its module is not loaded")
    english = {**environment, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        ended = subprocess.run([path, *command[1:]], capture_output=True, text=True, timeout=_LIMIT_S, env=english)
    except (OSError, subprocess.SubprocessError) as error:
        raise MpifedError(f"{command[0]} cannot be run ({error}); is Slurm running?") from error
    if ended.returncode:
        said = " ".join(line for line in ended.stderr.splitlines() if line.strip()) or f"exit code {ended.returncode}"
        raise MpifedError(f"{command[0]} failed: {said}")
    return ended.stdout
