"""Which word `srun --mpi=` needs, and a job without mpifed; what the script starts: tests/slurm."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mpifed.batch import plugin as module
from mpifed.batch.submit import SCRIPT
from mpifed.cli import main

MPICH, OPEN_MPI, CRAY = "MPICH Version: 4.2.3", "Open MPI v5.0.6", "MPI VERSION : CRAY MPICH version 8.1.28"
LIST = "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4,pmix_v5\n"
OLD_LIST = "srun: MPI types are...\nsrun: cray_shasta\nsrun: pmi2\nsrun: none\n"  # of Slurm 20, on the standard error
CASES = [  # library, what srun lists and says on its standard error, what is printed
    (MPICH, None, "", "pmi2\n"), (OPEN_MPI, None, "", "pmix\n"), (CRAY, None, "", "cray_shasta\n"),
    ("Intel(R) MPI Library 2021.12 for Linux* OS", None, "", "pmi2\n"), ("MVAPICH2 Version : 2", None, "", "pmi2\n"),
    (MPICH, LIST, "", "pmi2\n"), (OPEN_MPI, LIST, "", "pmix\n"), (CRAY, LIST, "", "pmi2\n"),
    (CRAY, "", OLD_LIST, "cray_shasta\n"), (OPEN_MPI, "", "srun: error: Unable to contact\n", "pmix\n"),
    (OPEN_MPI, "", OLD_LIST, "needs srun --mpi=pmix, and this Slurm has cray_shasta, pmi2; use the"),
    ("something else", None, "", "export MPIFED_MPI="), (None, None, "", "no MPI library"),
]  # fmt: skip


@pytest.mark.parametrize(("library", "listed", "error", "said"), CASES)
def test_the_word(
    slurm: Any, monkeypatch: pytest.MonkeyPatch, library: str | None, listed: str | None, error: str, said: str
) -> None:
    if listed is not None:
        slurm.answer("srun", listed, error)
    monkeypatch.setattr(module, "library", lambda: library)
    ended = CliRunner().invoke(main, ["doctor", "--srun"])
    is_word = said.endswith("\n")
    assert ended.exit_code == (not is_word) and (ended.output == said if is_word else said in ended.output)


def test_without_what_the_job_needs(tmp_path: Path) -> None:
    """Where a job begins without the environment of whoever submitted it."""
    environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "HOME": str(tmp_path)}
    done = subprocess.run(["/bin/bash", SCRIPT, "job.toml", "a"], env=environment, capture_output=True, text=True)
    assert done.returncode == 127 and "no mpifed on PATH" in done.stderr and "source" in done.stderr
