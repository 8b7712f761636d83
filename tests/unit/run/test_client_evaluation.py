"""Evaluation on the clients' own test rows: by a loop by hand, and without a trace in the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import run
from federations import common, held
from forecasts import forecast
from jobs_in_python import checked, fedavg, job_table
from sklearn import metrics as sklearn
from written_files import read_json

import mpifed as mf
from mpifed.core.record import leaves
from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation
from mpifed.files.clients import read_clients
from mpifed.files.history import read_history
from mpifed.files.model_file import model_sha256, read_model
from mpifed.files.run_folder import summary
from mpifed.privacy.disclosure import uncovered
from mpifed.results.show import run_text
from mpifed.testing import Job, Solo, rounds

RNG = np.random.default_rng(8)
SIZES = (40, 1, 25, 12, 2, 60, 33)  # the clients of 1 and 2 rows have no test rows
X = RNG.normal(size=(sum(SIZES), 4)).astype("f4")
Z = X @ RNG.normal(size=(4, 3))
OWNER = np.repeat(np.arange(len(SIZES)), SIZES)
CLASSES = (Z + RNG.normal(size=Z.shape)).argmax(axis=1)
TARGETS = Z[:, 0] + RNG.normal(size=len(Z))
TESTED = [client for client, size in enumerate(SIZES) if size > 2]


def pairs(y: Any) -> list[Any]:
    return [(X[client == OWNER], y[client == OWNER]) for client in range(len(SIZES))]


def data_of(y: Any, folder: Path) -> Path:
    test = (X[::3] + 0.1, y[::3])
    return mf.FederatedDataset.from_clients(pairs(y), test=test, client_test=0.2, scale="standard", out=folder).path


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_of(CLASSES, tmp_path_factory.mktemp("classes") / "data")


def job(folder: Path, model: str = "softmax", keys: dict[str, Any] = {}, **changes: Any) -> Job:  # noqa: B006
    record = {"evaluate_every": 2, "checkpoint_every": 0} | changes.pop("record", {})
    base = {"model": {"name": model} | keys, "algorithm": fedavg(1), "compute": {"device": "cpu", "dtype": "float64"}}
    return checked(job_table(folder, **{"rounds": 4, "record": record} | base | changes))


def scored(folder: Path, models: Any) -> tuple[list[float], list[float]]:
    """([clients] accuracy or RMSE, [clients] mean loss) of a linear model, or of each its own, by scikit-learn."""
    data, quality, losses = open_federation(folder), [], []
    for client in TESTED:
        model = models[client] if isinstance(models, list) else models
        y = shard_of(data, client, True).y
        z = held(data, client, True) @ model["first"] + model["head.bias"]
        if data.classes:
            quality.append(sklearn.accuracy_score(y, z.argmax(axis=1)))
            p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
            losses.append(sklearn.log_loss(y, p, labels=range(3)))
        else:
            quality.append(np.sqrt(sklearn.mean_squared_error(y, z[:, 0])))
            losses.append(np.mean((y - z[:, 0]) ** 2) / 2)
    return quality, losses


@pytest.mark.parametrize("block", [1, 3, 100])
@pytest.mark.parametrize("kind", ["classes", "targets"])
def test_against_a_loop(kind: str, block: int, classes: Path, tmp_path: Path) -> None:
    folder = classes if kind == "classes" else data_of(TARGETS, tmp_path / "data")
    table = {"data": {"path": str(folder), "block": block}}
    run(job(folder, "softmax" if kind == "classes" else "least-squares", **table), Solo(), tmp_path / "run")
    quality, losses = scored(folder, read_model(tmp_path / "run" / "model.safetensors"))
    name, ascending = ("accuracy", sorted(quality)) if kind == "classes" else ("rmse", sorted(quality)[::-1])
    last = {column: values[-1] for column, values in read_history(tmp_path / "run").items()}
    expected = {
        f"client_test_{name}_mean": np.mean(quality), f"client_test_{name}_std": np.std(quality),
        f"client_test_{name}_worst_tenth": ascending[0],  # of 5 clients the worst
        "client_test_loss_mean": np.mean(losses), "client_test_loss_std": np.std(losses),
        "client_test_loss_worst_tenth": max(losses),
    }  # fmt: skip
    found = {column: value for column, value in last.items() if column.startswith("client_test_")}
    assert found == pytest.approx(expected, rel=1e-9)
    clients = read_clients(tmp_path / "run")
    assert clients["client"].tolist() == TESTED
    assert clients["rows"].tolist() == [round(0.2 * SIZES[client]) for client in TESTED]
    assert clients[name] == pytest.approx(quality, rel=1e-9) and clients["loss"] == pytest.approx(losses, rel=1e-9)
    model = read_model(tmp_path / "run" / "model.safetensors")
    rows, y = common(open_federation(folder), "f8")
    z = rows @ model["first"] + model["head.bias"]
    if kind == "classes":
        assert last["test_accuracy"] == sklearn.accuracy_score(y, z.argmax(axis=1))
    else:
        both = sklearn.r2_score(y, z[:, 0]), np.sqrt(sklearn.mean_squared_error(y, z[:, 0]))
        assert (last["test_r2"], last["test_rmse"]) == pytest.approx(both)
    about = summary(tmp_path / "run") | read_json(tmp_path / "run" / "run.json")
    assert (about["clients_tested"], about["clients_without_tests"]) == (5, 2)
    assert about[f"client_test_{name}_worst_tenth"] == last[f"client_test_{name}_worst_tenth"]
    assert "clients tested                 5; 2 more have no test rows of their own" in run_text(tmp_path / "run")


@pytest.mark.parametrize("some", [{}, {"participation": {"clients_per_round": 3}}], ids=["all", "some"])
def test_alone_clients_are_judged_by_models_of_their_own(classes: Path, some: dict[str, Any], tmp_path: Path) -> None:
    table = job(classes, data={"path": str(classes), "block": 3}, algorithm={**fedavg(3), "name": "alone"}, **some)
    run(table, Solo(), tmp_path / "run")
    *_, last = rounds(table)
    own = [{"first": kept[""][:12].reshape(4, 3), "head.bias": kept[""][12:]} for kept in last.clients]
    quality, losses = scored(classes, own)
    clients = read_clients(tmp_path / "run")
    for name, expected in (("accuracy", quality), ("loss", losses)):
        assert clients[name] == pytest.approx(expected, rel=1e-9)
    assert len(np.unique(clients["loss"])) == len(TESTED)


def test_no_bit_of_the_model_depends_on_them(tmp_path: Path) -> None:
    """The same as without their evaluation, and as with data that have the training rows alone."""
    path = mf.FederatedDataset.from_clients(pairs(CLASSES), client_test=0.2, out=tmp_path / "data").path
    data = open_federation(path)
    training = [(held(data, client, dtype="f4"), shard_of(data, client).y) for client in range(len(SIZES))]
    alone = mf.FederatedDataset.from_clients(training, out=tmp_path / "training").path
    assert open_federation(alone).samples == 173 - 34 == data.samples
    without = [{"client_tests": False}, {"evaluate_every": 0}]
    models = set()
    for number, task in enumerate([job(path), *(job(path, record=record) for record in without), job(alone)]):
        result = run(task, Solo(), out := tmp_path / str(number))
        assert result is not None
        models.add(model_sha256(dict(leaves(result.model))))
        measured = any(name.startswith("client_test") for name in result.columns)
        assert measured == (out / "clients.csv").exists() == (number == 0)
    assert len(models) == 1


SECURE = {"aggregation": {"security": "masked"}}
NOISY = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-4, "level": "client", "trust": "central"}
PRIVATE = {"privacy": NOISY | {"public_preparation": True}}
TOLD: list[tuple[dict[str, Any], bool]] = [
    ({}, True), (SECURE, False), (SECURE | {"record": {"client_tests": True}}, True), (PRIVATE, True),
    (PRIVATE | {"record": {"released_only": True}}, False),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "evaluated"), TOLD)
def test_who_is_told_a_number_of_each_client(
    changes: dict[str, Any], evaluated: bool, classes: Path, tmp_path: Path
) -> None:
    """Nobody, where uploads are hidden or only releases are recorded, unless the job asks for it; `check` says so."""
    run(job(classes, **changes), Solo(), out := tmp_path / "run")
    assert (out / "clients.csv").exists() == ("client_test_accuracy_mean" in read_history(out)) == evaluated
    if "privacy" in changes:
        told = "; ".join(uncovered(out))
        assert ("clients' scores in clients.csv" in told) == ("client_test_loss_mean" in told) == evaluated
        return
    common, own = forecast(out / "job.toml", (), 2)["tests"]
    assert "common test rows, which rank 0 reads: loss, accuracy" in common
    assert ("sends its accuracy and loss to the server, in the clear" in own) == evaluated
    assert ("not evaluated, since the server would learn" in own) != evaluated
