"""A checkpoint is on the disk before it has its name, and its name before the run goes on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import job_table
from launching import environment

LISTENING = """
import atexit, json, os, sys

done = []


def heard(name, act):
    def call(first, *others, **named):
        path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else os.path.abspath(first)
        size = os.stat(path).st_size if os.path.isfile(path) else None
        result = act(first, *others, **named)
        done.append([name, path, size, *map(os.path.abspath, others)])
        return result

    return call


for name in ("fsync", "rename", "replace"):
    setattr(os, name, heard(name, getattr(os, name)))
atexit.register(lambda: json.dump(done, open("done.json", "w")))
from mpifed.cli import main

main(sys.argv[1:])
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux says which file is synced")
def test_write_sync_rename_sync(tmp_path: Path, classes: Path, write_job: Callable[..., Path]) -> None:
    """Two checkpoints of a method whose clients keep states, by the calls that reach the operating system."""
    algorithm = {"name": "scaffold", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}}
    record = {"checkpoint_every": 1, "evaluate_every": 2}
    job = write_job(tmp_path / "job.toml", job_table(classes, rounds=2, algorithm=algorithm, record=record))
    command = [sys.executable, "-c", LISTENING, "run", str(job), "--out", "run"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment({}), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    done: list[list[Any]] = json.loads(
        re.sub(r"\.(manifest\.json)\.\w+\.new", r"\1.part", (tmp_path / "done.json").read_text())
    )

    for number in (1, 2):
        final = tmp_path.resolve() / "run" / "checkpoint" / f"round-{number:08d}"
        aside, sizes = f"{final}.new", {path.name: path.stat().st_size for path in final.iterdir()}
        clients = f"clients-{number:08d}-00000.states"
        first = next(i for i, (_, path, *_) in enumerate(done) if path.startswith(aside))
        assert done[first : first + 7] == [
            ["fsync", f"{aside}/server.states", sizes["server.states"]],  # all of it has been written by then
            ["fsync", f"{aside}/{clients}", sizes[clients]],
            ["fsync", f"{aside}/manifest.json.part", sizes["manifest.json"]],
            ["replace", f"{aside}/manifest.json.part", sizes["manifest.json"], f"{aside}/manifest.json"],
            ["fsync", aside, None],  # the names in it
            ["rename", aside, None, str(final)],
            ["fsync", str(final.parent), None],
        ]
        assert done[first - 1][:2] == ["fsync", str(tmp_path.resolve() / "run" / "history.csv")]  # its rows, before
