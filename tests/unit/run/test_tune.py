"""`tune`: Sobol points, successive halving by resuming, the same trials whoever runs them."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from jobs_in_python import job_table
from scipy.stats import qmc

import mpifed as mf
from mpifed.files.run_folder import summary

SPACE = {"client_optimizer.learning_rate": {"log": [0.001, 10.0]}, "algorithm.batch_size": [2, 4, 8]}
Launch = Callable[..., Any]
Tuning = Callable[..., Path]


@pytest.fixture
def tuning(digits: Path, write_job: Any, tmp_path: Path) -> Tuning:
    """tuning(rounds, **[tune]): a job file; `more` has other tables."""

    def tuning(rounds: int = 9, more: Any = None, **tune: Any) -> Path:
        table = {"trials": 9, "space": SPACE, **tune}
        return write_job(tmp_path / "job.toml", job_table(digits, name="t", rounds=rounds, tune=table) | (more or {}))

    return tuning


@pytest.fixture
def tuned(tuning: Tuning, tmp_path: Path, launch: Launch) -> Path:
    """The trials as one process runs them."""
    assert launch(None, "tune", tuning(), "--out", tmp_path / "one").code == 0
    return tmp_path / "one"


def test_trials_are_sobols_points_and_the_best_are_resumed(tuned: Path) -> None:
    """Each rung's trials are the best third of the one before, and the last has the bits of a run of its own."""
    frame = pd.read_csv(tuned / "tune.csv")
    drawn = qmc.Sobol(2, seed=np.random.default_rng(1)).random(16)[:9]
    batches, rates = frame["algorithm.batch_size"][:9], frame["client_optimizer.learning_rate"][:9]
    assert batches.tolist() == [(2, 4, 8)[int(3 * place)] for place in drawn[:, 0]]
    assert rates.tolist() == pytest.approx(0.001 * 10.0 ** (4 * drawn[:, 1]), rel=1e-3)
    rungs = [rows for _, rows in frame.groupby("rung")]
    assert [rows["round"].unique().tolist() for rows in rungs] == [[1], [3], [9]]
    for before, after in itertools.pairwise(rungs):
        assert set(after["point"]) == set(before.nsmallest(len(before) // 3, "objective")["point"])
    assert frame["spent"].tolist() == [*range(1, 10), 11, 13, 15, 21]
    assert frame["best"].tolist() == frame["objective"].cummin().tolist()
    last = summary(tuned / frame["point"].iloc[-1])
    assert last["rounds"] == 9 and last["objective"] == frame["objective"].iloc[-1]
    alone = mf.run(tuned / "best.toml", out=tuned.with_name("alone"), progress="none")
    assert alone.summary["model_sha256"] == last["model_sha256"]


def test_the_same_on_two_ranks_from_python_after_a_kill_and_as_single_tasks(
    tuned: Path, tuning: Tuning, digits: Path, tmp_path: Path, launch: Launch
) -> None:
    assert launch(2, "tune", tuning(), "--out", tmp_path / "two").code == 0
    found = mf.tune(tuning(), out=tmp_path / "python")
    assert found.metric == "objective" and found.best.keys() == SPACE.keys() and "chosen by" in repr(found)
    method = mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.1))
    objects = mf.tune(method, str(digits), mf.Softmax(bias=False), rounds=9, trials=9, space=SPACE)
    assert objects.best == found.best and objects.frame.drop(columns="point").equals(found.frame.drop(columns="point"))
    with subprocess.Popen([sys.executable, "-m", "mpifed", "tune", tuning(), "--out", tmp_path / "killed"]) as process:
        while len(list((tmp_path / "killed").glob("point-*/run.json"))) < 4:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "killed" / "tune.csv").exists()
    tasks = pd.read_csv(tuned / "tune.csv")["point"]
    for name in (*tasks[8::-1], *tasks[9:], *tasks[9:]):  # as those of an array, some of them twice
        assert launch(None, "run", tuning(), "--out", tmp_path / "tasks", "--resume", "--point", name).code == 0
    for name in ("two", "python", "killed", "tasks"):
        again = ("--resume",) if name in ("killed", "tasks") else ()
        assert not again or launch(None, "tune", tuning(), "--out", tmp_path / name, *again).code == 0
        for file in ("tune.csv", "best.toml"):
            assert (tmp_path / name / file).read_text() == (tuned / file).read_text(), name


