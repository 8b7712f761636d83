"""Every job is one, and the examples beside them run as the documents say."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifed.files.history import read_history
from mpifed.files.model_file import read_model
from mpifed.files.run_folder import summary
from mpifed.job.job import read_table
from mpifed.job.sweep import points

pytestmark = pytest.mark.docs

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "jobs" / "examples"


JOBS = [path for path in sorted((ROOT / "jobs").rglob("*.toml")) if path.stem != "own_jax" or find_spec("jax")]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_every_job_is_a_job(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    assert all(point.job.rounds > 0 for point in points(read_table(path), str(path)))


def test_an_objective_of_ones_own(launch: Callable[..., Any], regression: Path, tmp_path: Path) -> None:
    run_example(launch, "own_objective.toml", regression, tmp_path, ranks=2)
    losses = read_history(tmp_path / "run")["train_loss"]
    assert losses[-1] < 0.05 * losses[0]


def test_an_algorithm_of_ones_own(launch: Callable[..., Any], digits: Path, tmp_path: Path) -> None:
    run_example(launch, "own_algorithm.toml", digits, tmp_path, ranks=2)
    losses = read_history(tmp_path / "run")["train_loss"]
    assert losses[-1] < 0.2 * losses[0]


def test_local_steps_written_out(launch: Callable[..., Any], digits: Path, tmp_path: Path) -> None:
    """Learning rates, penalties, weight decay and the prox are those of FedAvg, which draws the same rows."""
    models = []
    for name in ("jobs.examples.own_local_steps:LocalSteps", "fedavg"):
        run_example(launch, "own_local_steps.toml", digits, tmp_path / name, f"algorithm.name={name}")
        models.append(read_model(tmp_path / name / "run" / "model.safetensors"))
    assert all(np.abs(leaf).max() > 0.1 for leaf in models[0].values())
    for name, leaf in models[0].items():
        np.testing.assert_allclose(leaf, models[1][name], atol=1e-5)  # float32, in another order
    changes = ["--set", f"data.path={digits}", "--set", "client_optimizer.momentum=0.5"]
    ended = launch(None, "run", EXAMPLES / "own_local_steps.toml", *changes, cwd=ROOT)
    assert (ended.code, "the clients of this method take plain steps" in ended.text) == (2, True), ended.text


@pytest.mark.parametrize(
    ("job", "data"), [("encrypted", "sides"), pytest.param("masked", "digits", marks=pytest.mark.long)]
)
def test_the_channels_have_the_bits_of_the_plain_one(
    job: str, data: str, launch: Callable[..., Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    settings = (f"data.path={request.getfixturevalue(data)}", "rounds=6", "record.evaluate_every=2")
    changes = [word for setting in settings for word in ("--set", setting)]
    found = []
    for ranks, channel in ((3, job), (None, "plain")):
        out = tmp_path / channel
        sums = ["--set", f"aggregation.security={channel}"]
        ended = launch(ranks, "run", EXAMPLES / f"{job}.toml", *changes, *sums, "--out", out, cwd=ROOT)
        assert ended.code == 0, ended.text
        found.append(summary(out))
    assert found[0]["model_sha256"] == found[1]["model_sha256"]
    assert found[0]["train_loss"] == found[1]["train_loss"]


def test_a_script(launch: Callable[..., Any], digits: Path, tmp_path: Path) -> None:
    ended = launch(0, digits, tmp_path / "run", program=(str(EXAMPLES / "script.py"),))
    assert ended.code == 0, ended.text
    found = summary(tmp_path / "run")
    assert found["rounds"] == 100
    assert f"accuracy {found['test_accuracy']}" in ended.out


def run_example(
    launch: Callable[..., Any], job: str, data: Path, folder: Path, *more: str, ranks: int | None = None
) -> None:
    """Run an example from the top folder; on 2 ranks, as its header says, or in this process."""
    changes = ["--set", f"data.path={data}", "--set", "algorithm.batch_size=10"]
    changes += [word for change in more for word in ("--set", change)]
    ended = launch(ranks, "run", str(EXAMPLES / job), *changes, "--out", str(folder / "run"), cwd=ROOT)
    assert ended.code == 0, ended.text


def test_fedexp_is_ahead_of_fedavg_where_its_paper_says_so(launch: Callable[..., Any]) -> None:
    ended = launch(0, program=(str(ROOT / "jobs/methods/published.py"), "fedexp"))
    assert ended.code == 0, ended.err
