"""Disks that fail at any moment: one message, exit code 3, nothing lost, and the bits of an undisturbed run at last."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from failing import KINDS, fail_from
from killed import TASKS, assert_same, forked, play
from test_kill import data_of

from mpifed.job.sweep import points
from mpifed.run.api import run
from mpifed.run.launch import guarded
from mpifed.testing import Solo

pytestmark = [pytest.mark.kill, pytest.mark.launch]
ROUNDS = 3


def said(out: Path, work: Callable[[], Any]) -> tuple[int, str]:
    """The exit code, and what is said, of a copy of this process that does some work as `mpifed run` does."""
    words = out.parent / "said"

    def guard() -> None:
        with open(words, "w") as file:
            sys.stderr = file
            guarded(Solo(), out, work)

    def ended() -> None:
        try:
            guard()
        except SystemExit as end:
            os._exit(int(end.code or 0))

    return forked(ended), words.read_text()


TRIED = [*((task, errno.EIO) for task in TASKS), *(("private", kind) for kind in KINDS)]


@pytest.mark.parametrize(("task", "kind"), dict.fromkeys(TRIED), ids=lambda given: errno.errorcode.get(given, given))
def test_a_disk_that_fails_from_any_step_on(
    task: str, kind: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each write, sync, link and new folder of a run is once what fails first."""
    job = points(TASKS[task].table(data_of(task, request), ROUNDS), "job")[0].job
    play(job.table(), tmp_path / "whole")
    number, hit = 1, 0
    while True:
        out = tmp_path / "run"

        def work(number: int = number, out: Path = out) -> None:
            fail_from(number, kind, str(out))
            run(job, Solo(), out)

        code, words = said(out, work)
        if code == 0:
            break
        hit += 1
        assert code == 3, (number, words)
        assert words.count("mpifed: error: ") == 1, words
        assert words.count("\n") == 1, words
        assert forked(lambda: play(job.table(), tmp_path / "run", resume=True)) == 0, number
        assert_same(out, tmp_path / "whole")
        shutil.rmtree(out)
        number += 13 if number > 10 else 4
    print(f"{task}, {errno.errorcode[kind]}: {hit} faults")
    assert hit >= 4
