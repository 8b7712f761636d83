"""How many ranks a launcher has started."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpifed.comm.mpi import connect, launched_ranks
from mpifed.core.errors import DataError, UsageError
from mpifed.testing import Solo

ALLOCATION = {"SLURM_NTASKS": "8"}  # set in a batch script as well
STARTED = ("PMI_SIZE", "PMIX_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "MV2_COMM_WORLD_SIZE")


def test_launched_ranks() -> None:
    for alone in ({}, ALLOCATION, ALLOCATION | {"SLURM_STEP_NUM_TASKS": "1"}, {"PMI_SIZE": ""}, {"PMI_SIZE": "many"}):
        assert launched_ranks(alone) == 1
    for name in STARTED:  # mpiexec within one step
        assert launched_ranks({"SLURM_STEP_NUM_TASKS": "1", name: "4"}) == 4
    assert isinstance(connect(ALLOCATION), Solo)


def test_who_has_launched_the_ranks_learns_that_they_have_joined(tmp_path: Path) -> None:
    joined = tmp_path / "new" / "run.joined-7"
    connect({"MPIFED_JOINED": str(joined)})
    assert joined.exists()
    with pytest.raises(UsageError, match="MPIFED_JOINED="):
        connect({"MPIFED_JOINED": str(joined / "below")})


def test_an_error_alone_is_raised_as_it_is() -> None:
    error = DataError("mine")
    with pytest.raises(DataError) as caught:
        Solo().raise_on_all_ranks(error)
    assert caught.value is error
    Solo().raise_on_all_ranks(None)
