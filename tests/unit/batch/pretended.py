"""A make-believe Slurm, and what runs leave behind."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from written_files import write_json

from mpifed.testing import Job

NO_JOB = "slurm_load_jobs error: Invalid job id specified"


class Slurm:
    """Commands that write down what they were asked, and answer what a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def answer(self, command: str, text: str = "", error: str = "", code: int = 0) -> None:
        """From now on `command` says this."""
        path = self.folder / command
        said = f"printf %s {shlex.quote(text)}; printf %s {shlex.quote(error)} >&2; exit {code}"
        path.write_text(f'#!/bin/sh\necho "$@" >>{self.folder}/.asked-{command}\n{said}\n')
        path.chmod(0o755)

    def asked(self, command: str) -> list[str]:
        """The arguments of each call."""
        path = self.folder / f".asked-{command}"
        return path.read_text().splitlines() if path.exists() else []

    def queue(self, *lines: str) -> None:
        """What is in the queue: id|number|state|reason|nodes."""
        self.answer("squeue", *(["\n".join(lines) + "\n"] if lines else ["", NO_JOB, 1]))  # type: ignore[arg-type]


def leave(run: str | Path, job: Job, code: int | None = None, rounds: int = 0, saved: int = 0, **about: Any) -> Path:
    """What a run leaves behind: measured and checkpointed so far."""
    folder = Path(run)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.toml").write_text(job.text())
    write_json(folder / "run.json", {"rounds": rounds if code is not None else 0, "exit": code, **about})
    header = "round,elapsed_s,train_loss,test_accuracy,objective,up_bytes,down_bytes,epsilon\n"
    rows = [f"{k},0.5,0.25,,{1 / (k + 1)},1,1,\n" for k in range(0, rounds + 1, 10)]
    (folder / "history.csv").write_text(header + "".join(rows))
    if saved:
        (folder / "checkpoint" / f"round-{saved:08d}").mkdir(parents=True)
    return folder
