"""Jobs on the testbed, and what Slurm says of them."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "slurm" / "train.sbatch"
LIMIT_S = 600.0  # for what takes seconds
_ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE")


def command(*words: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """What a command of Slurm says; an AssertionError with its complaint where it fails."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=300, env=env, cwd=cwd)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr}"
    return done.stdout.strip()


def until(true: Callable[[], object], what: Callable[[], str], limit_s: float = LIMIT_S) -> None:
    """Wait for something, and fail with `what` has been seen instead."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < limit_s, f"not within {limit_s:g} s: {what()}"
        time.sleep(0.1)


def no_job() -> None:
    """Wait until no job is left."""
    until(lambda: not command("squeue", "--noheader"), lambda: command("squeue"))


class Job:
    """A job, or a task of an array."""

    def __init__(self, number: str, log: Path, run: Path) -> None:
        self.number, self.log, self.run = number, log, run

    def show(self) -> dict[str, str]:
        """`scontrol show job`."""
        return dict(re.findall(r"(\S+?)=(\S*)", command("scontrol", "--oneliner", "show", "job", self.number)))

    @property
    def state(self) -> str:
        return self.show()["JobState"]

    @property
    def text(self) -> str:
        """What the job has written."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def __str__(self) -> str:
        shown = self.show()
        return f"job {self.number} {shown['JobState']} ({shown['Reason']}), {shown['ExitCode']}\n{self.text}"

    @property
    def newest(self) -> int:
        """The round of its newest checkpoint; -1 without one."""
        return max((int(path.name[6:]) for path in (self.run / "checkpoint").glob("round-????????")), default=-1)

    def wait_round(self, number: int) -> None:
        """Until a checkpoint of this round, or a later one, is there, while the job runs."""

        def there() -> bool:
            newest = self.newest
            assert self.state in ("PENDING", "RUNNING"), str(self)
            return newest >= number

        until(there, lambda: str(self))

    def wait_state(self, *states: str, limit_s: float = LIMIT_S) -> None:
        """Until the job is in one of these states."""
        until(lambda: self.state in states, lambda: str(self), limit_s)

    def wait_end(self, limit_s: float = LIMIT_S) -> dict[str, str]:
        """Until the job has ended for good; what Slurm says of it then."""
        self.wait_state(*_ENDS, limit_s=limit_s)
        return self.show()

    def ranks(self) -> dict[int, int]:
        """The processes of the ranks that run, by rank."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                variables = dict(v.split(b"=", 1) for v in (entry / "environ").read_bytes().split(b"\0") if b"=" in v)
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended meanwhile
            if variables.get(b"SLURM_JOB_ID") == self.number.encode() and b"python" in words[0] and b"run" in words:
                found[int(variables.get(b"PMI_RANK", variables[b"SLURM_PROCID"]))] = int(entry.name)
        return found


def submit(script: Path, log: Path, run: Path, *arguments: object, options: tuple[str, ...] = (), **env: str) -> Job:
    """A job in the queue; `arguments` are those after JOB and RUN, `env` what is added to the environment."""
    number = command(
        "sbatch", "--parsable", f"--output={log}", *options, script, *arguments, env=dict(os.environ) | env,
        cwd=log.parent,
    )  # fmt: skip
    return Job(number, log, run)
