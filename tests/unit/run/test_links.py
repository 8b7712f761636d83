"""Folders of runs that others have made: nothing is written, read or removed where a link in them leads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import as_in_a_file, job_table
from written_files import contents, read_json

import mpifed as mf
from mpifed.job.job import read_table
from mpifed.job.sweep import points

FILES = (
    "job.toml", "run.json", "history.csv", "model.safetensors", "clients.csv", "failure.txt", "model.h5",
    "ledger.jsonl", "lock", "lock-held", "mlflow.json", "data.json",
)  # fmt: skip
FOLDERS = ("checkpoint", "audit", "tensorboard", "wandb", "checkpoint/round-00000000", "checkpoint/round-00000009")
WRITTEN = ("run.json", "lock", "model.safetensors", "checkpoint")
WAYS = {"fresh": (), "resume": ("--resume",), "overwrite": ("--overwrite",)}


@pytest.fixture(scope="module")
def interrupted(digits: Path, tmp_path_factory: pytest.TempPathFactory, launch: Any, write_job: Any) -> Path:
    """A job, and the folder `run` beside it of its run, which has a checkpoint."""
    folder = tmp_path_factory.mktemp("interrupted")
    job = write_job(folder / "job.toml", as_in_a_file(job_table(digits, rounds=2, model={"name": "softmax"})))
    ended = launch(None, "run", job, "--out", folder / "run", "--max-hours", 0)
    assert ended.code == 75, ended.text
    return folder


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "resume") for name in (*FILES, *FOLDERS)),
        *((name, way) for name in WRITTEN for way in ("fresh", "overwrite")),
    ],
)
def test_a_link_at_a_name_that_a_run_writes_is_refused(
    name: str, way: str, interrupted: Path, tmp_path: Path, launch: Callable[..., Any]
) -> None:
    out, victim = tmp_path / "run", tmp_path / "victim"
    if way == "fresh":
        out.mkdir()
    else:
        shutil.copytree(interrupted / "run", out)
    path = out / name
    path.parent.mkdir(exist_ok=True)
    if name in FOLDERS:
        shutil.copytree(interrupted / "run/checkpoint", victim)
    else:
        shutil.copyfile(path if path.exists() else interrupted / "job.toml", victim)
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(victim)
    before = contents(tmp_path)
    ended = launch(None, "run", interrupted / "job.toml", "--out", out, *WAYS[way])
    assert ended.code == 2 and f"{path}: is a link" in ended.err and contents(tmp_path) == before, ended.text
    path.unlink()
    if name in ("checkpoint", "tensorboard", "model.safetensors"):  # the run is as good as it was
        ended = launch(None, "run", interrupted / "job.toml", "--out", out, *WAYS[way])
        assert ended.code == 0 and read_json(out / "run.json")["rounds"] == 2, ended.text


@pytest.mark.parametrize("name", ["sweep.csv", "point"])
def test_so_it_is_in_the_folder_of_a_sweep(
    name: str, interrupted: Path, tmp_path: Path, launch: Callable[..., Any], digits: Path
) -> None:
    (tmp_path / "sweep").mkdir()
    job, of_python = interrupted / "job.toml", name == "sweep.csv"
    if name == "point":
        name = points(read_table(job, ["sweep.seeds=2"]), "job")[1].name
    (tmp_path / "sweep" / name).symlink_to(tmp_path / "victim")
    before = contents(tmp_path)
    ended = launch(None, "run", job, "--set", "sweep.seeds=2", "--out", tmp_path / "sweep")
    assert ended.code == 2 and f"{name}: is a link" in ended.err, ended.text
    if of_python:
        with pytest.raises(mf.UsageError, match=f"{name}: is a link"):
            mf.sweep({"a": mf.SSCA(batch_size=4)}, digits, mf.Softmax(), rounds=1, seeds=2, out=tmp_path / "sweep")
    assert contents(tmp_path) == before


def test_an_audit_writes_through_none_and_nothing_is_read(
    interrupted: Path, tmp_path: Path, launch: Callable[..., Any]
) -> None:
    out, victim = tmp_path / "run", tmp_path / "victim"
    assert launch(None, "run", interrupted / "job.toml", "--out", out).code == 0
    victim.mkdir()
    (out / "audit").symlink_to(victim)
    ended = launch(None, "audit", out)
    assert ended.code == 2 and f"{out / 'audit'}: is a link" in ended.err and not contents(victim), ended.text
    (out / "audit").unlink()
    assert launch(None, "audit", out).code == 71
    assert {"report.json", "report.txt", "RAW-DATA.txt"} <= contents(out / "audit").keys() and not contents(victim)
    (out / "data.json").rename(victim / "data.json")
    (out / "data.json").symlink_to(victim / "data.json")
    with pytest.raises(mf.DataError, match=r"data\.json: is a link"):
        mf.load(out).predict(np.zeros((1, 64), "f4"))
