"""The tutorials, as a reader types them: files are written, commands run in order, in an empty folder.

Where a page submits to Slurm, the job is run here instead; what only a cluster has (srun, pip) is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import ROOT, blocks, commands, launched

from mpifed.files.model_file import read_model
from mpifed.files.run_folder import summary

LEFT_OUT = ("doctor", "explain")  # what this machine is like; nothing that later commands need
WITHOUT_SLURM = str(Path(sys.executable).parent)
Play = Callable[[str], Path]


@pytest.fixture
def play(launch: Callable[..., Any], tmp_path: Path) -> Play:
    """play(name): the folder in which a tutorial has been followed to its end."""
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")

    def mpifed(ranks: int, arguments: list[str]) -> None:
        if arguments[0] in LEFT_OUT:
            return
        if arguments[0] == "submit" and "--dry-run" not in arguments:
            if "--array" in arguments:
                return
            arguments = ["run", arguments[1]]
        env = {"PATH": WITHOUT_SLURM} if arguments[0] == "submit" else {}
        # the bits are the same on any number of ranks; without a launcher, in this process
        ended = launch(min(ranks, 2) or None, *arguments, cwd=tmp_path, env=env)
        assert ended.code == 0, f"mpifed {' '.join(arguments)}\n{ended.text}"
        assert "Traceback" not in ended.text

    def play(name: str) -> Path:
        for block in blocks(ROOT / "docs" / "tutorials" / f"{name}.md"):
            if block.title:
                (tmp_path / block.title).write_text(block.text, encoding="utf-8")
            if block.language == "python":
                ended = launch(0, program=(str(block.title),), cwd=tmp_path, env={"MPLBACKEND": "agg"})
                assert ended.code == 0, ended.text
            for words in commands(block) if block.language == "console" else ():
                if (of_mpifed := launched(words)) is not None:
                    mpifed(*of_mpifed)
        return tmp_path

    return play


def test_train_on_a_csv(play: Play, launch: Callable[..., Any]) -> None:
    folder = play("train-on-a-csv")
    runs = {name: summary(folder / "runs" / name) for name in ("tumours", "falling", "scaffold")}
    assert all(0.95 <= run["test_accuracy"] <= 0.98 for run in runs.values())
    assert 0.006 <= runs["tumours"]["kkt_residual"] <= 0.008  # "0.007"
    assert runs["falling"]["kkt_residual"] < runs["tumours"]["kkt_residual"]
    assert (folder / "tumours.png").exists() and (folder / "objective.png").exists()
    alone = launch(None, "run", "tumours.toml", "--out", "runs/alone", cwd=folder)
    assert alone.code == 0, alone.text
    assert summary(folder / "runs" / "alone")["model_sha256"] == runs["tumours"]["model_sha256"]


def test_write_an_algorithm(play: Play) -> None:
    folder = play("write-an-algorithm")
    runs = [summary(folder / "runs" / name) for name in ("momentum", "momentum-2", "momentum-masked")]
    assert len({run["model_sha256"] for run in runs}) == 1
    assert runs[0]["train_loss"] < 0.25
    own, fedavg = (read_model(folder / "runs" / name / "model.h5") for name in ("momentum", "fedavg-momentum"))
    np.testing.assert_allclose(own["first"], fedavg["first"], atol=1e-5)  # the same minibatches, in another order


def test_a_job_of_ssca(play: Play) -> None:
    folder = play("a-job-of-ssca")
    free, constrained = (summary(folder / "runs" / name) for name in ("ssca", "constrained"))
    assert free["train_loss"] < 0.07 and 0.94 <= free["test_accuracy"] <= 0.97
    assert 0.12 <= constrained["train_loss"] <= 0.13 and constrained["exit"] == 0


def test_submit_to_a_cluster(play: Play) -> None:
    folder = play("submit-to-a-cluster")
    assert summary(folder / "runs" / "cluster")["rounds"] == 300
    assert len(list((folder / "runs" / "sweep").glob("point-*"))) == 6
