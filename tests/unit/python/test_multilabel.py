"""Several labels of each sample: from arrays, frames and files to models, measures and predictions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from federations import command, make
from sklearn import metrics

import mpifed as mf

RNG = np.random.default_rng(3)
X = RNG.standard_normal((90, 5))
Y = (X[:, :3] + 0.5 * RNG.standard_normal((90, 3)) > 0.3).astype(int)
SIZES = np.array([40, 30, 20])
ENDS = np.cumsum(SIZES)[:-1]
PAIRS = dict(zip(["north", "south", "west"], zip(np.split(X, ENDS), np.split(Y, ENDS), strict=True), strict=True))
FLOAT64 = mf.Compute(dtype="float64")
From = mf.FederatedDataset

pytestmark = pytest.mark.usefixtures("here")


def method(**settings: Any) -> mf.FedAvg:
    return mf.FedAvg(**{"batch_size": 10, "client_optimizer": mf.SGD(0.5)} | settings)


def run(model: Any, data: Any = None, **settings: Any) -> mf.Run:
    data = From.from_clients(PAIRS, test=(X, Y)) if data is None else data
    return mf.run(method(), data, model, **{"rounds": 5, "progress": "none"} | settings)


def test_the_linear_model_is_a_loop_of_numpy() -> None:
    """FedAvg with two steps of all rows: logistic regressions of the labels, whose losses are averaged over these."""
    steps = method(batch_size=20, local_steps=2, client_optimizer=mf.SGD(0.4))
    clients = [(X[start : start + 20].astype("f4"), Y[start : start + 20]) for start in (0, 20, 40)]
    data = From.from_clients(clients)
    trained = mf.run(steps, data, mf.MultiLabel(l2=0.01), rounds=6, compute=FLOAT64, progress="none")
    W, b = np.zeros((5, 3)), np.zeros(3)
    for _ in range(6):
        ends = []
        for x, y in clients:
            w, c = W, b
            for _ in range(2):
                slope = (1 / (1 + np.exp(-(x @ w + c))) - y) / (20 * 3)
                w, c = w - 0.4 * (x.T @ slope + 0.02 * w), c - 0.4 * slope.sum(axis=0)
            ends.append((w, c))
        W, b = (np.mean([end[i] for end in ends], axis=0) for i in (0, 1))
    np.testing.assert_allclose(trained.model["first"], W, atol=1e-7)
    np.testing.assert_allclose(trained.model["head.bias"], b, atol=1e-7)
    z = np.concatenate([x for x, _ in clients]) @ W + b
    labels = np.concatenate([y for _, y in clients])
    loss = -(labels * np.log(1 / (1 + np.exp(-z))) + (1 - labels) * np.log(1 / (1 + np.exp(z)))).mean()
    assert trained.summary["train_loss"] == pytest.approx(loss, abs=1e-7)


@pytest.mark.parametrize("model", ["multilabel", "mlp", "torch"])
def test_measures_are_those_of_scikit_learn(model: str) -> None:
    if model == "torch":
        pytest.importorskip("torch")
    kinds: dict[str, Callable[[], Any]] = {
        "multilabel": mf.MultiLabel,
        "mlp": lambda: mf.MLP(hidden=8, loss_name="binary-cross-entropy"),
        "torch": lambda: mf.Torch("mpifed.models:mlp", loss="binary-cross-entropy"),
    }
    data = From.from_clients(PAIRS, test=(X, Y), client_test=0.3)
    trained = run(kinds[model](), data, rounds=60)
    predicted, summary = trained.predict(X), trained.summary
    assert predicted.shape == Y.shape and predicted.dtype.kind == "i" and set(np.unique(predicted)) == {0, 1}
    assert summary["test_label_accuracy"] == pytest.approx(1 - metrics.hamming_loss(Y, predicted))
    assert summary["test_exact_match"] == pytest.approx(metrics.accuracy_score(Y, predicted))
    assert summary["test_micro_f1"] == pytest.approx(metrics.f1_score(Y, predicted, average="micro"))
    assert summary["test_label_accuracy"] > 0.8 and summary["test_accuracy"] is None
    assert summary["client_test_label_accuracy_mean"] == pytest.approx(trained.clients["label_accuracy"].mean())


def test_columns_of_files_and_frames(here: Path) -> None:
    frame = pd.DataFrame(X, columns=list("vwxyz")).assign(**{name: Y[:, at] for at, name in enumerate("abc")})
    frame["who"] = np.repeat(["n", "s", "w"], 30)
    frame.to_csv("a.csv", index=False)
    frame.to_parquet("a.parquet", index=False)
    np.savez("a.npz", X=X, y=Y, who=frame["who"].to_numpy(str))
    of_frame = From.from_dataframe(frame, label=["a", "b", "c"], by="who", scale="none")
    found = {run(mf.MultiLabel(), of_frame).summary["model_sha256"]}
    assert of_frame.classes == ("a", "b", "c")
    for kind in ("csv", "parquet", "npz"):
        label = () if kind == "npz" else ("--label", "a,b,c")
        make(Path("d"), kind, f"a.{kind}", *label, "--by", "who", "--scale", "none")
        found.add(run(mf.MultiLabel(), "d").summary["model_sha256"])
    assert len(found) == 1
    assert command("show", "d")[0] == 0


@pytest.mark.parametrize(("wrong", "named"), [
    (lambda: From.from_arrays(X, Y + 1, clients=3), r"int64 \(90, 3\), such as 2; .* 0 or 1, several real"),
    (lambda: From.from_arrays(X, Y, clients=3, test=(X, Y[:, :2])), r"\(90, 2\), those to train on int64"),
    (lambda: From.from_arrays(X, Y, clients=3, test=(X, Y[:, 0])), r"int64 \(90,\), those to train on int"),
    (lambda: From.from_arrays(X, Y, clients=3, partition="dirichlet:0.5"), "of a row, not classes; use partition iid"),
    (lambda: run(mf.Softmax()), r"is for classes, and memory:\d+ holds several labels .* y.argmax\(axis=1\)"),
    (lambda: run(mf.Logistic()), "is for classes, and .* several labels of each row"),
    (lambda: run(mf.LeastSquares()), "is for real-valued targets, and .* several labels of each row"),
    (lambda: run(mf.MultiLabel(), From.from_arrays(X, Y[:, 0], clients=3)), "is for several labels .* holds classes"),
    (lambda: run(mf.MultiLabel(), minimize=mf.Loss(classes=[0])), "classes = .*the targets have no classes"),
    (lambda: mf.run(mf.SSCA(batch_size=5), From.from_clients(PAIRS), mf.MultiLabel(), rounds=2, progress="none",
                    constraints=[mf.constraint(mf.ErrorRate(), 0.1)]), "error-rate.*is for classes"),
    (lambda: mf.run(mf.CoCoA(local_epochs=1), From.from_clients(PAIRS), mf.MultiLabel(l2=0.1), rounds=2,
                    progress="none"), "dual"),
    (lambda: run(mf.MultiLabel(), compute=mf.Compute(device="cuda")), "3 targets of each row, which need the cpu"),
])  # fmt: skip
def test_what_needs_one_label_is_refused_by_name(wrong: Callable[[], object], named: str) -> None:
    with pytest.raises(mf.MpifedError, match=named):
        wrong()
