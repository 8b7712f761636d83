"""Bytes up and down are those of a deployment, number by number: who sends and hears how much in a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from ended import run
from jobs_in_python import checked
from lengths import covering
from methods import SIZES
from registry import table

from mpifed.core.errors import Interrupted
from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.testing import Job, Solo

ROUNDS, B, J, L = 3, 7, 4, 10  # minibatch, hidden cells, classes
HEAD = J * L
CLASSES = {"name": "loss", "classes": [0, 1, 2], "limit": 2.0}
OVERALL = {"name": "loss", "limit": 2.2}
BALL = {"name": "norm", "limit": 50.0}

# the grid of sums: settings of the job, bytes of a number up and in a sum, bytes of a number of the model
GRIDS: dict[str, tuple[dict[str, Any], int, int]] = {
    "int64": ({}, 8, 4),
    "int64, float64": ({"compute": {"dtype": "float64"}}, 8, 8),
}


def limbs(names: list[str]) -> dict[str, Any]:
    """Settings of all fields of the exchanges `names`, so that a number takes two integers."""
    return {"aggregation": {"bounds": dict.fromkeys(names, 2.0**40)}}


class Sent(NamedTuple):
    """Numbers, by client."""

    up: Any  # [N] in a round
    sum: Any  # [N] heard of sums
    model: Any  # [N] told in the model's dtype
    other: Any  # [N] told of 8 bytes each


def ledger(job: Job, out: Path) -> tuple[Any, Any]:
    """(up, down) [rounds + 1], before any round and after each."""
    run(job, Solo(), out)
    history = read_history(out)
    assert history["round"].tolist() == list(range(ROUNDS + 1))
    return history["up_bytes"], history["down_bytes"]


def check(job: dict[str, Any], out: Path, sent: Sent, up: int, model: int, setup: tuple[int, int] = (0, 0)) -> None:
    task = checked(job)
    t = np.arange(ROUNDS + 1)
    found = ledger(task, out)
    np.testing.assert_array_equal(found[0], setup[0] + t * up * sent.up.sum())
    down = up * sent.sum + model * sent.model + 8 * sent.other
    np.testing.assert_array_equal(found[1], setup[1] + t * down.sum())


def job(folder: Path, algorithm: dict[str, Any], **tables: Any) -> dict[str, Any]:
    base = {
        "model": {"name": "mlp", "bias": False, "hidden": J},
        "record": {"evaluate_every": 1, "checkpoint_every": 0},
    }
    return table(folder, algorithm, rounds=ROUNDS, **(base | tables))


# --- rows --------------------------------------------------------------------------------------------------------


def horizontal(folder: Path, K: int = 1, constrained: bool = False, classes: bool = False) -> Sent:
    """Each client sends K gradients, K values where there are constraints, and its weight."""
    each = np.ones(open_federation(folder).clients, dtype=int)
    d = 64 * J + HEAD
    return Sent(each * (K * d + K * constrained + 1), 0 * each, each * d, each * K * classes)


@covering({"folder": ["digits", "skewed"], "grid": [*GRIDS, "limbs"]}, 1)
def test_rows(folder: str, grid: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    data = request.getfixturevalue(folder)
    algorithm = {"name": "ssca", **SIZES}
    tables, up, model = GRIDS.get(grid) or (limbs(["gradients"]), 16, 4)
    check(job(data, algorithm, **tables), tmp_path / "run", horizontal(data), up, model)


@pytest.mark.parametrize("name", ["fedavg", "ssca"])
def test_only_those_present_send(name: str, skewed: Path, tmp_path: Path) -> None:
    own = {"fedavg": {"batch_size": B, "client_optimizer": {"learning_rate": 0.1}}, "ssca": SIZES}[name]
    whole = horizontal(skewed)
    some = Sent(*(numbers[:4] for numbers in whole))
    if name == "fedavg":
        some = some._replace(other=some.other + 1)  # the step size
    task = job(skewed, {"name": name, **own}, participation={"clients_per_round": 4})
    check(task, tmp_path / "run", some, 8, 4)


def test_rows_with_constraints(digits: Path, tmp_path: Path) -> None:
    """What needs no samples costs nothing; shares are told where classes are counted, after a set-up."""
    algorithm = {"name": "ssca", **SIZES, "slack_cost": 10.0}
    norm = job(digits, algorithm, minimize={"name": "norm"}, constraint=[OVERALL])
    check(norm, tmp_path / "norm", horizontal(digits, 1, True), 8, 4)
    ball = job(digits, algorithm, constraint=[BALL])
    check(ball, tmp_path / "ball", horizontal(digits, 1, True), 8, 4)
    several = job(digits, algorithm, constraint=[CLASSES, BALL, OVERALL])
    check(several, tmp_path / "several", horizontal(digits, 3, True, classes=True), 8, 4, setup=(8 * 3 * 8, 0))


def test_rows_with_variance_reduction(digits: Path, tmp_path: Path) -> None:
    """Two models down and how much is kept, the same bytes up."""
    algorithm = {"name": "ssca", **SIZES, "variance_reduction": "recursive"}
    plain = horizontal(digits)
    sent = plain._replace(model=2 * plain.model, other=plain.other + 1)
    check(job(digits, algorithm), tmp_path / "run", sent, 8, 4)


# --- columns -----------------------------------------------------------------------------------------------------


class Vertical(NamedTuple):
    """What a vertical round's bytes depend on."""

    K: int = 1  # functions of samples
    constrained: bool = False
    classes: bool = False
    holder: int | None = None
    sender: int = 0

    def sent(self, widths: Any) -> Sent:
        """By client, from the columns of each."""
        N = len(widths)
        is_head, is_holder = np.arange(N) == self.sender, np.arange(N) == self.holder
        scores = J * B  # of B rows: never of B rows and K_i columns
        slopes = self.K * J * B
        up = scores + widths * J * self.K + is_head * (self.K * HEAD + self.K * self.constrained)
        heard = np.full(N, scores)
        if self.holder is not None:
            up = up + is_holder * slopes  # who has the labels hears the scores, and tells the others what follows
            heard = is_holder * scores + slopes
        told = widths * J + HEAD  # of the first layer, a client's own columns
        other = B + self.K * self.classes  # row numbers, shares
        return Sent(up, heard, told, np.full(N, other))


