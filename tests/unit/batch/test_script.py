"""What the batch script calls, by hand and as `mpifed submit` gives it, and which word `srun --mpi=` needs."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from mpifed.batch import plugin as module
from mpifed.batch.submit import SCRIPT
from mpifed.cli import main
from mpifed.job.reading import read_table
from mpifed.job.sweep import points

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


STAND_INS = {
    "srun": '#!/bin/bash\nwhile [ "${1#-}" != "$1" ]; do shift; done\nSLURM_LOCALID=0 exec "$@"\n',
    "mpifed": "#!/bin/bash\nprintf '%s\\0' \"$@\" >>\"$CALLS\"; printf '\\n' >>\"$CALLS\"\n"
              '[ "$1" != doctor ] || echo pmi2\n',
    "squeue": "#!/bin/sh\n", "scontrol": "#!/bin/sh\n",
    "sleep": "#!/bin/sh\nexec /bin/sleep 0.05\n",  # between two looks at whether the ranks have joined
}  # fmt: skip
GPU = {"SLURM_GPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0"}
TASK = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}


@pytest.mark.parametrize("options", [None, [], ["--gpus-per-task=1", "--partition=gpu"], ["--array"]])
@pytest.mark.parametrize("gpu", [{}, GPU])
def test_by_hand_and_as_submitted(
    options: list[str] | None, gpu: dict[str, str], slurm: Any, job: Callable[..., Path], tmp_path: Path
) -> None:
    """mpifed's own parser and job check take it."""
    path = job(sweep={"seeds": 2}) if options == ["--array"] else job()
    arguments, known = [str(path), "my runs/a", "--set", "rounds=9"], dict[str, str]()
    if options is not None:
        words = ["submit", str(path), "--time=30", "--set", "rounds=9", "--out", "my runs/a", "--dry-run", *options]
        given = shlex.split(CliRunner().invoke(main, words).stdout)
        known = dict(word.split("=", 1) for word in given if word.startswith("MPIFED_POINTS="))
        arguments = given[next(at for at, word in enumerate(given) if word.endswith("train.sbatch")) + 1 :]
    (folder := tmp_path / "stand-ins").mkdir()
    for name, text in STAND_INS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls"), "MPIFED_LAUNCHER": "srun"}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", **gpu, **known, **(TASK if known else {})}
    done = subprocess.run(["/bin/bash", str(SCRIPT), *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    called = [line.rstrip("\0").split("\0") for line in (tmp_path / "calls").read_text().splitlines()]
    assert [words[0] for words in called] == ["doctor", "run"]
    run = main.get_command(click.Context(main), "run")
    assert run is not None and "--resume" in called[1]
    values = run.make_context("run", called[1][1:]).params
    found = points(read_table(values["job"], values["changes"]), str(values["job"]))
    assert (values["out"], found[0].job.rounds) == (Path("my runs/a"), 9)
    assert found[0].job.compute.device == ("cuda" if gpu else "cpu")
    assert values["point"] == (found[1].name if known else None)


def test_without_what_the_job_needs(tmp_path: Path) -> None:
    """Where a job begins without the environment of whoever submitted it."""
    environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "HOME": str(tmp_path)}
    done = subprocess.run(["/bin/bash", SCRIPT, "job.toml", "a"], env=environment, capture_output=True, text=True)
    assert done.returncode == 127 and "no mpifed on PATH" in done.stderr and "source" in done.stderr
