"""What the tutorials say of what their readers get; that of PyTorch is in tests/models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lengths import long_unless
from tutorials import Play, play
from written_files import points_of

from mpifed.files.model_file import read_model
from mpifed.files.run_folder import summary

pytestmark = pytest.mark.docs

__all__ = ["play"]  # a fixture


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


@pytest.mark.parametrize("ranks", long_unless(lambda ranks: ranks == 0, (0, 2)))
def test_compare_in_python(ranks: int, play: Play, launch: Callable[..., Any]) -> None:
    pytest.importorskip("pandas")
    folder = play("compare-in-python")
    runs = {point.name: summary(point) for point in sorted((folder / "runs/compare").glob("point-*"))}
    assert len(runs) == 12 and all(0.85 <= run["test_accuracy"] <= 1 for run in runs.values())
    assert (folder / "compare.pdf").exists() and (folder / "compare.png").exists()
    assert summary(folder / "runs/by-file")["rounds"] == 100
    if not ranks:
        return
    again = launch(ranks, program=("compare.py",), cwd=folder, env={"MPLBACKEND": "agg"})
    assert again.code == 0, again.text
    hashes = {name: summary(folder / "runs/compare" / name)["model_sha256"] for name in runs}
    assert hashes == {name: run["model_sha256"] for name, run in runs.items()}


def test_which_method(play: Play) -> None:
    folder = play("which-method")
    pandas = pytest.importorskip("pandas")
    histories = [pandas.read_csv(points_of(folder / "runs/which")[point] / "history.csv") for point in (0, 8)]
    fedavg, scaffold = (int((history["test_accuracy"] >= 0.9).idxmax()) for history in histories)
    assert 2 * scaffold <= fedavg
    assert (folder / "which.svg").exists()


def test_write_an_algorithm(play: Play) -> None:
    folder = play("write-an-algorithm")
    drawn, free, masked = (summary(folder / "runs" / name) for name in ("inertia", "no-inertia", "inertia-masked"))
    assert drawn["model_sha256"] == masked["model_sha256"] != free["model_sha256"]
    assert max(drawn["train_loss"], free["train_loss"]) < 0.5
    runs = [summary(folder / "runs" / name) for name in ("momentum", "momentum-2", "momentum-masked")]
    assert len({run["model_sha256"] for run in runs}) == 1
    assert runs[0]["train_loss"] < 0.25
    own, fedavg = (read_model(folder / "runs" / name / "model.safetensors") for name in ("momentum", "fedavg-momentum"))
    np.testing.assert_allclose(own["first"], fedavg["first"], atol=1e-5)  # the same minibatches, in another order


def test_a_job_of_ssca(play: Play) -> None:
    folder = play("a-job-of-ssca")
    free, constrained = (summary(folder / "runs" / name) for name in ("ssca", "constrained"))
    assert free["train_loss"] < 0.07 and 0.94 <= free["test_accuracy"] <= 0.97
    assert 0.12 <= constrained["train_loss"] <= 0.13 and constrained["exit"] == 0


def test_submit_to_a_cluster(play: Play) -> None:
    folder = play("submit-to-a-cluster", {"sweep.toml": "rounds=20"})
    assert summary(folder / "runs" / "cluster")["rounds"] == 300
    assert len(list((folder / "runs" / "sweep").glob("point-*"))) == 6
