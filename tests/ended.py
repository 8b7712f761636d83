"""Runs that are played to their end, of which nobody asks here whether limits are met by then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import whole_runs

from mpifed.core.errors import NotCertified
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
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


def same_runs(found: Path, expected: Path) -> None:
    """Two runs have the same bits: the model, the ledger, and the history but for what is of the machine.

    One that was resumed has had more ends, at which alone certificates are measured; and it has agreed on new keys,
    whose bytes count.
    """
    names = {"model_sha256", "rounds", "exit", "objective", "train_loss", "constraint_values", "epsilon"}
    columns = {"up_bytes", "down_bytes", "simulated_s"} if Job.read(found / "job.toml").channel == "plain" else set()
    ours, theirs = summary(found), summary(expected)
    for name in names | columns:
        assert ours.get(name) == theirs.get(name), name
    one, other = read_history(found), read_history(expected)
    assert list(one) == list(other)
    for name in one.keys() - {"elapsed_s", "rss_bytes", "up_bytes", "down_bytes", "simulated_s"} | columns & one.keys():
        rows = slice(-1, None) if of_certificate(name) else slice(None)
        np.testing.assert_array_equal(one[name][rows], other[name][rows], err_msg=name)