def test_it_goes_on_is_replaced_and_is_not_mixed_up(
    tuned: Path, tuning: Tuning, tmp_path: Path, launch: Launch
) -> None:
    def times() -> list[int]:
        return [path.stat().st_mtime_ns for path in sorted(tuned.glob("point-*/run.json"))]

    before, other = times(), {"seed": 2}
    for options, code in (((), 2), (("--resume",), 0)):
        assert launch(None, "tune", tuning(), "--out", tuned, *options).code == code and times() == before
    ended = launch(None, "tune", tuning(keep=2), "--out", tuned, "--resume")  # which compares after 2, 3, 5, 9 rounds
    assert ended.code == 2 and "was not measured in round 2" in ended.err
    assert launch(None, "tune", tuning(more=other), "--out", tuned, "--overwrite").code == 0 and len(times()) == 9
    wide = other | {"compute": {"dtype": "float64"}}
    ended = launch(None, "tune", tuning(more=wide), "--out", tuned, "--resume")
    assert ended.code == 2 and "holds another sweep" in ended.err


def test_what_a_method_suggests_and_by_what_it_was_chosen(tuning: Tuning, tmp_path: Path, launch: Launch) -> None:
    """Also where a learning rate has a schedule; a trial that diverges is never the best."""
    schedule = {"client_optimizer": {"learning_rate": {"initial": 0.1, "exponent": 0.5}}}
    prox = {"algorithm": {"name": "fedprox", "batch_size": 4, "mu": 0.0}, **schedule}
    path = tuning(space={}, keep=1, trials=4, rounds=1, metric="test_accuracy", more=prox)
    ended = launch(None, "tune", path, "--out", tmp_path / "out")
    frame = pd.read_csv(tmp_path / "out" / "tune.csv")
    assert ended.code == 0 and "test_accuracy, over test rows: judge it by rows" in ended.out
    assert {"algorithm.mu", "client_optimizer.learning_rate.initial"} < set(frame)
    assert frame["best"].iloc[-1] == frame["test_accuracy"].max()
    wild = {"client_optimizer.learning_rate": [1e30, 0.1]}
    found = mf.tune(
        tuning(space=wild, trials=4, keep=2, more={"model": {"name": "softmax", "l2": 1.0}}), out=tmp_path / "wild"
    )
    assert found.best == {"client_optimizer.learning_rate": 0.1} and len(found.frame) == 3
    private = tuning(1, {"privacy": PRIVATE}, trials=2, keep=1, metric="test_accuracy")
    found = mf.tune(private, out=tmp_path / "private")
    assert (found.frame["epsilon"] > 0).all() and "epsilon" in repr(found)


PRIVATE = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-4, "public_preparation": True}
SSCA = {"algorithm": {"name": "ssca", "batch_size": 4, "client_optimizer": {}}}
DIVERGING = {"client_optimizer.learning_rate": [1e30]}
FORMS: list[Any] = [
    3, [], {"log": [0, 1]}, {"log": [2, 1]}, {"linear": [1, 1]}, {"log": ["a", 1]}, {"log": [1, 2], "x": 1}
]  # fmt: skip
WRONG: list[tuple[dict[str, Any], Any, str]] = [
    ({"trials": 0}, {}, "[tune] trials = 0"), ({"keep": 1.5}, {}, "[tune] keep = 1.5"),
    ({"metrics": "x"}, {}, "[tune] metrics: unknown key"), ({"space": {"rounds": [1, 2]}}, {}, "space: rounds = "),
    ({"space": {"rounds": {"linear": [1, 9]}}}, {}, "[tune] space: rounds.linear = "),
    ({"space": {"algorithm.batch": [1]}}, {}, "[algorithm] batch: unknown key"),
    *(({"space": {"model.l2": form}}, {}, "[tune] space: model.l2") for form in FORMS),
    ({"metric": "test_acuracy"}, {}, "[tune] metric = test_acuracy: no column of the history; did you mean"),
    ({"metric": "test_acuracy", "space": DIVERGING}, {}, "[tune] metric = test_acuracy: no column"),
    ({"space": {}}, SSCA, "method suggests none"), ({}, {"sweep": {"seeds": 2}}, "[sweep]"),
    ({}, {"privacy": {"clip": 1.0, "epsilon": 8.0, "delta": 1e-5}}, "the noise of [privacy] epsilon is computed"),
    *(  # before any budget is spent
        ({"metric": metric}, {"privacy": PRIVATE}, f"[tune] metric = {metric}: this private job measures no such")
        for metric in ("test_acuracy", "client_test_loss_mean")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tune", "more", "said"), WRONG)
def test_what_is_refused(tune: Any, more: Any, said: str, tuning: Tuning, tmp_path: Path, launch: Launch) -> None:
    ended = launch(None, "tune", tuning(more=more, **tune), "--out", tmp_path / "out")
    begun = [*tmp_path.glob("out/point-*")]
    assert ended.code == 2 and said in ended.err and len(begun) < 2 - ("privacy" in more), ended.text


def test_a_job_file_has_its_settings(tuning: Tuning) -> None:
    for more in ({"trials": 4}, {"rounds": 9}, {"space": SPACE}):
        with pytest.raises(mf.UsageError, match=f"without {next(iter(more))}, and write these there"):
            mf.tune(tuning(), **more)
