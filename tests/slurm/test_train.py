"""slurm/train.sbatch on a real Slurm: whatever happens to a job, it comes to the bits of one process alone."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import SCRIPT, Job, command, submit, until

ON_FOUR = ("--nodes=4", "--ntasks-per-node=1")
ON_ONE = ("--nodes=1", "--ntasks-per-node=1")
PAUSE_S = 0.1  # 60 rounds of it are 6 s: time to interrupt a run in its middle

Start = Callable[..., Job]
Make = Callable[..., Path]
Check = Callable[..., None]


def test_four_nodes(start: Start, job: Make, ends_as_expected: Check) -> None:
    done = start(job(), options=ON_FOUR)
    ends_as_expected(done)
    shown = done.show()
    assert (shown["NumNodes"], shown["Restarts"]) == ("4", "0")
    assert '"ranks": 4' in (done.run / "run.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(("launcher", "options"), [("", ON_FOUR), ("srun", ON_ONE)])
def test_a_signal_in_mid_run(
    launcher: str, options: tuple[str, ...], start: Start, job: Make, ends_as_expected: Check
) -> None:
    """As a preemption by a site's own scripts: checkpoint, requeue, resume, without anybody's hand."""
    run = start(job(pause_s=PAUSE_S), options=options, MPIFED_LAUNCHER=launcher)
    run.wait_round(10)
    command("scancel", "--signal=USR1", "--batch", run.number)
    ends_as_expected(run)
    assert run.show()["Restarts"] == "1"
    assert run.text.count("interrupted after round") == 1


@pytest.mark.parametrize("partition", ["debug", "abrupt"])
def test_preempted(partition: str, start: Start, job: Make, ends_as_expected: Check, tmp_path: Path) -> None:
    """By a job that may take the nodes: with a grace time the ranks are signalled, else the job is ended and queued."""
    run = start(job(pause_s=PAUSE_S), options=(*ON_FOUR, f"--partition={partition}"))
    run.wait_round(10)
    urgent = command(
        "sbatch", "--parsable", "--partition=urgent", "--nodes=4", "--ntasks-per-node=2", "--output=/dev/null",
        "--wrap=true", cwd=tmp_path,
    )  # fmt: skip
    ends_as_expected(run)
    assert run.show()["Restarts"] == "1"
    assert run.text.count("interrupted after round") == 1  # in time, either way
    assert Job(urgent, tmp_path / "none", tmp_path).state == "COMPLETED"


def test_time_limits(start: Start, job: Make, ends_as_expected: Check) -> None:
    """Of a minute, side by side: a job that is signalled ahead of it; one that nobody warns, and whose round is longer
    than Slurm waits, which is queued again all the same, and goes on from its checkpoint; and one that never comes to a
    checkpoint, which is ended."""
    options = (*ON_ONE, "--time=1", "--signal=B:USR1@10")
    warned = start(job("warned", pause_s=3.0), options=options, run="warned")
    unwarned = ("--nodes=2", "--ntasks-per-node=1", "--time=1", "--signal=B:CONT@10")
    run = start(job(pause_s=300, pause_from=12), options=unwarned)
    idle = start(job("idle", pause_s=300, always=True), options=unwarned, run="idle", MPIFED_STARTS="1")
    run.wait_round(10)
    jobs = (warned, run, idle)
    until(lambda: {one.show()["Restarts"] for one in jobs} == {"1"}, lambda: "\n".join(map(str, jobs)))
    for one, interrupted in ((warned, 1), (run, 0)):
        ends_as_expected(one)
        assert one.show()["Restarts"] == "1" and one.text.count("interrupted after round") == interrupted, str(one)
    shown = idle.wait_end()
    assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "75:0", "1"), str(idle)
    assert "1 starts in a row have brought no new checkpoint" in idle.text


def test_a_node_that_goes_down(start: Start, job: Make, ends_as_expected: Check) -> None:
    """Slurm itself queues the job again, and it goes on elsewhere."""
    run = start(job(pause_s=PAUSE_S), options=("--nodes=2", "--ntasks-per-node=2"))
    run.wait_round(10)
    command("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    try:
        ends_as_expected(run)
    finally:
        subprocess.run(["scontrol", "update", "nodename=n2", "state=resume"], capture_output=True, timeout=300)
        until(lambda: "idle" in command("sinfo", "--noheader", "--nodes=n2", "--format=%t"), lambda: command("sinfo"))
    assert run.show()["Restarts"] == "1"
    assert "n2" not in command("scontrol", "show", "hostnames", run.show()["NodeList"]).split()


def test_a_rank_that_is_killed(start: Start, job: Make, ends_as_expected: Check) -> None:
    """It is an end with a clear code, for it is often a lack of memory; submitted again, the run goes on."""
    settings = job(pause_s=PAUSE_S, always=True)
    run = start(settings, options=ON_FOUR, SLURM_WAIT="3")
    run.wait_round(10)
    os.kill(run.ranks()[2], signal.SIGKILL)
    shown = run.wait_end()
    assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "137:0", "0"), str(run)
    assert "a rank was killed from outside (code 137)" in run.text
    ends_as_expected(start(settings, options=("--nodes=2", "--ntasks-per-node=1")))


def test_a_cancelled_job_stays_so(start: Start, job: Make, expected: str) -> None:
    run = start(job(pause_s=PAUSE_S), options=ON_FOUR)
    run.wait_round(10)
    command("scancel", run.number)
    shown = run.wait_end()
    assert (shown["JobState"], shown["Restarts"]) == ("CANCELLED", "0"), str(run)


def test_a_start_that_hangs(
    start: Start, job: Make, stand_in: Callable[[str, str], None], ends_as_expected: Check, tmp_path: Path
) -> None:
    """Ranks that do not join in time are ended, and the job is queued again."""
    once = f'[ "$1" = run ] && mkdir {tmp_path}/once 2>/dev/null && exec sleep 300'
    stand_in("mpifed", f'#!/bin/sh\n{once}\nexec {shlex.quote(sys.executable)} -m mpifed "$@"\n')
    run = start(job(), options=("--nodes=2", "--ntasks-per-node=1"), MPIFED_START_S="8")
    ends_as_expected(run)
    assert run.show()["Restarts"] == "1" and "the ranks have not joined within 8 s" in run.text
    assert "MPI could not start its ranks" in run.text
    assert not list(tmp_path.glob("*.joined-*"))


def test_a_run_of_two_jobs(start: Start, job: Make) -> None:
    settings = job(pause_s=PAUSE_S)
    first = start(settings, options=ON_ONE)
    first.wait_round(5)
    second = start(settings, options=ON_ONE)
    shown = second.wait_end()
    assert (shown["JobState"], shown["ExitCode"]) == ("FAILED", "2:0"), str(second)
    assert f"is what job {first.number} is running" in second.text


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, str], tuple[str, ...]]] = {
    # the wrong --mpi makes every rank a world of its own: an error, at once, that says what to do
    "singletons": (
        {}, ON_FOUR, {"MPIFED_LAUNCHER": "srun", "MPIFED_MPI": "none"}, ("do not belong together", "--mpi=pmi2")
    ),
    "a wrong job file": ({"rounds": -1}, ON_FOUR, {}, ("mpifed: error:", "rounds")),
    "another launcher": (
        {}, ON_ONE, {"MPIFED_LAUNCHER": "aprun"}, ("MPIFED_LAUNCHER=aprun: expected srun or mpiexec",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, start: Start, job: Make) -> None:
    """The code is the job's, in the record of finished jobs too."""
    table, options, env, said = REFUSED[name]
    run = start(job(table=table), options=options, **env)
    shown = run.wait_end()
    assert (shown["JobState"], shown["ExitCode"]) == ("FAILED", "2:0"), str(run)
    assert all(words in run.text for words in said) and not (run.run / "run.json").exists(), str(run)
    record = Path(os.environ["SLURM_CONF"]).parent / "jobs.log"
    until(lambda: f"JobId={run.number} " in record.read_text(encoding="utf-8"), lambda: "not recorded")
    (line,) = (x for x in record.read_text(encoding="utf-8").splitlines() if x.startswith(f"JobId={run.number} "))
    assert " ExitCode=2:0" in line and "JobState=FAILED" in line


def test_too_few_arguments(job: Make, tmp_path: Path) -> None:
    short = submit(SCRIPT, tmp_path / "slurm-none.out", tmp_path / "run", job(), options=ON_ONE)
    assert short.wait_end()["ExitCode"] == "2:0" and "usage: sbatch" in short.text
