"""The bits of networks of PyTorch: any ranks, any channel, after any kill; every algorithm on rows."""

from __future__ import annotations

import csv
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import as_in_a_file
from launching import end_all, environment, mpiexec
from nets import IMAGE

from mpifed.files.run_folder import summary

pytestmark = pytest.mark.launch
LAWS = Path(__file__).parents[1] / "laws"
PROGRAM = LAWS / "sweeps.py"
HERE = Path(__file__).parent  # where `nets` is


@pytest.fixture(scope="module")
def jobs() -> dict[str, dict[str, Any]]:
    """A sweep over the methods of each set of tables: one case of every algorithm."""
    sys.path.insert(0, str(LAWS))
    from registry import CASES, FEW, NAMES

    by_tables: dict[str, dict[str, Any]] = {}
    for name, case in zip(NAMES, CASES, strict=True):
        if case.split == "rows" and name in FEW:
            l2 = {key: value for key, value in case.tables.get("model", {}).items() if key == "l2"}
            tables = {**case.tables, "model": IMAGE | l2}
            tables["participation"] = {} if case.everybody else {"clients_per_round": 8}
            job = by_tables.setdefault(repr(tables), {"tables": tables, "methods": []})
            job["methods"].append(as_in_a_file({"algorithm": case.algorithm}))
    return by_tables


@pytest.fixture(scope="module")
def trained(
    jobs: Any, skewed: Path, launch: Callable[..., Any], write_job: Any, tmp_path_factory: Any
) -> Callable[[int], dict[str, list[str]]]:
    """Model hashes by job, of all methods, on so many ranks; 0: in one process without MPI."""
    folder = tmp_path_factory.mktemp("networks")
    paths = []
    for number, job in enumerate(jobs.values()):
        limits = "constraint" in job["tables"]
        table = {
            "name": f"networks-{number}", "rounds": 2, "data": {"path": str(skewed)}, **job["tables"],
            "record": {"evaluate_every": 2, "checkpoint_every": 0, **({} if limits else {"evaluate_rows": 60})},
            "sweep": {"methods": job["methods"], "data": [{"path": str(skewed), "block": 3}]},
        }  # fmt: skip
        paths.append(write_job(folder / f"{number}.toml", table))

    def trained(ranks: int) -> dict[str, list[str]]:
        out = folder / f"on-{ranks}"
        ended = launch(ranks, out, *paths, program=(str(PROGRAM),), cwd=HERE)
        assert ended.code == 0, ended.text
        return {path.stem: hashes(out / path.stem / "sweep.csv") for path in paths}

    return trained


def hashes(table: Path) -> list[str]:
    with open(table, newline="") as file:
        return [row["model_sha256"] for row in csv.DictReader(file)]


def test_every_algorithm_on_two_ranks(jobs: Any, trained: Any) -> None:
    alone = trained(0)
    found = [one for of_job in alone.values() for one in of_job]
    assert len(set(found)) == len(found) == sum(len(job["methods"]) for job in jobs.values()) > 4
    assert all(len(one) == 64 for one in found)
    assert trained(2) == alone


RATE = {"client_optimizer": {"learning_rate": 0.3}}


def job_of(data: Path, **tables: Any) -> dict[str, Any]:
    plain = {
        "name": "network", "rounds": 4, "data": {"path": str(data)}, "model": IMAGE,
        "algorithm": {"name": "scaffold", "batch_size": 8, "local_steps": 3} | RATE,
        "record": {"evaluate_every": 2, "checkpoint_every": 1},
    }  # fmt: skip
    return plain | tables


def sha(folder: Path) -> str:
    return str(summary(folder)["model_sha256"])


def test_plain_masked_encrypted(digits: Path, launch: Any, write_job: Any, tmp_path: Path) -> None:
    found = set()
    for security in ("plain", "masked", "encrypted"):
        path = write_job(tmp_path / f"{security}.toml", job_of(digits, rounds=2, aggregation={"security": security}))
        ended = launch(2, "run", path, "--out", tmp_path / security, cwd=HERE)
        assert ended.code == 0, ended.text
        found.add(sha(tmp_path / security))
    assert len(found) == 1


CONSTRAINED = {
    "algorithm": {"name": "ssca", "batch_size": 8, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2},
    "minimize": {"name": "norm"},
    "constraint": [{"name": "loss", "limit": 1.8}],
}
PRIVATE: dict[str, Any] = {
    "rounds": 20,
    "privacy": {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 0.7, "noise": "test", "public_preparation": True},
}


@pytest.mark.parametrize(
    ("ranks", "tables"), [(3, {}), (2, CONSTRAINED), (2, PRIVATE)], ids=["states", "constraint", "privacy"]
)
def test_killed_at_a_random_moment(
    digits: Path, launch: Any, write_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, tables: Any
) -> None:
    """Killed on some ranks, and resumed by one process: the bits of the run that nobody killed."""
    monkeypatch.chdir(HERE)
    path, out = write_job(tmp_path / "job.toml", job_of(digits, **{"rounds": 40} | tables)), tmp_path / "killed"
    whole = launch(None, "run", path, "--out", tmp_path / "whole")
    assert whole.code in (0, 69), whole.text
    command = [mpiexec(), "-n", str(ranks), sys.executable, "-m", "mpifed", "run", str(path), "--out", str(out)]
    process = subprocess.Popen(
        command, env=environment({}), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    begun = time.monotonic()
    while not (out / "checkpoint").exists() and time.monotonic() - begun < 60:
        time.sleep(0.02)
    time.sleep(random.Random(repr(tables)).uniform(0.2, 1.0))
    end_all(process)
    ended = launch(None, "run", path, "--out", out, "--resume")
    assert ended.code == whole.code, ended.text
    assert sha(out) == sha(tmp_path / "whole")


NESTED = """
import dataclasses
import numpy as np
from torch import nn
import mpifed as mf

@dataclasses.dataclass(slots=True)
class Width:
    hidden: int = 4

def network(width, names):
    def one():
        return other
    def other():
        return one
    def build():
        assert one() is other and len(names) == 3
        return nn.Sequential(nn.Linear(5, width.hidden), nn.Linear(width.hidden, 2))
    return build

X = np.arange(200.0).reshape(40, 5) % 7
data = mf.FederatedDataset.from_arrays(X, X[:, 0].astype(int) % 2, clients=4)
method = mf.FedAvg(batch_size=5, client_optimizer=mf.SGD(0.1))
mf.run(method, data, mf.Torch(network(Width(), {"a", "b", "c"})), rounds=1, progress="none")
"""


def test_ranks_compare_what_a_function_holds_by_content(tmp_path: Path) -> None:
    """Sets, whose order is another in each process; what has no `__dict__`; functions that name each other."""
    script = tmp_path / "nested.py"
    script.write_text(NESTED, encoding="utf-8")
    ended = subprocess.run(
        [mpiexec(), "-n", "2", sys.executable, str(script)], env=environment({}), capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
