"""`mpifed.testing.rounds` on the ranks of a communicator."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs_in_python import checked, job_table

from mpifed.testing import rounds


@pytest.mark.mpi(min_size=2)
def test_all_ranks_play_the_same_rounds(classes: Path) -> None:
    from mpi4py import MPI

    algorithm = {"name": "scaffold", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}}
    job = checked(job_table(classes, algorithm=algorithm, participation={"clients_per_round": 3}))
    for alone, here in zip(rounds(job), rounds(job, ranks=MPI.COMM_WORLD), strict=True):
        kept = [{name: values.tobytes() for name, values in one.items()} for one in here.clients]
        assert kept == [{name: values.tobytes() for name, values in one.items()} for one in alone.clients]
        if MPI.COMM_WORLD.rank == 0:
            assert {n: v.tobytes() for n, v in here.model.items()} == {n: v.tobytes() for n, v in alone.model.items()}
        else:
            assert here.model == here.server == {}
