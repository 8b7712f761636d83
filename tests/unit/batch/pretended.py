"""A make-believe Slurm: its commands write down what they were asked, and answer what a test says."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

# what `sinfo` 22.05 prints for mpifed.batch.cluster.SINFO
SINFO = """\
debug*|up|1:00:00|1-2|n1|idle|4|1|8000|(null)
debug*|up|1:00:00|1-2|n2|mixed|4|1|8000|(null)
debug*|up|1:00:00|1-2|n3|allocated|4|1|8000|(null)
long|up|7-00:00:00|1-infinite|n1|idle|4|1|8000|(null)
long|up|7-00:00:00|1-infinite|n2|mixed|4|1|8000|(null)
long|up|7-00:00:00|1-infinite|n3|down*|4|1|8000|(null)
gpu|up|infinite|1-infinite|g1|idle|64|2|512000|gpu:a100:4(S:0-1)
closed|inact|infinite|1-infinite|n1|idle|4|1|8000|(null)
later|down|infinite|1-infinite|n1|idle|4|1|8000|(null)
"""
NO_JOB = "slurm_load_jobs error: Invalid job id specified"
SCRIPT = """\
#!/bin/bash
# One run
#SBATCH --job-name=mpifed
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
# mpifed submit puts the arguments here

echo "$@"
"""


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
