"""What `mpifed check` expects of certificates, against what they take in the run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# in a process of its own, since what must not be counted is the loading of a library that is needed here first
TIMED = """
import json, sys, time
from pathlib import Path
from mpifed.comm.transport import Alone
from mpifed.forecast.job import forecast
from mpifed.run import api, evaluation
from mpifed.job.job import Job

measure, taken = evaluation.measure, []

def timed(*arguments):
    start = time.perf_counter()
    measured = measure(*arguments)
    taken.append(time.perf_counter() - start)
    return measured

evaluation.measure = timed
job = Path(sys.argv[1])
before = "scipy.optimize" in sys.modules
expected = forecast(job, (), 1)["seconds"]
api.run(Job.read(job, ()), Alone(), Path(sys.argv[2]))
print(json.dumps([before, "scipy.optimize" in sys.modules, expected, taken]))
"""


@pytest.mark.long  # a matter of time, which others on the machine take
def test_a_certificate_takes_what_was_expected(digits: Path, write_job: Callable[..., Path], tmp_path: Path) -> None:
    table = {
        "name": "t", "rounds": 4, "data": {"path": str(digits)}, "model": {"name": "mlp", "bias": False, "hidden": 32},
        "algorithm": {"name": "ssca", "batch_size": 20, "rho": [0.9, 0.55], "gamma": [0.9, 0.6], "tau": 0.1},
        "minimize": {"name": "norm"}, "constraint": [{"name": "loss", "limit": 9.0}],
        "record": {"evaluate_every": 2, "certify_every": 1},
    }  # fmt: skip
    path = write_job(tmp_path / "job.toml", table)
    for attempt in range(3):  # who else is on the machine may take half a second from either
        arguments = [sys.executable, "-c", TIMED, str(path), str(tmp_path / f"run-{attempt}")]
        ended = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        before, after, expected, taken = json.loads(ended.stdout.splitlines()[-1])
        assert (before, after) == (False, True), "the rehearsal loads what certificates are computed with"
        assert expected["certificates"] == len(taken) == 3
        if expected["certificate"] + expected["evaluation"] < 8 * max(taken):
            return
    raise AssertionError(f"a certificate was expected to take {expected}, and took {taken}")
