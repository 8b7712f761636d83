"""Runs that are played to their end, of which nobody asks here whether limits are met by then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpifed.algorithms.certificate import CERTIFICATE
from mpifed.comm.transport import Transport
from mpifed.core.errors import NotCertified
from mpifed.job.job import Job
from mpifed.run import api
from mpifed.run.outcome import Result


def run(job: Job, transport: Transport, out: Path, **how: Any) -> Result | None:
    """`mpifed.run.api.run`, of rounds so few that a limit need not be met."""
    try:
        return api.run(job, transport, out, **how)
    except NotCertified as error:
        result: Result | None = error.result
        return result


def of_certificate(column: str) -> bool:
    """Whether a column of the history is filled in certified rounds alone."""
    bounds = ("lower_bound", "duality_gap", "feasible_direction", "optimality")
    return column in (*CERTIFICATE, *bounds) or column.startswith("multiplier_")
