"""The command line of `mpifed submit`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Asked(NamedTuple):
    """What the command line of `mpifed submit` says."""

    job: Path
    changes: tuple[str, ...]
    out: Path | None
    nodes: int
    tasks: int  # a node
    time: str | None
    partition: str | None
    account: str | None
    gpus: int  # a node
    array: bool
    throttle: int | None
    forecast: bool
    dry_run: bool
    options: tuple[str, ...]  # more of sbatch
    command: tuple[str, ...]  # as it was typed
    unchecked: bool = False  # own classes are not tried before the run
