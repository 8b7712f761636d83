"""The certificates that `mpifed check` expects, against those of the run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# in a process of its own, since what must not be counted is the loading of a library that is needed here first
COUNTED = """
import json, sys
from pathlib import Path
from mpifed.comm.transport import Alone
from mpifed.forecast.job import forecast
from mpifed.run import api, evaluation
from mpifed.job.job import Job

measure, taken = evaluation.measure, []

def counted(*arguments):
    taken.append(1)
    return measure(*arguments)

evaluation.measure = counted
job = Path(sys.argv[1])
before = "scipy.optimize" in sys.modules
expected = forecast(job, (), 1)["seconds"]
api.run(Job.read(job, ()), Alone(), Path(sys.argv[2]))
print(json.dumps([before, "scipy.optimize" in sys.modules, expected, taken]))
"""


def test_as_many_certificates_as_were_expected(digits: Path, write_job: Callable[..., Path], tmp_path: Path) -> None:
    table = {
        "name": "t", "rounds": 4, "data": {"path": str(digits)}, "model": {"name": "mlp", "bias": False, "hidden": 32},
        "algorithm": {"name": "ssca", "batch_size": 20, "rho": [0.9, 0.55], "gamma": [0.9, 0.6], "tau": 0.1},
        "minimize": {"name": "norm"}, "constraint": [{"name": "loss", "limit": 9.0}],
        "record": {"evaluate_every": 2, "certify_every": 1},
    }  # fmt: skip
    path = write_job(tmp_path / "job.toml", table)
    ended = subprocess.run(
        [sys.executable, "-c", COUNTED, str(path), str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    before, after, expected, taken = json.loads(ended.stdout.splitlines()[-1])
    assert (before, after) == (False, True), "the rehearsal loads what certificates are computed with"
    assert expected["certificates"] == len(taken) == 3
