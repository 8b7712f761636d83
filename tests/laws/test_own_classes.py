"""Wrong classes of a user are refused by `mpifed check`, by their shapes also by a run; right ones are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from registry import table
from whole_runs import run

from mpifed.core.errors import UsageError
from mpifed.core.record import leaves
from mpifed.files.model_file import model_sha256, read_model
from mpifed.testing import Job, Solo, check_model

ROOT = Path(__file__).resolve().parents[2]
AVG = {"name": "fedavg", "batch_size": 5, "client_optimizer": {"learning_rate": 0.1}}
SSCA = {"name": "ssca", "batch_size": 5, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "slack_cost": 9.0}
PRIVATE = {"delta": 1e-5, "clip": 1.0, "noise_multiplier": 1.0, "noise": "test"}


def job(folder: Path, algorithm: dict[str, Any] = AVG, **changes: Any) -> Job:
    return checked(table(folder, algorithm, **({"rounds": 1} | changes)))


Check = Callable[..., str]


@pytest.fixture
def check(launch: Callable[..., Any], write_job: Any, tmp_path: Path) -> Check:
    """What `mpifed check` says is wrong with a job; "" where it is right."""

    def check(task: Job) -> str:
        ended = launch(None, "check", write_job(tmp_path / "job.toml", task.table()))
        assert ended.code in (0, 2), ended.text
        return ended.err if ended.code else ""

    return check


# --- wrong classes, and what is said of them: what a run says too, and what `mpifed check` alone says --------------

SHAPES = {
    "own_functions:WideStart": "start() gives arrays of {'float64'}; {'float32'} is expected",
    "own_functions:TooManyFeatures": "start().first has axes of (10, 64); (64, 64) is expected",
    "own_functions:Widened": "'head.bias': ((3, 10), 'float64')}; {'first': ((3, 64, 10), 'float32')",
    "own_functions:WrongShape": "loss() has shape (3, 6, 1); (3, 6) is expected",
    "own_functions:Transposed": "the slope of the loss has shape (3, 10, 6); (3, 6, 10) is expected",
    "own_networks:WideOutputs": "'float64'",
    "own_networks:NotFinite": "start() gives numbers that are not finite",
}
SLOPE = "the gradient by slope() is"
ALONE = "by single samples alone"
LAWS = {
    **{
        f"own_functions:{name}": SLOPE
        for name in (
            "ZeroSlope", "WrongSign", "Doubled", "OnePercent", "NoWeights", "PositiveWeights", "MeanOfSamples",
            "WrongAxis", "NoHiddenBias", "OneBiasMissing", "NextClass", "InPlace", "OneHeadForAll", "SumOverClients",
            "BatchNormalized", "NeverFinite", "NotAdjoint",
        )
    },
    "own_functions:MeanOfLosses": f"loss() of a sample among others is .*{ALONE}",
    "own_functions:Random": "loss.*other bits the second time",
    "own_functions:RandomStart": "start.*other bits the second time",
    "own_functions:FalselyConvex": "convex = True, and halfway between two models",
    "own_networks:WrongWayBack": SLOPE,
    "own_networks:Noisy": "other bits the second time",
    "own_networks:Centered": ALONE,
    "own_networks:DropsByOthers": "loss() in training of a sample among others",
    "own_networks:DropsAnew": "loss() in training: its function gives other bits the second time",
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_compared_by_a_run_too(digits: Path, tmp_path: Path, check: Check, name: str) -> None:
    task = job(digits, model={"name": name})
    with pytest.raises(UsageError) as error:
        run(task, Solo(), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
    assert str(error.value).startswith(f'[model] name = "{name}": ')
    assert SHAPES[name] in str(error.value)
    assert SHAPES[name] in check(task)


@pytest.mark.parametrize("name", LAWS)
def test_a_wrong_model(digits: Path, check: Check, name: str) -> None:
    task = job(digits, model={"name": name})
    text = check(task)
    assert f'[model] name = "{name}": ' in text
    with pytest.raises(AssertionError, match=LAWS[name].replace("()", r"\(\)")):
        check_model(task)


@pytest.mark.parametrize("level", ["sample", "client"])
def test_a_record_ends_no_private_run(digits: Path, tmp_path: Path, level: str) -> None:
    """Where its pass raises, it counts as zero; where others do, the run ends."""
    model = {"name": "own_networks:Raising"}
    with pytest.raises(IndexError):
        run(job(digits, model=model), Solo(), tmp_path / "open")
    privacy = PRIVATE | {"level": level, "public_preparation": True}
    run(job(digits, model=model, record={"released_only": True}, privacy=privacy), Solo(), tmp_path / "run")
    assert all(np.isfinite(leaf).all() for leaf in read_model(tmp_path / "run" / "model.safetensors").values())


TERMS = {
    "RateWithoutWeights": SLOPE,
    "RateOfAnother": SLOPE,
    "FalselyConvexRate": "convex = True",
    "CountedAsNumbers": "counted() is {'': ((3, 6), 'float32')}; {'': ((3, 6), 'bool')} is expected",
    "CountedAtOnce": "counted() is {'': ((), 'bool')}",
}


@pytest.mark.parametrize("name", TERMS)
def test_a_wrong_term(digits: Path, check: Check, name: str) -> None:
    """All that is wrong is said at once, by its place."""
    term = {"name": f"own_functions:{name}"}
    limits = [{"name": "loss", "limit": 2.0}, {"name": "own_functions:Rate", "limit": 0.3}, term | {"limit": 1.0}]
    text = check(job(digits, SSCA, model={"name": "softmax", "bias": False}, minimize=term, constraint=limits))
    for place in ("minimize", "constraint 3"):
        assert f'[{place}] name = "own_functions:{name}": ' in text
    assert text.count(TERMS[name]) == 2


REGULARIZERS = {
    "InverseStep": "is no minimizer",
    "NoStep": "is no minimizer",
    "HalfStep": "is no minimizer",
    "BiasesToo": "is no minimizer",
    "OfSquares": "is no minimizer",
    "NoProx": "is no minimizer",
    "WideProx": "prox() gives {'first': ((64, 10), 'float64')",
    "ProxInPlace": "prox(): its function changes what it is given",
    "RandomProx": "prox(): its function gives other bits the second time",
    "ValueIsNone": "value() gives None; a number is expected",
    "OutOfTheBox": "is no minimizer",
}


@pytest.mark.parametrize("name", REGULARIZERS)
def test_a_wrong_regularizer(digits: Path, check: Check, name: str) -> None:
    settings = {"low": -1.0, "high": 1.0} if name == "OutOfTheBox" else {"weight": 1.0}
    objective = {"name": "softmax", "bias": True}
    text = check(job(digits, model=objective, regularizer={"name": f"own_functions:{name}", **settings}))
    assert f'[regularizer] name = "own_functions:{name}": ' in text
    assert REGULARIZERS[name] in text


# --- right ones: the shipped examples, mpifed's own as a user's, with kinks, in float32, exploding -----------------

SOFTMAX = {"name": "own_functions:Softmax", "bias": True}
RIGHT: list[tuple[str, dict[str, Any]]] = [
    ("digits", {"model": {"name": "own_functions:MLP", "hidden": 6}, "privacy": PRIVATE}),
    ("sides", {"model": {"name": "own_functions:MLP", "hidden": 6, "bias": True}}),
    ("classes", {"model": SOFTMAX}),
    ("digits", {"model": {"name": "own_functions:InSingle", "bias": True}}),
    ("digits", {"model": {"name": "own_functions:Deep"}, "privacy": PRIVATE}),
    ("sides", {"model": {"name": "own_functions:Deep"}}),
    ("regression", {"model": {"name": "own_functions:Absolute"}}),
    ("regression", {"model": {"name": "own_functions:Exponential"}}),
    ("regression", {"model": {"name": "jobs.examples.own_objective:Huber", "delta": 0.01}}),
    ("columns", {"model": {"name": "jobs.examples.own_objective:Huber"}}),
    ("digits", {"model": {"name": "own_networks:Hidden"}}),
    ("regression", {"model": {"name": "own_networks:Values"}}),
    ("digits", {"model": {"name": "own_networks:Dropping"}, "privacy": PRIVATE}),
    *(
        ("digits", {"model": SOFTMAX, "regularizer": {"name": f"own_functions:{name}"}})
        for name in ("Zero", "Ball", "Picture", "L1")
    ),
    ("digits", {"algorithm": SSCA, "minimize": {"name": "own_functions:Rate", "classes": [1, 2]}}),
    (
        "halves",
        {
            "algorithm": SSCA,
            "model": {"name": "logistic", "bias": False},
            "constraint": [{"name": "jobs.examples.own_constraint:PositiveRate", "classes": [0], "limit": 0.3}],
        },
    ),
]


@pytest.mark.parametrize(("data", "changes"), RIGHT)
def test_right_classes(
    data: str,
    changes: dict[str, Any],
    tmp_path: Path,
    check: Check,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    vertical = {"name": "vertical-sgd", "batch_size": 5, "server_optimizer": {"learning_rate": 1e-3}}
    rows = AVG | {"client_optimizer": {"learning_rate": 1e-3}}
    algorithm = vertical if data in ("sides", "columns") else rows
    task = job(request.getfixturevalue(data), **({"algorithm": algorithm} | changes))
    assert not check(task)
    run(task, Solo(), tmp_path / "run")


def test_no_bit_of_a_run_depends_on_it(digits: Path, tmp_path: Path) -> None:
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    found = []
    for name in ("own_functions:MLP", "mlp"):
        state = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
        result = run(job(digits, model={"name": name, "hidden": 6}), Solo(), tmp_path / name.partition(":")[2])
        assert state == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002
        found.append(model_sha256(dict(leaves(result.model))))
    assert found[0] == found[1]


@pytest.mark.launch
def test_all_ranks_end_alike(launch: Callable[..., Any], digits: Path, write_job: Any, tmp_path: Path) -> None:
    path = write_job(tmp_path / "job.toml", table(digits, AVG, model={"name": "own_functions:WrongShape"}))
    texts = []
    for ranks in (None, 2):
        ended = launch(ranks, "run", path, "--out", tmp_path / str(ranks))
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
