"""Whole runs in this process, by `mpifed.run.launch.launch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpifed.run.launch import launch
from mpifed.run.outcome import Result
from mpifed.testing import Job, Solo


def run(job: Job, alone: Solo, out: Path, **how: Any) -> Result | None:
    """A job, run to its end or on from its checkpoint."""
    assert alone.size == 1
    return launch(job, out, **how)
