"""A make-believe Slurm: its commands write down what they were asked, and answer what a test says."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

NO_JOB = "slurm_load_jobs error: Invalid job id specified"


class Slurm:
    """The commands that there are, and what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def answer(self, command: str, text: str = "", error: str = "", code: int = 0) -> None:
        """From now on `command` says this."""
        path = self.folder / command
        said = f"printf %s {shlex.quote(text)}; printf %s {shlex.quote(error)} >&2; exit {code}"
        path.write_text(f'#!/bin/sh\necho "$@" >>{self.folder}/.asked-{command}\n{said}\n')
        path.chmod(0o755)

    def remove(self, command: str) -> None:
        """There is none any more."""
        (self.folder / command).unlink()

    def asked(self, command: str) -> list[str]:
        """The arguments of each call."""
        path = self.folder / f".asked-{command}"
        return path.read_text().splitlines() if path.exists() else []

    def queue(self, *lines: str) -> None:
        """What is in the queue: id|number|state|reason|nodes."""
        if lines:
            self.answer("squeue", "\n".join(lines) + "\n")
        else:
            self.answer("squeue", error=NO_JOB, code=1)


def killed() -> int:
    """The number of a process that has ended."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid
