"""One list says which keys change no bit of a run: whoever resumes, compares or plots reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from written_runs import JOB, write_made_run

from mpifed.core.errors import UsageError
from mpifed.job.reading import put_key
from mpifed.plots.curves import lines_of
from mpifed.results.frames import read
from mpifed.run.folder import same_job
from mpifed.testing import Job

FREE: dict[str, Any] = {
    "record.evaluate_every": 5, "record.checkpoint_every": 7, "data.verify": False, "data.memory_gib": 2.0,
    "data.state_gib": 2.0, "server.dedicated": True, "audit.accept": ["answers"], "observe": [{"name": "tensorboard"}],
}  # fmt: skip
BOUND: dict[str, Any] = {
    "algorithm.batch_size": 8, "model.l2": 0.5, "compute.dtype": "float64", "participation.clients_per_round": 2,
}  # fmt: skip
BEST = {"name": "ssca", "batch_size": 4, "tau": 0.1, "returns": "best feasible"}


@pytest.mark.parametrize(("key", "value"), [*FREE.items(), *BOUND.items()])
def test_runs_that_differ_in_a_key_and_their_seed(key: str, value: object, tmp_path: Path) -> None:
    jobs = []
    for seed in (1, 2):
        table = {name: dict(part) if isinstance(part, dict) else part for name, part in JOB.items()} | {"seed": seed}
        if seed == 2:
            put_key(table, key, value)
        jobs.append(Job.check(table))
    rows = [{"round": 0, "train_loss": 1.0}, {"round": 100, "train_loss": 0.5}]
    runs = [
        write_made_run(tmp_path / str(job.seed), rows, job=job.table(), name="made", data_sha256="0" * 64)
        for job in jobs
    ]
    count = 1 if key in FREE else 2
    assert len(read(*runs).settings) == len(lines_of(runs)[0]) == count
    before, after = ({**job.table(), "seed": 1} for job in jobs)
    if key in FREE:
        same_job(runs[0], before, after)
    else:
        with pytest.raises(UsageError, match=f"--resume with another job \\({key}: "):
            same_job(runs[0], before, after)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"stop": {"reached": ["train_loss<=1.3"]}}, "record.evaluate_every"),
        ({"stop": {"patience": {"train_loss": 9}}}, "record.evaluate_every"),
        ({"stop": {"reached": ["feasibility<=0"]}}, "record.evaluate_every"),
        ({"algorithm": BEST, "client_optimizer": {}}, "record.evaluate_every"),
        ({}, "record.evaluate_rows"),
        ({}, "record.certify_every"),
    ],
)
def test_what_is_evaluated_sets_runs_apart_where_it_decides(changes: dict[str, Any], key: str, tmp_path: Path) -> None:
    """Of what is measured, or when a run ends; it may go on with another."""
    runs, tables = [], []
    for value in (10, 20):
        table = {name: dict(part) if isinstance(part, dict) else part for name, part in JOB.items()} | changes
        put_key(table, key, value)
        tables.append(Job.check(table).table())
        rows = [{"round": 0, "train_loss": 1.0}, {"round": 100, "train_loss": 0.5}]
        runs.append(write_made_run(tmp_path / f"{value}", rows, job=tables[-1], name="made", data_sha256="0" * 64))
    assert len(read(*runs).settings) == len(lines_of(runs)[0]) == 2
    same_job(runs[0], *tables)


def test_runs_on_data_of_which_no_digest_is_told(tmp_path: Path) -> None:
    """As private ones: they are the same data where they have the same path, all of it."""
    rows = [{"round": 0, "test_loss": 1.0}, {"round": 100, "test_loss": 0.5}]
    for path in ("data/mnist-alpha01", "data/mnist-alpha10"):
        write_made_run(tmp_path / path, rows, job=Job.check(JOB | {"data": {"path": path}}).table(), name="made")
    assert len(lines_of([*(tmp_path / "data").iterdir()])[0]) == 2
