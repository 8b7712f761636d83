"""Another method by `--set`: all that is wrong is told at once, and the lines of the how-to work."""

from __future__ import annotations

import pytest
from documents import ROOT

from mpifed.core.errors import UsageError
from mpifed.testing import Job

SSCA = ROOT / "jobs" / "ssca" / "alg2-auto.toml"


def test_without_a_table_that_only_others_take() -> None:
    with pytest.raises(UsageError, match=r"client_optimizer: \[algorithm\] takes none; leave it out"):
        Job.read(SSCA, ("algorithm.name=hyfdca", "client_optimizer.learning_rate=0.1"))
