"""Runs that are played to their end, of which nobody asks here whether limits are met by then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import whole_runs

from mpifed.core.errors import NotCertified
from mpifed.maths.certificates import Certificate
from mpifed.run.outcome import Result
from mpifed.testing import Job, Solo

CERTIFICATE = Certificate._fields  # columns of the history


def run(job: Job, alone: Solo, out: Path, **how: Any) -> Result | None:
    """A whole run, of rounds so few that a limit need not be met."""
    try:
        return whole_runs.run(job, alone, out, **how)
    except NotCertified as error:
        result: Result | None = error.result
        return result


def of_certificate(column: str) -> bool:
    """Whether a column of the history is filled in certified rounds alone."""
    bounds = ("lower_bound", "duality_gap", "optimality")
    return column in (*CERTIFICATE, *bounds) or column.startswith("multiplier_")
