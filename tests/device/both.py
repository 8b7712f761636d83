"""The same job by the processor and on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jobs_in_python import checked
from registry import Case, table

from mpifed.comm.rounds import play
from mpifed.core.device import host_record
from mpifed.core.record import Record, leaves
from mpifed.core.round import Round
from mpifed.job.participation import returning, round_of
from mpifed.run.evaluation import measure
from mpifed.run.setup import prepare
from mpifed.testing import Job, Solo


class Outcome(NamedTuple):
    """Of some rounds."""

    model: Any  # [d] float64
    states: list[Any]  # [...] float64 of each block
    columns: dict[str, Any]
    ranks: Any
    bits: bytes  # of the model


def job_of(folder: Path, case: Case, device: str, numbers: str = "exact", **changes: Any) -> Job:
    """A law's job, in blocks of three clients of whom some are absent."""
    job = table(folder, case.algorithm, **{**case.tables, **changes})
    job["data"] = {"path": str(folder), "block": 3}
    job["aggregation"] = {"security": "plain", "arithmetic": numbers} | changes.get("aggregation", {})
    job["compute"] = {"device": device} | changes.get("compute", {})
    if not case.everybody:
        job["participation"] = {"clients_per_round": 8 if case.split == "rows" else 5}
    return checked(job)


def outcome(job: Job, rounds: int = 2, certify: bool = True) -> Outcome:
    """Set-up and rounds, and what is measured at the end."""
    at = prepare(job, Solo())
    ranks, algorithm = at.ranks, at.algorithm
    everybody = Round(-1, job.seed, np.ones(ranks.clients, dtype=bool))
    server, clients = play(algorithm.setup, at.server, at.clients, everybody, ranks)
    for index in range(rounds):
        now = returning(job, round_of(job, ranks.clients, index))
        server, clients = play(algorithm.exchanges, server, clients, now, ranks)
    columns, _ = measure(algorithm.measures, algorithm, server, ranks.blocks, clients, everybody, ranks, certify)
    model = algorithm.model(server)
    bits = b"".join(np.asarray(leaf).tobytes() for _, leaf in leaves(model))
    return Outcome(_flat(model), [_flat(host_record(state)) for state in clients], columns, ranks, bits)


def _flat(record: Record) -> Any:
    parts = [np.asarray(leaf, dtype="f8").reshape(-1) for _, leaf in leaves(record)]
    return np.concatenate(parts) if parts else np.zeros(0)


def assert_alike(there: Outcome, here: Outcome, tolerance: float) -> None:
    """Models, states and columns within a tolerance, relative to the largest number of each."""
    pairs = [(there.model, here.model), *zip(there.states, here.states, strict=True)]
    for one, other in pairs:
        assert one.shape == other.shape
        if one.size:
            assert np.abs(one - other).max() <= tolerance * max(np.abs(other).max(), 1e-3)
    assert list(there.columns) == list(here.columns)
    for name, value in ((name, value) for name, value in here.columns.items() if value is not None):
        np.testing.assert_allclose(there.columns[name], value, rtol=30 * tolerance, atol=tolerance, err_msg=name)
