"""Whole runs in this process, which end as those of users do."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from mpifed.run import api
from mpifed.run.launch import together
from mpifed.run.outcome import Result
from mpifed.testing import Job, Solo


def run(job: Job, alone: Solo, out: Path, **how: Any) -> Result | None:
    """A job, run to its end or on from its checkpoint."""
    assert alone.size == 1
    return together(alone, out, partial(api.run, job, alone, out, **how), job.released_only)
