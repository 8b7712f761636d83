"""Where methods with local steps rest: within 1e-8 of the optimum, although clients are unlike and take several steps.

Every minibatch is the whole shard. Shards are unequal, and least squares with l2 have their optimum in closed form.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import long_unless
from loops import local_job, played, rows_of
from paper import make_data

from mpifed.testing import Job

L2 = 0.05
FOUR = {"local_steps": 4, "client_optimizer": {"learning_rate": 0.4}}  # of FedLin: 0.1 a step
SOME = {"participation": {"clients_per_round": 3}}
ONE = {"name": "top-k", "k": 1}
FAST = {"participation": {"stragglers": 0.5, "drop_stragglers": True}}
# name, [algorithm], other tables, rounds, whether clients count alike
REST: list[tuple[str, dict[str, Any], dict[str, Any], int, bool]] = [
    ("scaffold", {"local_steps": 4}, SOME, 1500, False),
    ("proxskip", {"p": 0.3}, SOME, 1500, False),
    ("tamuna", {"p": 0.3, "senders": 2}, FAST, 1500, True),
    ("fedlin", FOUR, {}, 400, False),
    ("mime", {"local_steps": 4, "alpha": 0.5, "batch_size": 2}, {}, 800, False),
    ("feddyn", {"local_steps": 4, "alpha": 0.3}, SOME, 600, True),
    ("fedadmm", {"local_steps": 4, "rho": 0.3, "weights": "rows"}, SOME, 600, False),
    ("fedsplit", {"local_steps": 4, "s": 2.0, "start": "own", "weights": "rows"}, {}, 400, False),
    ("fedavg", {}, {"compression": ONE | {"memory": "ef21"}}, 800, False),
    ("fedavg", {}, SOME | {"compression": ONE | {"memory": "ef21-sgdm"}}, 1500, False),
    ("fedavg", {}, SOME | {"compression": {"name": "natural", "memory": "diana"}}, 1000, False),
    ("fedavg", {}, {"compression": {"name": "rand-k", "k": 1, "memory": "diana"}}, 1000, False),
]


@pytest.fixture(scope="module")
def unlike(shared_path: Path) -> Path:
    """6 clients with 2 to 17 rows of 4 features, and targets that are mostly noise."""
    who, starts = shared_path / "unlike.csv", [0, 2, 6, 13, 23, 33, 50]
    rows = [f"{i},{start}-{stop - 1},all" for i, (start, stop) in enumerate(pairwise(starts))]
    who.write_text("\n".join(["client,rows,columns", *rows]))
    asked = ("--samples", 50, "--features", 4, "--task", "regression", "--noise", 2)
    return make_data(shared_path / "unlike", "synthetic", *asked, "--split", "rows", "--map", who)


def resting(folder: Path, name: str, rounds: int = 400, **more: Any) -> Job:
    tables = {name: more.pop(name) for name in ("participation", "simulated_network", "compression") if name in more}
    hyper = {"name": name, "batch_size": 100, "client_optimizer": {"learning_rate": 0.1}, **more}
    return local_job(folder, hyper, model={"name": "least-squares", "bias": False, "l2": L2}, rounds=rounds, **tables)


def optimum(folder: Path, uniform: bool = False) -> tuple[Any, Any]:
    """(the clients' weights [N], the minimum [d] of the mean with these)."""
    data = rows_of(folder)
    weights = np.array([1 if uniform else len(y) for _, y in data], float)
    weights /= weights.sum()
    H = sum(p * X.T @ X / len(y) for p, (X, y) in zip(weights, data, strict=True)) + 2 * L2 * np.eye(4)
    return weights, np.linalg.solve(H, sum(p * X.T @ y / len(y) for p, (X, y) in zip(weights, data, strict=True)))


@pytest.mark.parametrize(
    ("name", "settings", "tables", "rounds", "uniform"), long_unless(lambda *case: case[3] < 1500, REST)
)
def test_it_rests_at_the_optimum(
    unlike: Path, name: str, settings: dict[str, Any], tables: dict[str, Any], rounds: int, uniform: bool
) -> None:
    weights, best = optimum(unlike, uniform)
    found = played(resting(unlike, name, rounds, **settings, **tables))
    np.testing.assert_allclose(found.model, best, rtol=0, atol=1e-8)
    if name in ("proxskip", "tamuna"):  # whose control variates are what keeps it there
        np.testing.assert_allclose(weights @ found.kept(""), 0, atol=1e-10)
        assert np.abs(found.kept("")).max() > 0.1


@pytest.mark.parametrize(("name", "settings", "uniform"), [
    ("fedavg", {"local_steps": 4}, False),
    ("fedavg", {"compression": ONE}, False),
    ("fedavg", {"compression": ONE | {"memory": "error-feedback"}}, False),
    ("fedsplit", {"local_steps": 4, "s": 2.0, "start": "paper"}, True),
    ("fedspeed", {"local_steps": 4, "alpha": 0.3}, True),
], ids=str)  # fmt: skip
def test_it_does_not(unlike: Path, name: str, settings: dict[str, Any], uniform: bool) -> None:
    found = played(resting(unlike, name, **settings)).model
    assert np.abs(found - optimum(unlike, uniform)[1]).max() > 1e-3


@pytest.mark.parametrize("name", ["fedavg", "fednova"])
def test_it_rests_where_its_closed_form_says(unlike: Path, name: str) -> None:
    """Of clients who take 1 to 9 steps of .1: sum p_i c_i (I - (I - .1 H_i)^K_i) (x - x_i) = 0, c_i = 1 or 1 / K_i."""
    counts = [1, 9, 2, 5, 3, 4]
    late = {"deadline_s": 1.0, "speeds": [float(count) for count in counts]}
    weights, best = optimum(unlike)
    left, right = np.zeros((4, 4)), np.zeros(4)
    for p, count, (X, y) in zip(weights, counts, rows_of(unlike), strict=True):
        H = X.T @ X / len(y) + 2 * L2 * np.eye(4)
        pull = p * (np.eye(4) - np.linalg.matrix_power(np.eye(4) - 0.1 * H, count)) / (count if name != "fedavg" else 1)
        left, right = left + pull, right + pull @ np.linalg.solve(H, X.T @ y / len(y))
    found = played(resting(unlike, name, 600, local_steps=9, simulated_network=late)).model
    np.testing.assert_allclose(found, np.linalg.solve(left, right), rtol=0, atol=1e-8)
    assert np.abs(found - best).max() > 1e-3


# --- identities ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def equal(shared_path: Path) -> Path:
    """6 clients with 8 rows each."""
    asked = ("--samples", 48, "--features", 4, "--task", "regression", "--split", "rows", "--clients", 6)
    return make_data(shared_path / "equal", "synthetic", *asked)


@pytest.mark.parametrize(("one", "other"), [
    (("proxskip", {"p": 1.0}), ("fedavg", {})),  # gradient descent
    (("tamuna", {"p": 0.3}), ("proxskip", {"p": 0.3})),  # of whole models
    (("fedlin", FOUR), ("mime", {"local_steps": 4, "alpha": 1.0})),  # whose minibatches are whole shards
], ids=str)  # fmt: skip
def test_one_is_the_other(equal: Path, one: tuple[str, Any], other: tuple[str, Any]) -> None:
    found, expected = (played(resting(equal, name, 20, **own)).model for name, own in (one, other))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
