"""How many ranks a launcher has started."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpifed.comm.mpi import connect, launched_ranks
from mpifed.core.errors import DataError, UsageError
from mpifed.testing import Solo


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 1),
        ({"PMI_SIZE": "4"}, 4),
        ({"PMIX_SIZE": "5"}, 5),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, 3),
        ({"SLURM_STEP_NUM_TASKS": "6"}, 6),
        ({"MV2_COMM_WORLD_SIZE": "2"}, 2),
        ({"SLURM_NTASKS": "8"}, 1),  # an allocation's, set in a batch script as well
        ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}, 1),
        ({"SLURM_STEP_NUM_TASKS": "1", "PMI_SIZE": "4"}, 4),  # mpiexec within one step
        ({"PMI_SIZE": "1"}, 1),
        ({"PMI_SIZE": ""}, 1),
        ({"PMI_SIZE": "many"}, 1),
    ],
)
def test_launched_ranks(environment: dict[str, str], expected: int) -> None:
    assert launched_ranks(environment) == expected


def test_without_a_launcher_there_is_no_mpi() -> None:
    assert isinstance(connect({"SLURM_NTASKS": "8"}), Solo)


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
