"""`mpifed check` says the bytes that a run then counts: of every algorithm of the registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ended import run
from forecasts import forecast
from lengths import long_unless
from methods import PEOPLE_BY_CHANCE
from registry import CASES, FEW, NAMES, table

from mpifed.comm.mpi import Solo
from mpifed.files.json_file import read_json
from mpifed.job.job import Job

# but for clients who take part by coins of their own: how many will is known to nobody
BY_NAME = {name: case for name, case in zip(NAMES, CASES, strict=True) if case.tables is not PEOPLE_BY_CHANCE}
FOLDERS = {"rows": "digits", "columns": "scattered", "halves": "halves", "cells": "patches"}


@pytest.mark.parametrize("name", long_unless(lambda name: name in FEW, [(name,) for name in BY_NAME]))
def test_bytes_before_and_after(
    name: str, request: pytest.FixtureRequest, write_job: Callable[..., Path], tmp_path: Path
) -> None:
    case = BY_NAME[name]
    folder = request.getfixturevalue(FOLDERS[case.split])
    path = write_job(tmp_path / "job.toml", table(folder, case.algorithm, **case.tables))
    found = forecast(path, (), 1)
    run(Job.read(path), Solo(), tmp_path / "run")
    counted = read_json(tmp_path / "run" / "run.json")
    assert (found["up_bytes"], found["down_bytes"]) == (counted["up_bytes"], counted["down_bytes"])
