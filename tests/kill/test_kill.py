"""SIGKILL at any moment: nothing is ever unreadable, and what is resumed has the bits of the uninterrupted run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import pytest
from killed import TASKS, assert_readable, assert_same, end_before_step, forked, play
from launching import end_all, environment, mpiexec

pytestmark = [pytest.mark.kill, pytest.mark.launch]
KILLS = int(os.environ.get("MPIFED_KILLS", "24"))  # of launches, over all tasks
ROUNDS = 8
FORKED_ROUNDS = 3


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def data_of(name: str, request: pytest.FixtureRequest) -> Path:
    """The data of a task."""
    path: Path = request.getfixturevalue("halves" if name == "last answers" else "packed")
    return path


def written(path: Path) -> int:
    """When a file was written, in ns; 0 if it never was."""
    return path.stat().st_mtime_ns if path.exists() else 0


def wait_for(process: subprocess.Popen[Any], path: Path, before: int = 0) -> None:
    """Until a file is written anew, or the process has ended."""
    while process.poll() is None and written(path) == before:
        time.sleep(0.002)


def started(ranks: int, job: Path, out: Path, said: IO[bytes]) -> subprocess.Popen[Any]:
    """`mpifed run JOB --out RUN --resume`, as a requeued batch job is started; `said` is a file for its errors."""
    command = [mpiexec(), "-n", str(ranks), sys.executable, "-m", "mpifed", "run", str(job), "--out", str(out)]
    return subprocess.Popen(
        [*command, "--resume"], env=environment({}), stdout=subprocess.DEVNULL, stderr=said, start_new_session=True,
    )  # fmt: skip


@pytest.mark.timeout(3600)
def test_launches_killed_at_random_moments(
    task: str, request: pytest.FixtureRequest, tmp_path: Path, write_job: Any
) -> None:
    """Ranks and launcher die together, and the job is requeued: on 2 ranks, now and then on 1 or 3."""
    table = TASKS[task].table(data_of(task, request), ROUNDS)
    job, rng = write_job(tmp_path / "job.toml", table), random.Random(task)
    assert forked(lambda: play(table, tmp_path / "whole")) == 0
    kills, out, moments = 0, tmp_path / "run", list[str]()
    with open(tmp_path / "said", "w+b") as said:

        def ended_well(process: subprocess.Popen[Any]) -> None:
            assert process.wait() == 0, (said.seek(0), said.read().decode())
            assert_same(out, tmp_path / "whole")
            shutil.rmtree(out)  # and once more from the start

        begun = time.monotonic()
        process = started(2, job, out, said)
        wait_for(process, out / "run.json")
        first_round_s = time.monotonic() - begun
        ended_well(process)
        rounds_s = time.monotonic() - begun - first_round_s
        while kills < max(-(-KILLS // len(TASKS)), TASKS[task].kills):
            before = written(out / "run.json")  # when it is written again, rounds are played
            process, at_start = started(rng.choice([2, 2, 2, 1, 3]), job, out, said), rng.random() < 0.3
            if not at_start:
                wait_for(process, out / "run.json", before)
            moment = rng.uniform(0.1, 1) * first_round_s if at_start else rng.uniform(0, 0.5) * rounds_s
            try:
                process.wait(timeout=moment)
            except subprocess.TimeoutExpired:
                end_all(process)
                kills += 1
                rounds = sorted(path.name[-8:] for path in out.glob("checkpoint/round-*[0-9]"))
                moments.append(f"{moment:.2f} s{'' if at_start else ' on'}: {int(rounds[-1]) if rounds else '-'}")
                assert_readable(out)
            else:
                ended_well(process)
        ended_well(started(2, job, out, said))
    print(f"{task}: killed after (and at which checkpoint): {', '.join(moments)}")


@pytest.mark.timeout(3600)
def test_killed_before_every_step_on_the_disk(task: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Each rename, sync, link and removal of a run, and of its resumption, is once what no more happens."""
    table = TASKS[task].table(data_of(task, request), FORKED_ROUNDS)
    play(table, tmp_path / "whole")  # in this process, so that its copies have loaded everything
    hit, number, every = 0, 1, {"private": 2, "states out of core": 2, "encrypted": 9}.get(task, 5)
    while True:
        out = tmp_path / f"run-{number}"

        def ended(number: int = number, out: Path = out) -> None:
            end_before_step(number)
            play(table, out)

        code = forked(ended)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        hit += 1
        assert_readable(out)
        if hit % 4 == 0:  # killed again while it is resumed

            def again(number: int = number, out: Path = out) -> None:
                end_before_step(number // 2 + 1)
                play(table, out, resume=True)

            forked(again)
            assert_readable(out)
        assert forked(lambda out=out: play(table, out, resume=True)) == 0, number
        assert_same(out, tmp_path / "whole")
        shutil.rmtree(out)
        number += every
    assert hit > 30 // every


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("gone", ["model.safetensors", "run.json", "job.toml"])
def test_killed_while_an_ended_run_is_mended(gone: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Before every step on the disk of the resumption that writes again what is gone."""
    table = TASKS["control variates"].table(data_of("control variates", request), FORKED_ROUNDS)
    play(table, tmp_path / "whole")
    number = 1
    while True:
        out = shutil.copytree(tmp_path / "whole", tmp_path / f"run-{number}")
        (out / gone).unlink()

        def ended(number: int = number, out: Path = out) -> None:
            end_before_step(number)
            play(table, out, resume=True)

        code = forked(ended)
        assert forked(lambda out=out: play(table, out, resume=True)) == 0, number
        assert_same(out, tmp_path / "whole")
        assert {path.name for path in out.glob("[!.]*")} == {path.name for path in (tmp_path / "whole").iterdir()}
        if code == 0:
            break
        assert code == -signal.SIGKILL
        number += 1
    assert number > 4
