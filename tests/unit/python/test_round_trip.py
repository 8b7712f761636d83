"""What Python writes as a table is what it was: an object, its TOML, the object again, and the same run of both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifed as mf
from mpifed.maths.objectives import OBJECTIVES
from mpifed.maths.regularizers import REGULARIZERS
from mpifed.maths.schedules import SCHEDULES
from mpifed.maths.terms import TERMS

RNG = np.random.default_rng(8)
X = RNG.standard_normal((60, 4)).astype("f4")
Y = (X[:, 0] > 0).astype(int)

# one of every class that a job can name, with values that are not its defaults
RATES: dict[str, Any] = {
    "power": mf.PowerDecay(0.4, exponent=0.3, offset=1.0),
    "step": mf.StepDecay(0.4, factor=0.5, every=2),
    "cosine": mf.CosineDecay(0.4, rounds=3, final=0.1),
}
OPTIMIZERS: dict[str, Any] = {
    **{f"client, {name}": {"client_optimizer": mf.SGD(rate, momentum=0.5)} for name, rate in RATES.items()},
    **{f"server, {name}": {"server_optimizer": mf.ServerSGD(rate, momentum=0.5)} for name, rate in RATES.items()},
    "client": {"client_optimizer": mf.SGD(0.3, momentum=0.5, nesterov=True, weight_decay=0.01)},
    "server": {"server_optimizer": mf.ServerSGD(0.5, momentum=0.5, nesterov=True)},
}
MODELS: dict[str, Any] = {
    "mlp": mf.MLP(hidden=3, l2=0.01),
    "softmax": mf.Softmax(l2=0.01, nonconvex_penalty=0.1),
    "hinge": mf.Hinge(l2=0.2),
    "squared-hinge": mf.SquaredHinge(l2=0.2),
    "logistic": mf.Logistic(bias=False),
    "true-class-logistic": mf.TrueClassLogistic(bias=False),
    "multilabel": mf.MultiLabel(l2=0.2),
    "least-squares": mf.LeastSquares(l2=0.2),
}
PENALTIES: dict[str, Any] = {
    "l1": mf.L1(0.01, biases=True),
    "group-l1": mf.GroupL1(0.01),
    "box": mf.Box(0.1),
}
FUNCTIONS: dict[str, Any] = {
    "loss": mf.Loss(classes=(0,)),
    "error-rate": mf.ErrorRate(classes=(1,)),
    "norm": mf.Norm(),
}
ROWS = {
    "fedavg": mf.FedAvg(batch_size=4, local_steps=2, client_optimizer=mf.SGD(0.1)),
    "ssca": mf.SSCA(batch_size=4, rho=mf.StepSize(0.9, 0.4), gamma=mf.StepSize(0.8, 0.5), tau=0.3),
    "cocoa": mf.CoCoA(local_epochs=2),
}
OTHERS = {
    "vertical-sgd": mf.VerticalSGD(batch_size=4, server_optimizer=mf.SGD(0.1, momentum=0.5)),
    "hyfdca": mf.HyFDCA(rule="paper", gamma=mf.StepSize(0.9, 0.2)),
}
PLAIN = {"aggregation": mf.Aggregation(security="plain")}  # what HyFDCA encrypts takes long
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    **{
        name: (mf.FedAvg(**{"batch_size": 4, "client_optimizer": mf.SGD(0.1), **taken}), mf.Softmax(), {})
        for name, taken in OPTIMIZERS.items()
    },
    **{f"model {name}": (ROWS["fedavg"], model, {}) for name, model in MODELS.items()},
    **{f"regularizer {name}": (ROWS["fedavg"], mf.Softmax(), {"regularizer": h}) for name, h in PENALTIES.items()},
    **{f"minimize {name}": (ROWS["ssca"], mf.Softmax(), {"minimize": term}) for name, term in FUNCTIONS.items()},
    "minimize norm": (
        ROWS["ssca"],
        mf.Softmax(),
        {"minimize": mf.Norm(), "constraints": [mf.constraint(mf.Loss(), 0.6)]},
    ),
    **{
        f"constraint {name}": (ROWS["ssca"], mf.Softmax(), {"constraints": [mf.constraint(term, 0.9, margin=0.1)]})
        for name, term in FUNCTIONS.items()
    },
    **{name: (method, mf.Hinge(bias=False, l2=0.1), PLAIN) for name, method in {**ROWS, **OTHERS}.items()},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, make_data: Callable[..., Path]) -> dict[str, Any]:
    """By the kind of clients, of targets or labels."""
    out = tmp_path_factory.mktemp("round-trip")
    made = {
        "rows": mf.FederatedDataset.from_arrays(X, Y, clients=3, out=out / "rows"),
        "real": mf.FederatedDataset.from_arrays(X, Y + 0.5, clients=3, out=out / "real"),
        "several": mf.FederatedDataset.from_arrays(X, (X[:, :2] > 0).astype(int), clients=3, out=out / "several"),
        "columns": mf.FederatedDataset.from_arrays(X, Y, clients=3, split="columns", out=out / "columns"),
    }
    cells = ("--samples", "40", "--features", "4", "--task", "classification", "--classes", "2", "--split", "grid")
    return {**made, "cells": make_data(out / "cells", "synthetic", *cells, "--grid", "2x2")}


def test_every_class_is_here() -> None:
    assert set(RATES) == set(SCHEDULES)
    assert {*MODELS, "torch"} == set(OBJECTIVES)  # a network comes from a function, which tests/models have
    assert set(PENALTIES) == set(REGULARIZERS) and set(FUNCTIONS) == set(TERMS)


@pytest.mark.parametrize("name", CASES)
def test_the_file_of_a_run_is_that_run(name: str, data: dict[str, Any], tmp_path: Path) -> None:
    method, model, more = CASES[name]
    cells = "columns" if name == "vertical-sgd" else "cells" if name in OTHERS else "rows"
    here = data[{mf.LeastSquares: "real", mf.MultiLabel: "several"}.get(type(model), cells)]
    run = mf.run(method, here, model, rounds=3, out=tmp_path / "a", evaluate_every=0, progress="none", **more)
    run.job.to_toml(tmp_path / "job.toml")
    again = mf.run(tmp_path / "job.toml", out=tmp_path / "b", progress="none")
    assert str(again.job) == str(run.job)
    assert again.summary["model_sha256"] == run.summary["model_sha256"]


@pytest.mark.parametrize("name", RATES)
def test_a_schedule_is_that_of_a_file(name: str, data: dict[str, Any], tmp_path: Path) -> None:
    """Written by hand, and swept."""
    method = mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(RATES[name]))
    run = mf.run(method, data["rows"], mf.Softmax(), rounds=3, out=tmp_path / "a", evaluate_every=0, progress="none")
    by_hand = {
        "power": "{ initial = 0.4, exponent = 0.3, offset = 1.0 }",
        "step": '{ name = "step", initial = 0.4, factor = 0.5, every = 2 }',
        "cosine": '{ name = "cosine", initial = 0.4, rounds = 3, final = 0.1 }',
    }[name]
    (tmp_path / "job.toml").write_text(
        f'name = "by-hand"\nrounds = 3\ndata = {{ path = "{data["rows"].path}" }}\nmodel = {{ name = "softmax" }}\n'
        'algorithm = { name = "fedavg", batch_size = 4 }\nrecord = { evaluate_every = 0 }\n'
        f"client_optimizer = {{ learning_rate = {by_hand} }}\n"
    )
    same = mf.run(tmp_path / "job.toml", out=tmp_path / "b", progress="none")
    swept = mf.sweep({"one": method}, data["rows"], mf.Softmax(), rounds=3, seeds=1, out=tmp_path / "c")
    hashes = {one.summary["model_sha256"] for one in (run, same, *swept.runs["one"])}
    assert len(hashes) == 1


def test_steps_that_end_at_zero(data: dict[str, Any]) -> None:
    """Harmless where nothing divides by them."""
    ends = {"batch_size": 4, "client_optimizer": mf.SGD(mf.CosineDecay(0.4, rounds=2))}
    run = mf.run(mf.FedAvg(**ends), data["rows"], mf.Softmax(), rounds=3, evaluate_every=1, progress="none")
    losses = run.history["train_loss"].tolist()
    assert losses[0] > losses[1] == losses[2] == losses[3]
    for method in (mf.Scaffold(**ends), mf.FedPDM(**ends, rho=1.0)):
        with pytest.raises(
            mf.UsageError, match=r"client_optimizer\] learning_rate: ends at 0, .* give a final above 0"
        ):
            mf.run(method, data["rows"], mf.Softmax(), rounds=3, progress="none")


@pytest.mark.parametrize(("s", "local_steps", "start", "sgd", "refused"), [
    (0.08, 3, "server", {}, True), (0.08, 3, "own", {}, True), (0.08, 2, "server", {}, False),
    (0.1, 3, "server", {}, False), (0.08, 3, "paper", {}, False), (0.09, 5, "server", {}, False),
    (0.16, 2, "server", {"momentum": 0.9}, True), (0.16, 1, "own", {"momentum": 0.9, "nesterov": True}, True),
    (0.16, 1, "server", {"momentum": 0.9}, False),
])  # fmt: skip
def test_steps_beyond_a_prox(
    data: dict[str, Any], s: float, local_steps: int, start: Any, sgd: dict[str, Any], refused: bool
) -> None:
    """Where y - v of a flat loss ends with the other sign, times R < 0, z_i - x is multiplied by 2 R - 1 < -1."""
    method = mf.FedSplit(s=s, batch_size=4, local_steps=local_steps, start=start, client_optimizer=mf.SGD(0.1, **sgd))
    if refused:
        with pytest.raises(mf.UsageError, match=rf"local steps of 0\.1 end beyond its prox, of s = {s:g}"):
            mf.check(method, data["rows"], mf.Softmax(), rounds=3)
    else:
        assert "Sent" in mf.check(method, data["rows"], mf.Softmax(), rounds=3)


@pytest.mark.parametrize(
    ("method", "sgd", "local_steps", "factor"),
    [
        (partial(mf.FedProx, mu=30.0), {}, 2, "-2,"), (partial(mf.FedProx, mu=30.0), {}, 1, ""),
        (partial(mf.FedProx, mu=19.0), {}, 2, ""), (partial(mf.FedPDM, rho=30.0, local_rule="paper"), {}, 2, "-2,"),
        (partial(mf.FedProx, mu=25.0), {"momentum": 0.9}, 60, ""),
        (partial(mf.FedProx, mu=39.0), {"momentum": 0.9}, 60, "-2.9, with momentum 0.9,"),
        (partial(mf.FedProx, mu=16.0), {"momentum": 0.9, "nesterov": True}, 60, "-0.6, with momentum 0.9,"),
        (partial(mf.FedProx, mu=13.0), {"momentum": 0.9, "nesterov": True}, 60, ""),
    ],
)  # fmt: skip
def test_steps_that_leave_the_model_that_draws_them(
    data: dict[str, Any], method: Any, sgd: dict[str, Any], local_steps: int, factor: str
) -> None:
    """A step of 0.1 takes a distance e to (1 - 0.1 mu) e; a single one begins where the distance is 0."""
    method = method(batch_size=4, local_steps=local_steps, client_optimizer=mf.SGD(0.1, **sgd))
    if factor:
        with pytest.raises(mf.UsageError, match=rf"learning_rate: a local step of 0\.1 .* by {factor} and so diverges"):
            mf.check(method, data["rows"], mf.Softmax(), rounds=3)
    else:
        assert "Sent" in mf.check(method, data["rows"], mf.Softmax(), rounds=3)
        run = mf.run(method, data["rows"], mf.Softmax(), rounds=1, progress="none")
        assert np.isfinite(run.history["train_loss"]).all()
