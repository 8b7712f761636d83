"""What the batch scripts call, by hand and as `mpifed submit` gives them: mpifed's own parser and job check take it."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from pretended import Slurm

from mpifed.batch import submit
from mpifed.cli import main
from mpifed.job.reading import read_table
from mpifed.job.sweep import points

SCRIPT = Path(__file__).parents[3] / "slurm" / "train.sbatch"
SRUN = """#!/bin/bash
while [ "${1#-}" != "$1" ]; do shift; done
SLURM_LOCALID=0 exec "$@"
"""
MPIFED = """#!/bin/bash
printf '%s\\0' "$@" >>"$CALLS"; printf '\\n' >>"$CALLS"
[ "$1" != doctor ] || echo pmi2
"""
SLEEP = "#!/bin/sh\nexec /bin/sleep 0.05\n"  # between two looks at whether the ranks have joined
GPU = {"SLURM_GPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0"}
TASK = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}


@pytest.fixture
def calls(tmp_path: Path) -> Callable[..., list[list[str]]]:
    """calls(script, *arguments, **variables): the arguments of every mpifed that a batch script has called."""
    folder, told = tmp_path / "stand-ins", tmp_path / "calls"
    folder.mkdir()
    for name, text in {
        "srun": SRUN,
        "mpifed": MPIFED,
        "squeue": "#!/bin/sh\n",
        "scontrol": "#!/bin/sh\n",
        "sleep": SLEEP,
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "CALLS": str(told), "MPIFED_LAUNCHER": "srun"}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}

    def calls(script: Path, *arguments: str, **variables: str) -> list[list[str]]:
        told.unlink(missing_ok=True)
        done = subprocess.run(
            ["/bin/bash", str(script), *arguments], env=environment | variables, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [line.rstrip("\0").split("\0") for line in told.read_text().splitlines()]

    return calls


def check(words: list[str]) -> None:
    """As click reads a command line, and as the run reads its job."""
    name, *arguments = words
    command = main.get_command(click.Context(main), name)
    assert command is not None
    values = command.make_context(name, arguments).params
    if name == "run":
        found = points(read_table(values["job"], values["changes"]), str(values["job"]))
        assert values["point"] is None or values["point"] in [point.name for point in found]


@pytest.mark.parametrize(
    ("variables", "device"),
    [({}, "cpu"), (GPU, "cuda"), (TASK, "cpu"), (TASK | GPU, "cuda")],
)
def test_by_hand(
    variables: dict[str, str], device: str, calls: Callable[..., list[list[str]]], job: Callable[..., Path]
) -> None:
    path = job()
    if TASK.keys() <= variables.keys():
        path = job(sweep={"seeds": 2})
        names = [point.name.removeprefix("point-") for point in points(read_table(path), "job")]
        variables = {**variables, "MPIFED_POINTS": " ".join(names)}
    called = calls(SCRIPT, str(path), "runs/a", "--set", "rounds=9", **variables)
    assert [words[0] for words in called] == ["doctor", "run"]
    for words in called:
        check(words)
    changes = tuple(after for word, after in zip(called[1], called[1][1:], strict=False) if word == "--set")
    found = points(read_table(path, changes), "job")[0].job
    assert found.rounds == 9 and found.compute.device == device
    assert called[1][1:4] == [str(path), "--out", "runs/a"] and "--resume" in called[1]


@pytest.mark.parametrize(
    ("options", "variables"),
    [([], {}), (["--gpus-per-task=1", "--partition=gpu"], GPU), (["--array"], TASK)],
)
def test_as_submitted(
    options: list[str], variables: dict[str, str], slurm: Slurm, job: Callable[..., Path],
    calls: Callable[..., list[list[str]]],
) -> None:  # fmt: skip
    path = job(sweep={"seeds": 2}) if "--array" in options else job()
    words = ["submit", str(path), "--time=30", "--set", "name='a b'", "--out", "my runs/a", "--dry-run"]
    done = CliRunner().invoke(main, [*words, *options])
    assert done.exit_code == 0, done.output
    given = shlex.split(done.stdout)
    known = dict(word.split("=", 1) for word in given if word.startswith("MPIFED_POINTS="))
    called = calls(SCRIPT, *given[given.index(str(Path(submit.SCRIPT))) + 1 :], **variables, **known)
    assert [words[0] for words in called] == ["doctor", "run"]
    for words in called:
        check(words)


def test_without_what_the_job_needs(tmp_path: Path) -> None:
    """Where a job begins without the environment of whoever submitted it."""
    environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "HOME": os.environ["HOME"]}
    done = subprocess.run(
        ["/bin/bash", str(SCRIPT), "job.toml", "a"], env=environment, cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 127 and "no mpifed on PATH" in done.stderr and "source" in done.stderr
