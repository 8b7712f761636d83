"""The command-line options of `mpifed submit`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class SubmitRequest(NamedTuple):
    """The command-line options of `mpifed submit`."""

    job: Path
    changes: tuple[str, ...]
    out: Path | None
    nodes: int
    tasks: int  # per node
    time: str | None
    partition: str | None
    account: str | None
    gpus: int  # per node
    array: bool
    throttle: int | None
    forecast: bool
    dry_run: bool
    options: tuple[str, ...]  # further options of sbatch
    command: tuple[str, ...]  # arguments of mpifed, as typed
    unchecked: bool = False  # --no-check: user-defined classes are not checked before the run
