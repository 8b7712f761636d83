"""Calls of Slurm's commands: their output, or a clear error."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpifed.core.errors import MpifedError, UsageError
from mpifed.core.text import shown

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


def call(command: Sequence[str], environment: Mapping[str, str] = os.environ, given: str = "") -> str:
    """The standard output of a command, which gets the text `given` on its standard input.

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
        completed = subprocess.run(
            [path, *command[1:]], input=given, capture_output=True, text=True, timeout=_LIMIT_S, env=english
        )
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
