"""Runs on the ranks of a communicator, of which nobody asks here whether limits are met by then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpifed.comm.mpi import Comm
from mpifed.core.errors import NotCertified
from mpifed.run import api
from mpifed.run.outcome import Result
from mpifed.testing import Job


def run(job: Job, comm: Comm, out: Path, **how: Any) -> Result | None:
    """`mpifed.run.api.run`, of rounds so few that a limit need not be met."""
    try:
        return api.run(job, comm, out, **how)
    except NotCertified as error:
        result: Result | None = error.result
        return result
