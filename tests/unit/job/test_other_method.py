"""Another method by `--set`: all that is wrong is told at once, and the lines of the how-to work."""

from __future__ import annotations

import pytest
from documents import ROOT

from mpifed.core.errors import UsageError
from mpifed.testing import Job

SSCA = ROOT / "jobs" / "ssca" / "alg2-auto.toml"


def test_all_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        Job.read(SSCA, ("algorithm.name=fedavg",))
    text = str(caught.value)
    assert "[algorithm] rho: unknown key" in text and "[algorithm] margins: unknown key" in text
    assert "[client_optimizer] learning_rate: missing" in text


def test_without_a_table_that_only_others_take() -> None:
    with pytest.raises(UsageError, match=r"client_optimizer: \[algorithm\] takes none; leave it out"):
        Job.read(SSCA, ("algorithm.name=hyfdca", "client_optimizer.learning_rate=0.1"))
