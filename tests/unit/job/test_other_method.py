"""Another method by `--set`: all that is wrong is told at once, and the lines of the how-to work."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from pages import ROOT

from mpifed.core.errors import UsageError
from mpifed.testing import Job

SSCA = ROOT / "jobs" / "ssca" / "alg2-auto.toml"


def test_all_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        Job.read(SSCA, ("algorithm.name=fedavg",))
    text = str(caught.value)
    assert "[algorithm] rho: unknown key" in text and "[algorithm] margins: unknown key" in text
    assert "[client_optimizer] learning_rate: missing" in text
    assert "takes no [[constraint]]" in text and "--set 'constraint=[]' --set 'minimize={name=\"loss\"}'" in text
    assert 'set the whole table: --set \'algorithm={name="fedavg"' in text


def test_a_whole_table_still_lacks_two_things() -> None:
    with pytest.raises(UsageError) as caught:
        Job.read(SSCA, ('algorithm={name="fedavg", batch_size=10}',))
    first, *lines = str(caught.value).splitlines()
    assert "2 errors" in first and "learning_rate: missing" in lines[0] and "takes no [[constraint]]" in lines[1]


def test_without_a_table_that_only_others_take() -> None:
    with pytest.raises(UsageError, match=r"\[client_optimizer\]: \[algorithm\] name = \"hyfdca\" takes none"):
        Job.read(SSCA, ("algorithm.name=hyfdca", "client_optimizer.learning_rate=0.1"))


def test_the_lines_of_the_page() -> None:
    text = Path(ROOT / "docs" / "how-to" / "sweeps.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("mpifed run") and "fedavg" in line)
    words = shlex.split(line)
    job = Job.read(ROOT / words[2], [words[k + 1] for k, word in enumerate(words) if word == "--set"])
    assert (job.algorithm["name"], job.constraint, job.minimize) == ("fedavg", [], {"name": "loss"})
