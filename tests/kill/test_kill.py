"""SIGKILL at any moment, and disks that fail: nothing is ever unreadable, and what is resumed has the same bits."""

from __future__ import annotations

import errno
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import pytest
from disturbed import FAULTS, TASKS, assert_readable, end_before_step, fail_from, forked, play
from ended import same_runs
from launching import end_all, environment, mpiexec

from mpifed.job.sweep import points
from mpifed.run.api import run
from mpifed.run.launch import guarded
from mpifed.testing import Solo

pytestmark = [pytest.mark.kill, pytest.mark.launch, pytest.mark.timeout(3600)]
ROUNDS, FORKED_ROUNDS = 8, 3


def table_of(name: str, request: pytest.FixtureRequest, rounds: int) -> dict[str, Any]:
    task = TASKS[name]
    return task.table(request.getfixturevalue(task.data), rounds)


def resumed(table: dict[str, Any], out: Path) -> None:
    """What is left is resumed, to the bits of the run beside it that nobody disturbed."""
    assert forked(lambda: play(table, out, resume=True)) == 0, out.name
    same_runs(out, out.with_name("whole"))


def wait_for(process: subprocess.Popen[Any], path: Path, before: int) -> None:
    """Until a file is written anew, or the process has ended."""
    while process.poll() is None and written(path) == before:
        time.sleep(0.002)


def written(path: Path) -> int:
    """When a file was written, in ns; 0 if it never was."""
    return path.stat().st_mtime_ns if path.exists() else 0


def started(ranks: int, job: Path, out: Path, said: IO[bytes]) -> subprocess.Popen[Any]:
    """`mpifed run JOB --out RUN --resume`, as a requeued batch job is started; `said` is a file for its errors."""
    command = [mpiexec(), "-n", str(ranks), sys.executable, "-m", "mpifed", "run", str(job), "--out", str(out)]
    return subprocess.Popen(
        [*command, "--resume"], env=environment({}), stdout=subprocess.DEVNULL, stderr=said, start_new_session=True,
    )  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_launches_killed_at_random_moments(
    task: str, request: pytest.FixtureRequest, tmp_path: Path, write_job: Any
) -> None:
    """Ranks and launcher die together, and the job is requeued: on 2 ranks, now and then on 1 or 3."""
    table, rng = table_of(task, request, ROUNDS), random.Random(task)
    job, out = write_job(tmp_path / "job.toml", table), tmp_path / "run"
    assert forked(lambda: play(table, tmp_path / "whole")) == 0
    moments = list[float]()
    with open(tmp_path / "said", "w+b") as said:

        def ended_well(process: subprocess.Popen[Any]) -> None:
            assert process.wait() == 0, (said.seek(0), said.read().decode())
            same_runs(out, tmp_path / "whole")
            shutil.rmtree(out)  # and once more from the start

        begun = time.monotonic()
        process = started(2, job, out, said)
        wait_for(process, out / "run.json", 0)
        first_round_s = time.monotonic() - begun
        ended_well(process)
        rounds_s = time.monotonic() - begun - first_round_s
        while len(moments) < TASKS[task].launches:
            before = written(out / "run.json")  # when it is written again, rounds are played
            process, at_start = started(rng.choice([2, 2, 2, 1, 3]), job, out, said), rng.random() < 0.3
            if not at_start:
                wait_for(process, out / "run.json", before)
            moment = rng.uniform(0.1, 1) * first_round_s if at_start else rng.uniform(0, 0.5) * rounds_s
            try:
                process.wait(timeout=moment)
            except subprocess.TimeoutExpired:
                end_all(process)
                moments.append(moment)
                assert_readable(out)
            else:
                ended_well(process)
        ended_well(started(2, job, out, said))
    print(f"{task}: killed after {moments} s")


@pytest.mark.parametrize("task", TASKS)
def test_killed_before_every_step_on_the_disk(task: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Each rename, sync, link and removal of a run, and of its resumption, is once what no more happens."""
    table, every = table_of(task, request, FORKED_ROUNDS), TASKS[task].every
    play(table, tmp_path / "whole")  # in this process, so that its copies have loaded everything

    def ended(out: Path, number: int, resume: bool = False) -> None:
        end_before_step(number)
        play(table, out, resume)

    hit, number = 0, 1
    while (code := forked(lambda: ended(tmp_path / f"run-{number}", number))) != 0:  # noqa: B023
        assert code == -signal.SIGKILL
        out = tmp_path / f"run-{number}"
        hit += 1
        assert_readable(out)
        if hit % 4 == 0:  # killed again while it is resumed
            forked(lambda: ended(out, number // 2 + 1, resume=True))  # noqa: B023
            assert_readable(out)
        resumed(table, out)
        shutil.rmtree(out)
        number += every
    assert hit > 30 // every


@pytest.mark.parametrize("gone", ["model.safetensors", "run.json", "job.toml"])
def test_killed_while_an_ended_run_is_mended(gone: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Before every step on the disk of the resumption that writes again what is gone."""
    table = table_of("control variates", request, FORKED_ROUNDS)
    play(table, tmp_path / "whole")
    code, number = -signal.SIGKILL, 0
    while code == -signal.SIGKILL:
        number += 1
        out = shutil.copytree(tmp_path / "whole", tmp_path / f"run-{number}")
        (out / gone).unlink()

        def ended(number: int = number, out: Path = out) -> None:
            end_before_step(number)
            play(table, out, resume=True)

        code = forked(ended)
        resumed(table, out)
        assert {path.name for path in out.glob("[!.]*")} == {path.name for path in (tmp_path / "whole").iterdir()}
    assert code == 0 and number > 4


TRIED = [*((task, errno.EIO) for task in TASKS), *(("private", fault) for fault in FAULTS if fault != errno.EIO)]


@pytest.mark.parametrize(("task", "fault"), TRIED, ids=lambda given: errno.errorcode.get(given, given))
def test_a_disk_that_fails_from_any_step_on(
    task: str, fault: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each write, sync, link and new folder of a run is once what fails first: one message, exit code 3."""
    table, out = table_of(task, request, FORKED_ROUNDS), tmp_path / "run"
    play(table, tmp_path / "whole")

    def ended(number: int) -> None:
        with open(tmp_path / "said", "w") as sys.stderr:
            fail_from(number, fault, out)
            guarded(Solo(), out, lambda: run(points(table, "job")[0].job, Solo(), out))

    number, hit = 1, 0
    while (code := forked(lambda: ended(number))) != 0:  # noqa: B023
        hit += 1
        words = (tmp_path / "said").read_text()
        assert (code, words.count("mpifed: error: "), words.count("\n")) == (3, 1, 1), (number, words)
        resumed(table, out)
        shutil.rmtree(out)
        number += 13 if number > 10 else 4
    assert hit >= 4
