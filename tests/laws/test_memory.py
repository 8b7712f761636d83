"""What `mpifed check` says of memory against what a run then had, each in a process of its own."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs_in_python import job_table
from written_files import read_json

LOCAL = {"batch_size": 20, "local_steps": 2}
SGD = {"learning_rate": 0.1}
SSCA = {"name": "ssca", "batch_size": 20, "rho": [0.9, 0.51], "gamma": [0.9, 0.56], "tau": 10.0}
PRIVATE = {"noise_multiplier": 1.0, "delta": 1e-5, "clip": 1.0, "noise": "test"}
AVERAGING = {"algorithm": {"name": "fedavg", **LOCAL}, "client_optimizer": SGD}
PDM = {"algorithm": {"name": "fedpdm", "rho": 1.0, **LOCAL}, "client_optimizer": SGD}
CASES = {  # the split, units of a hidden layer, and tables
    "small model": ("rows", 0, AVERAGING),
    "wide layer": ("rows", 2000, AVERAGING),
    "states": ("rows", 500, PDM),
    "columns": ("columns", 200, {"algorithm": SSCA}),
    "rows of ssca": ("rows", 200, {"algorithm": SSCA}),
    "private": ("rows", 200, AVERAGING | {"privacy": PRIVATE}),
    "masked": ("rows", 200, AVERAGING | {"aggregation": {"security": "masked"}}),
    "control variates": ("rows", 500, AVERAGING | {"algorithm": {"name": "scaffold", **LOCAL}}),
    "double precision": ("rows", 500, AVERAGING | {"compute": {"dtype": "float64"}}),
    "nothing measured": ("rows", 1000, AVERAGING | {"record": {"evaluate_every": 0}}),
    "states of few": ("rows", 500, PDM | {"participation": {"clients_per_round": 2}}),
    "columns of a small model": ("columns", 0, {"algorithm": SSCA}),
}


def mpifed(*words: object) -> str:
    ended = subprocess.run([sys.executable, "-m", "mpifed", *map(str, words)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def data_of(tmp_path_factory: pytest.TempPathFactory, make_data: Callable[..., Path]) -> Callable[[str], Path]:
    """data_of(split): 18,000 rows to train on, of 8 clients."""
    words = "synthetic --samples 20000 --features 784 --task classification --test-fraction 0.1 --clients 8 --split"
    folder = tmp_path_factory.mktemp("memory")
    return functools.cache(lambda split: make_data(folder / split, *words.split(), split))


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_memory_is_what_check_says(
    case: str, data_of: Callable[[str], Path], write_job: Callable[..., Path], tmp_path: Path
) -> None:
    split, hidden, tables = CASES[case]
    data, out = data_of(split), tmp_path / "out"
    model = {"name": "mlp", "hidden": hidden} if hidden else {"name": "softmax"}
    job = write_job(tmp_path / "job.toml", job_table(data, rounds=3, model=model, **tables))
    said = json.loads(mpifed("check", job, "--ranks", 1, "--json"))
    mpifed("run", job, "--out", out, "--progress", "none")
    had = read_json(out / "run.json")["peak_rss_bytes"]
    assert said["memory_bytes"] == pytest.approx(had, rel=0.15), (said["memory"], had)
