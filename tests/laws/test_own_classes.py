"""Wrong classes of a user end a run before it begins, and right ones do not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import own_functions
import pytest
from jobs_in_python import checked
from registry import table
from whole_runs import run
from written_files import read_json

from mpifed.core.errors import UsageError
from mpifed.core.record import leaves
from mpifed.files.model_file import model_sha256
from mpifed.run import setup
from mpifed.testing import Alone, Job

ROOT = Path(__file__).resolve().parents[2]
AVG = {"name": "fedavg", "batch_size": 5, "client_optimizer": {"learning_rate": 0.1}}
SSCA = {"name": "ssca", "batch_size": 5, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "slack_cost": 9.0}


def job(folder: Path, algorithm: dict[str, Any] = AVG, **changes: Any) -> Job:
    return checked(table(folder, algorithm, **({"rounds": 1} | changes)))


def begin(task: Job, out: Path, **how: Any) -> Any:
    return run(task, Alone(), out, **how)


def refused(task: Job, out: Path) -> str:
    with pytest.raises(UsageError) as error:
        begin(task, out)
    assert error.value.exit_code == 2
    assert not (out / "run.json").exists()
    assert not (out / "history.csv").exists()
    return str(error.value)


# --- wrong objectives, what is said of them, and what to correct ----------------------------------------------------

OBJECTIVES = {
    "ZeroSlope": ("slope at scores[", "slope()"),
    "WrongSign": ("slope at scores[", "slope()"),
    "Doubled": ("slope at scores[", "slope()"),
    "OnePercent": ("slope at scores[", "slope()"),
    "NoWeights": ("with weights other than 1, slope.scores", "slope()"),
    "PositiveWeights": ("with weights other than 1, slope.scores", "slope()"),
    "MeanOfSamples": ("called with part of the samples, slope.scores", "slope()"),
    "MeanOfLosses": ("called with part of the samples, loss()", "loss()"),
    "WrongAxis": ("slope at scores[", "slope()"),
    "NoHiddenBias": ("slope at head.hidden_bias", "slope()"),
    "OneBiasMissing": ("slope at head.output_bias", "slope()"),
    "NextClass": ("slope at scores[", "slope()"),
    "OtherLoss": ("slope.loss is", "slope() or loss()"),
    "WeightedLoss": ("slope.loss with weights other than 1", "slope()"),
    "InPlace": ("loss() changes its argument `scores` in place", "loss()"),
    "Random": ("loss() gives different results for equal arguments", "loss()"),
    "RandomStart": ("start() gives different models for equal generators", "start()"),
    "WideStart": ("is of float64 where the arguments are of float32", "start()"),
    "TooManyFeatures": ("first of what start() gives has shape (10, 64); (64, 64) is expected", "start()"),
    "WrongHeadSquares": ("head_squares() gives", "head_squares()"),
    "WrongHeadSum": ("head_sum() of slope.scores is not slope.head", "head_sum()"),
    "FromOne": ("predict() gives 10; there are the classes 0 to 9", "predict()"),
    "FalselyConvex": ("convex = True", "loss()"),
    "FalselyPositive": ("nonnegative = True", "loss()"),
    "BatchNormalized": ("called with part of the samples, loss()", "loss()"),
    "OneHeadForAll": ("with a head for each client, loss()", "loss()"),
    "SumOverClients": ("for several clients at once, slope.head.second", "slope()"),
    "Widened": ("slope.scores is of float64 where the arguments are of float32", "slope()"),
    "WrongShape": ("what loss() gives has shape (1, 6, 1); (1, 6) is expected", "loss()"),
    "PlainTuple": ("slope() gives a tuple; a Slope(loss, head, scores) is expected", "slope()"),
    "NeverFinite": ("loss() is not finite at any of 3 points", "loss()"),
    "NotAdjoint": ("pull() is to be the adjoint of scores()", "pull() or scores()"),
    "NotLinear": ("scores() are not linear in the features", "scores()"),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_wrong_objective(digits: Path, tmp_path: Path, name: str) -> None:
    said, methods = OBJECTIVES[name]
    bias = {"bias": True} if name == "WrongHeadSum" else {}
    text = refused(job(digits, model={"name": f"own_functions:{name}", **bias}), tmp_path / "run")
    assert text.startswith(f'[model] name = "own_functions:{name}": '), text
    assert said in text, text
    assert text.endswith(f"; correct {methods}"), text
    assert "\n" not in text


def test_a_wrong_slope_at_kinks(regression: Path, tmp_path: Path) -> None:
    text = refused(job(regression, model={"name": "own_functions:KinkDoubled"}), tmp_path / "run")
    assert "slope at scores[" in text
    assert "finite differences of loss give" in text


TERMS = {
    "RateWithoutWeights": ("with weights other than 1, slope.scores", "slope()"),
    "RateOfAnother": ("slope at scores[", "slope()"),
    "FalselyConvexRate": ("convex = True", "loss()"),
    "NegativeRate": ("nonnegative = True", "loss()"),
    "CountedAsNumbers": ("what counted() gives is of float32", "counted()"),
    "CountedAtOnce": ("what counted() gives has shape (); (1, 6) is expected", "counted()"),
    "CountedByOthers": ("counted() of a sample depends on the other samples", "counted()"),
    "WrongServer": ("the gradient that server() gives is", "server()"),
    "HollowServer": ("convex = True, and halfway between two models where what server() gives is", "server()"),
}


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("table", ["minimize", "constraint"])
def test_a_wrong_term(digits: Path, tmp_path: Path, name: str, table: str) -> None:
    term = {"name": f"own_functions:{name}"}
    right = [{"name": "loss", "limit": 2.0}, {"name": "own_functions:Rate", "limit": 0.3}]
    limits = [*right, term | {"limit": 1.0}]
    changes: dict[str, Any] = {"minimize": term} if table == "minimize" else {"constraint": limits}
    if name == "FalselyConvexRate":  # where the loss is not convex, the claim says nothing
        changes["model"] = {"name": "softmax", "bias": False}
    text = refused(job(digits, SSCA, **changes), tmp_path / "run")
    place = "minimize" if table == "minimize" else "constraint 3"
    assert text.startswith(f'[{place}] name = "own_functions:{name}": '), text
    assert TERMS[name][0] in text, text
    assert text.endswith(f"; correct {TERMS[name][1]}"), text


def test_a_wrong_server_whatever_the_seed(classes: Path, tmp_path: Path) -> None:
    """The curvature of a square along a random direction does not hide that its gradient is half of the derivative."""
    for seed in range(8):
        task = job(classes, SSCA, minimize={"name": "own_functions:WrongServer"}, seed=seed)
        assert "the gradient that server() gives is" in refused(task, tmp_path / f"run-{seed}")


REGULARIZERS = {
    "InverseStep": "is no minimizer",
    "NoStep": "is no minimizer",
    "HalfStep": "is no minimizer",
    "BiasesToo": "is no minimizer",
    "OfSquares": "is no minimizer",
    "NoProx": "is no minimizer",
    "WideProx": "first of what prox() gives is of float64 where the model is of float32",
    "ProxInPlace": "prox() changes its argument `model` in place",
    "RandomProx": "prox() gives different results for equal arguments",
    "ValueIsNone": "value() gives None; a number is expected",
    "OutOfTheBox": "value() is inf at what prox() gives",
}


@pytest.mark.parametrize("name", REGULARIZERS)
@pytest.mark.parametrize("weight", [1e-4, 1.0])
def test_a_wrong_regularizer(digits: Path, tmp_path: Path, name: str, weight: float) -> None:
    settings = {"low": -weight, "high": weight} if name == "OutOfTheBox" else {"weight": weight}
    objective = {"name": "softmax", "bias": True}
    task = job(digits, model=objective, regularizer={"name": f"own_functions:{name}", **settings})
    text = refused(task, tmp_path / "run")
    assert text.startswith(f'[regularizer] name = "own_functions:{name}": '), text
    assert REGULARIZERS[name] in text, text


def test_all_that_is_wrong_is_said_at_once(digits: Path, tmp_path: Path) -> None:
    limits = [{"name": f"own_functions:{name}", "limit": 1.0} for name in ("NegativeRate", "Rate", "RateOfAnother")]
    text = refused(job(digits, SSCA, constraint=limits), tmp_path / "run")
    first, second = text.splitlines()
    assert first.startswith("[constraint 1]")
    assert second.startswith("[constraint 3]")


# --- right ones: the shipped examples, mpifed's own as a user's, with kinks, in float32, exploding -----------------


@pytest.mark.parametrize(
    ("objective", "data"),
    [
        ({"name": "own_functions:MLP", "hidden": 6}, "digits"),
        ({"name": "own_functions:MLP", "hidden": 6, "bias": True}, "sides"),
        ({"name": "own_functions:Softmax"}, "digits"),
        ({"name": "own_functions:Softmax", "bias": True}, "classes"),
        ({"name": "own_functions:InSingle", "bias": True}, "digits"),
        ({"name": "own_functions:Absolute"}, "regression"),
        ({"name": "own_functions:Exponential"}, "regression"),
        ({"name": "jobs.examples.own_objective:Huber", "delta": 0.01}, "regression"),
        ({"name": "jobs.examples.own_objective:Huber"}, "columns"),
    ],
)
def test_a_right_objective(
    objective: dict[str, Any],
    data: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    vertical = {"name": "vertical-sgd", "batch_size": 5, "server_optimizer": {"learning_rate": 1e-3}}
    algorithm = vertical if data in ("sides", "columns") else AVG | {"client_optimizer": {"learning_rate": 1e-3}}
    begin(job(request.getfixturevalue(data), algorithm, model=objective), tmp_path / "run")
    assert _said(tmp_path / "run") == []


@pytest.mark.parametrize(
    "regularizer",
    [{"name": "own_functions:Zero"}, {"name": "own_functions:Ball"}, {"name": "own_functions:Picture"},
     {"name": "own_functions:L1", "weight": 1e-3}],
)  # fmt: skip
def test_a_right_regularizer(digits: Path, tmp_path: Path, regularizer: dict[str, Any]) -> None:
    begin(job(digits, model={"name": "softmax", "bias": True}, regularizer=regularizer), tmp_path / "run")
    assert _said(tmp_path / "run") == []


def test_right_terms(digits: Path, halves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    begin(job(digits, SSCA, minimize={"name": "own_functions:Rate", "classes": [1, 2]}), tmp_path / "one")
    limit = {"name": "jobs.examples.own_constraint:PositiveRate", "classes": [0], "limit": 0.3}
    begin(job(halves, SSCA, model={"name": "logistic", "bias": False}, constraint=[limit]), tmp_path / "two")
    assert _said(tmp_path / "one") == _said(tmp_path / "two") == []


def _said(out: Path) -> list[str]:
    """Warnings about own classes."""
    return [line for line in read_json(out / "run.json")["warnings"] if "own_" in line]


# --- what a run is without and with it -------------------------------------------------------------------------------


@pytest.mark.parametrize("regularizer", [{}, {"regularizer": {"name": "own_functions:L1"}}])
def test_it_changes_no_bit(
    digits: Path, tmp_path: Path, regularizer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = job(digits, model={"name": "own_functions:MLP", "hidden": 6}, rounds=2, **regularizer)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    found, drawn = [], []
    for check in (True, False):
        state = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
        if not check:
            monkeypatch.setattr(setup, "check_own_classes", lambda *given: [])
        result = begin(task, tmp_path / str(check))
        drawn.append(state == (random.getstate(), np.random.get_state()[1].tolist()))  # type: ignore[index]  # noqa: NPY002
        found.append(model_sha256(dict(leaves(result.model))))
    assert found[0] == found[1]
    assert drawn == [True, True]


@pytest.mark.parametrize("data", ["digits", "regression"])
def test_of_a_private_run_no_record_decides_or_is_told(
    data: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other rows give the same words, and none is read."""
    from mpifed.core.block import Block

    monkeypatch.setattr(Block, "take", lambda *given: pytest.fail("a row is read"))
    kind = "Doubled" if data == "digits" else "KinkDoubled"
    private = {"delta": 1e-5, "clip": 1.0, "noise_multiplier": 1.0, "noise": "test"}
    objective = {"name": f"own_functions:{kind}"}
    text = refused(job(request.getfixturevalue(data), model=objective, privacy=private), tmp_path / "run")
    assert "slope at" in text or "head_squares" in text


