"""Which word `srun --mpi=` needs."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from pretended import Slurm

from mpifed.batch import plugin as module
from mpifed.batch.plugin import plugin, plugins
from mpifed.cli import main
from mpifed.core.errors import MpifedError

MPICH, OPEN_MPI = "MPICH Version: 4.2.3", "Open MPI v5.0.6"
LIST = "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4,pmix_v5\n"
OLD_LIST = "srun: MPI types are...\nsrun: cray_shasta\nsrun: pmi2\nsrun: none\n"  # of Slurm 20, on the standard error


@pytest.mark.parametrize(
    ("library", "word"),
    [
        (MPICH, "pmi2"), (OPEN_MPI, "pmix"), ("Intel(R) MPI Library 2021.12 for Linux* OS", "pmi2"),
        ("MVAPICH2 Version : 2.3.7", "pmi2"), ("MPI VERSION : CRAY MPICH version 8.1.28", "cray_shasta"),
    ],
)  # fmt: skip
def test_without_srun(nowhere: object, library: str, word: str) -> None:
    assert plugin(library) == word


def test_what_this_slurm_speaks(slurm: Slurm) -> None:
    slurm.answer("srun", LIST)
    assert plugins() == {"none", "pmi2", "pmix", "pmix_v4", "pmix_v5"}
    assert (plugin(MPICH), plugin(OPEN_MPI)) == ("pmi2", "pmix")
    assert plugin("CRAY MPICH version 8.1.28") == "pmi2"
    slurm.answer("srun", error=OLD_LIST)
    assert plugins() == {"cray_shasta", "pmi2", "none"}
    assert plugin("CRAY MPICH version 8.1.28") == "cray_shasta"
    with pytest.raises(MpifedError, match="needs srun --mpi=pmix, and this Slurm has cray_shasta, none, pmi2; use the"):
        plugin(OPEN_MPI)
    slurm.answer("srun", error="srun: error: Unable to contact\n", code=1)
    assert plugin(OPEN_MPI) == "pmix"  # it does not answer


def test_the_command(nowhere: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def call() -> tuple[int, str]:
        ended = CliRunner().invoke(main, ["doctor", "--srun"])
        return ended.exit_code, ended.output

    monkeypatch.setattr(module, "library", lambda: OPEN_MPI)
    assert call() == (0, "pmix\n")
    monkeypatch.setattr(module, "library", lambda: "something else")
    assert call()[0] == 1 and "export MPIFED_MPI=" in call()[1]
    monkeypatch.setattr(module, "library", lambda: None)
    assert call()[0] == 1 and "no MPI library" in call()[1]