def widths_of(folder: Path) -> Any:
    return open_federation(folder).widths


VERTICAL: dict[str, tuple[dict[str, Any], dict[str, Any], Vertical]] = {
    "plain": ({}, {}, Vertical()),
    "label holder": ({"label_holder": 3}, {}, Vertical(holder=3, sender=3)),
    "norm": ({}, {"minimize": {"name": "norm"}, "constraint": [OVERALL]}, Vertical(1, True)),
    "constraints": (
        {"label_holder": 1},
        {"constraint": [CLASSES, BALL, OVERALL]},
        Vertical(3, True, True, holder=1, sender=1),
    ),
    "everything": ({"label_holder": 1}, {"constraint": [CLASSES]}, Vertical(2, True, True, holder=1, sender=1)),
}


def setup_bytes(about: Vertical) -> tuple[int, int]:
    """Counts, by the one who tells them."""
    return (8 * about.K, 0) if about.classes else (0, 0)


@covering({"folder": ["sides", "scattered"], "case": VERTICAL}, 1)
def test_columns(folder: str, case: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    data, (hyper, tables, about) = request.getfixturevalue(folder), VERTICAL[case]
    algorithm = {"name": "ssca", **SIZES, "slack_cost": 10.0, **hyper}
    sent = about.sent(widths_of(data))
    check(job(data, algorithm, **tables), tmp_path / "run", sent, 8, 4, setup_bytes(about))


@pytest.mark.parametrize("holder", [None, 1])
def test_columns_of_the_baseline(holder: int | None, scattered: Path, tmp_path: Path) -> None:
    """The same messages as Algorithm 3."""
    algorithm: dict[str, Any] = {"name": "vertical-sgd", "batch_size": B, "server_optimizer": {"learning_rate": 0.1}}
    if holder is not None:
        algorithm["label_holder"] = holder
    about = Vertical(holder=holder, sender=holder or 0)
    check(job(scattered, algorithm), tmp_path / "run", about.sent(widths_of(scattered)), 8, 4)


@pytest.mark.parametrize("folder", ["digits", "scattered"])
def test_the_set_up_is_counted_once(folder: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Also when the run is interrupted right after it."""
    data = request.getfixturevalue(folder)
    name = "ssca"
    task = checked(job(data, {"name": name, **SIZES, "slack_cost": 10.0}, constraint=[CLASSES]))
    whole = ledger(task, tmp_path / "whole")
    assert whole[0][0] > 0
    with pytest.raises(Interrupted):
        run(task, Solo(), tmp_path / "parts", max_hours=0)
    run(task, Solo(), tmp_path / "parts", resume=True)
    parts = read_history(tmp_path / "parts")
    np.testing.assert_array_equal([parts["up_bytes"], parts["down_bytes"]], whole)


def test_measuring_costs_nothing(scattered: Path, tmp_path: Path) -> None:
    """Whether there are certificates, or measurements at all."""
    found = []
    for name, record in (("none", {"evaluate_every": 0}), ("all", {"evaluate_every": 1, "certify_every": 1})):
        algorithm = {"name": "ssca", **SIZES, "slack_cost": 10.0}
        task = job(scattered, algorithm, constraint=[CLASSES], record={**record, "checkpoint_every": 0})
        run(checked(task), Solo(), tmp_path / name)
        found.append([summary(tmp_path / name)[column] for column in ("up_bytes", "down_bytes", "model_sha256")])
    assert found[0] == found[1]