def test_what_is_said_of_a_masked_run_is_of_no_record(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpifed.core.block import Block

    monkeypatch.setattr(Block, "take", lambda *given: pytest.fail("a row is read"))
    task = job(digits, model={"name": "own_functions:Doubled"}, aggregation={"security": "masked"})
    assert "slope at" in refused(task, tmp_path / "run")


@pytest.mark.launch
@pytest.mark.parametrize("dedicated", ["false", "true"])
def test_all_ranks_end_alike(
    launch: Callable[..., Any], digits: Path, write_job: Any, tmp_path: Path, dedicated: str
) -> None:
    path = write_job(tmp_path / "job.toml", table(digits, AVG, model={"name": "own_functions:Doubled"}))
    texts = []
    for ranks in (None, 2):
        out = tmp_path / str(ranks)
        ended = launch(ranks, "run", path, "--set", f"server.dedicated={dedicated}", "--out", out)
        assert ended.code == 2, ended.text
        assert ended.text.count("mpifed: error: [model]") == 1, ended.text
        assert "Traceback" not in ended.text
        texts.append(ended.err.strip().splitlines()[-1])
    assert texts[0] == texts[1]


@pytest.mark.launch
@pytest.mark.parametrize("ranks", [0, 2])
def test_an_exception_in_the_class_stays_one(
    launch: Callable[..., Any], digits: Path, write_job: Any, tmp_path: Path, ranks: int
) -> None:
    path = write_job(tmp_path / "job.toml", table(digits, AVG, model={"name": "own_functions:Raises"}))
    ended = launch(ranks, "run", path, "--out", tmp_path / "run")
    assert ended.code == 1, ended.text
    assert ended.text.count("RuntimeError: trouble in a loss") == 1, ended.text


def test_every_wrong_class_here_is_tried() -> None:
    """None is forgotten above."""
    wrong = {one.__name__ for one in vars(own_functions).values() if isinstance(one, type) and
             issubclass(one, own_functions.Wrong) and one is not own_functions.Wrong}  # fmt: skip
    assert wrong <= set(OBJECTIVES)
