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
from written_files import read_json

import mpifed as mf
from mpifed.files.run_folder import summary

SPACE = {"client_optimizer.learning_rate": {"log": [0.001, 10.0]}, "algorithm.batch_size": [2, 4, 8]}
Launch = Callable[..., Any]
RESULTS = ("tune.csv", "best.toml")


@pytest.fixture
def tuning(digits: Path, write_job: Any, tmp_path: Path) -> Callable[..., Path]:
    """tuning(rounds, **[tune]): a job file; `more` has other tables."""

    def tuning(rounds: int = 9, more: Any = None, **tune: Any) -> Path:
        table = {"trials": 9, "space": SPACE, **tune}
        return write_job(tmp_path / "job.toml", job_table(digits, name="t", rounds=rounds, tune=table) | (more or {}))

    return tuning


@pytest.fixture
def one(tuning: Callable[..., Path], tmp_path: Path, launch: Launch) -> Path:
    """The trials as one process runs them."""
    assert launch(None, "tune", tuning(), "--out", tmp_path / "one").code == 0
    return tmp_path / "one"


def results(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in RESULTS]


def test_trials_are_sobols_points_and_the_best_are_resumed(one: Path, digits: Path) -> None:
    """Each rung's trials are the best third of the one before, and the last has the bits of a run of its own."""
    frame = pd.read_csv(one / "tune.csv")
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
    last = summary(one / frame["point"].iloc[-1])
    assert last["rounds"] == 9 and last["objective"] == frame["objective"].iloc[-1]
    alone = mf.run(one / "best.toml", out=one.with_name("alone"), progress="none")
    assert alone.summary["model_sha256"] == last["model_sha256"]


def test_the_same_on_two_ranks_from_python_after_a_kill_and_as_single_tasks(
    one: Path, tuning: Callable[..., Path], digits: Path, tmp_path: Path, launch: Launch, capsys: Any
) -> None:
    assert launch(2, "tune", tuning(), "--out", tmp_path / "two").code == 0
    method = mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.1))
    found = mf.tune(tuning(), out=tmp_path / "python")
    assert capsys.readouterr().out.count(", to round 9: ") == 1
    assert found.metric == "objective" and found.best.keys() == SPACE.keys() and "chosen by" in repr(found)
    objects = mf.tune(method, str(digits), mf.Softmax(bias=False), rounds=9, trials=9, space=SPACE)
    assert objects.best == found.best and objects.frame.drop(columns="point").equals(found.frame.drop(columns="point"))
    with subprocess.Popen([sys.executable, "-m", "mpifed", "tune", tuning(), "--out", tmp_path / "killed"]) as process:
        while len(list((tmp_path / "killed").glob("point-*/run.json"))) < 4:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "killed" / "tune.csv").exists()
    assert launch(None, "tune", tuning(), "--out", tmp_path / "killed", "--resume").code == 0
    tasks = pd.read_csv(one / "tune.csv")["point"]
    for name in (*tasks[8::-1], *tasks[9:], *tasks[9:]):  # as those of an array, some of them twice
        assert launch(None, "run", tuning(), "--out", tmp_path / "tasks", "--resume", "--point", name).code == 0
    assert launch(None, "tune", tuning(), "--out", tmp_path / "tasks", "--resume").code == 0
    for name in ("two", "python", "killed", "tasks"):
        assert results(tmp_path / name) == results(one), name


def test_it_goes_on_is_replaced_and_is_not_mixed_up(
    one: Path, tuning: Callable[..., Path], tmp_path: Path, launch: Launch
) -> None:
    before = [path.stat().st_mtime_ns for path in sorted(one.glob("point-*/run.json"))]
    for options, code in (((), 2), (("--resume",), 0)):
        assert launch(None, "tune", tuning(), "--out", one, *options).code == code
        assert before == [path.stat().st_mtime_ns for path in sorted(one.glob("point-*/run.json"))]
    ended = launch(None, "tune", tuning(keep=2), "--out", one, "--resume")  # which compares after 2, 3, 5 and 9 rounds
    assert ended.code == 2 and "was not measured in round 2" in ended.err
    assert launch(None, "tune", tuning(more={"seed": 2}), "--out", one, "--overwrite").code == 0
    assert len(list(one.glob("point-*"))) == 9 and read_json(next(one.glob("point-*/run.json")))["exit"] == 0
    ended = launch(None, "tune", tuning(more={"seed": 2, "compute": {"dtype": "float64"}}), "--out", one, "--resume")
    assert ended.code == 2 and "holds another sweep" in ended.err


def test_what_a_method_suggests_and_by_what_it_was_chosen(
    tuning: Callable[..., Path], tmp_path: Path, launch: Launch
) -> None:
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
    plain = {"model": {"name": "softmax", "l2": 1.0}}
    found = mf.tune(tuning(space=wild, trials=4, keep=2, more=plain), out=tmp_path / "wild")
    assert found.best == {"client_optimizer.learning_rate": 0.1} and len(found.frame) == 3


PRIVATE = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3, "public_preparation": True}
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
    ({"space": {}}, {"algorithm": {"name": "ssca", "batch_size": 4}, "client_optimizer": {}}, "method suggests none"),
    ({}, {"sweep": {"seeds": 2}}, "[sweep]"),
    ({}, {"privacy": {"clip": 1.0, "epsilon": 8.0, "delta": 1e-5}}, "the noise of [privacy] epsilon is computed"),
    *(  # before any budget is spent
        ({"metric": metric}, {"privacy": PRIVATE}, f"[tune] metric = {metric}: this private job measures no such")
        for metric in ("test_acuracy", "client_test_loss_mean")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tune", "more", "said"), WRONG)
def test_what_is_refused(
    tune: Any, more: Any, said: str, tuning: Callable[..., Path], tmp_path: Path, launch: Launch
) -> None:
    path = tuning(more={name: part for name, part in more.items() if part}, **tune)
    if more.get("client_optimizer") == {}:
        path.write_text(path.read_text().replace("[client_optimizer]\nlearning_rate = 0.1\n", ""))
    ended = launch(None, "tune", path, "--out", tmp_path / "out")
    assert ended.code == 2 and said in ended.err and len([*tmp_path.glob("out/point-*")]) < 2 - ("privacy" in more), (
        ended.text
    )


def test_a_job_file_has_its_settings(tuning: Callable[..., Path]) -> None:
    for more in ({"trials": 4}, {"rounds": 9}, {"space": SPACE}):
        with pytest.raises(mf.UsageError, match=f"without {next(iter(more))}, and write these there"):
            mf.tune(tuning(), **more)
