"""The papers' condition, against counts that are worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import checked

from mpifed.audit.counts import NEXT, Condition, conditions
from mpifed.audit.recording import Replay, replay_job

SIZES = {"rho": [0.9, 0.3], "gamma": [0.9, 0.35]}


def replay(folder: Path, algorithm: dict[str, Any], rounds: int = 1, **changes: Any) -> Replay:
    table: dict[str, Any] = {
        "name": "conditions", "rounds": 5, "data": {"path": str(folder)}, "model": {"name": "softmax", "bias": False},
        "algorithm": algorithm, "record": {"evaluate_every": 0},
    }  # fmt: skip
    return replay_job(checked(table | changes), rounds)


def of(found: list[Condition], exchange: str, party: str) -> Condition:
    (one,) = [one for one in found if (one.exchange, one.party) == (exchange, party)]
    return one


@pytest.mark.parametrize("batch", [1, 4])
def test_gradients_of_a_linear_model(classes: Path, batch: int) -> None:
    """Six columns and three classes: 18 numbers of a gradient, and its weight, against six of each row."""
    found = replay(classes, {"name": "fedavg", "batch_size": batch, "client_optimizer": {"learning_rate": 0.5}})
    one = of(conditions(found), "changes", "server")
    assert (one.rows, one.unknowns, one.numbers) == (batch, 6 * batch, 6 * 3 + 1)
    assert one.determined == (batch == 1)


@pytest.mark.parametrize(("batch", "determined"), [(1, True), (20, False)])
def test_ssca_horizontal(digits: Path, batch: int, determined: bool) -> None:
    """B K unknowns against d = J (K + L) and a weight, for J = 6, K = 64, L = 10: one sample is given away."""
    model = {"name": "mlp", "bias": False, "hidden": 6}
    found = replay(digits, {"name": "ssca", "batch_size": batch} | SIZES, model=model)
    one = of(conditions(found), "gradients", "server")
    assert (one.unknowns, one.numbers, one.determined) == (64 * batch, 6 * (64 + 10) + 1, determined)


def test_a_sum_is_of_all_who_answered(digits: Path) -> None:
    """The unknowns add up, the numbers do not: eight rows are too many for 2 hidden cells, one is not."""
    steps = {"name": "fedavg", "batch_size": 1, "client_optimizer": {"learning_rate": 0.5}}
    model = {"name": "mlp", "bias": False, "hidden": 2}
    one, total = (
        of(conditions(replay(digits, steps, model=model, aggregation={"security": channel})), "changes", "server")
        for channel in ("plain", "masked")
    )
    assert (one.unknowns, one.receives, one.determined) == (64, "each client's upload", True)
    assert (total.unknowns, total.receives, total.determined) == (512, "the sum of 8 uploads", False)
    assert total.numbers == one.numbers == 2 * 74 + 1


@pytest.mark.parametrize(
    ("algorithm", "exchange"),
    [({"name": "fedlin"}, "preparation"), ({"name": "proxskip", "p": 1.0}, "changes")],
    ids=["fedlin", "proxskip"],
)
def test_no_client_learns_more_than_the_sum(classes: Path, algorithm: dict[str, Any], exchange: str) -> None:
    """From FedLin's mean gradient, which comes with the model again; and from the mean change that ends a round."""
    steps = {"batch_size": 1, "client_optimizer": {"learning_rate": 0.5}}
    found = conditions(replay(classes, algorithm | steps, aggregation={"security": "masked"}))
    total, heard = of(found, exchange, "server"), of(found, exchange, "client 0")
    assert total.numbers == 18 + 1 and (heard.receives, heard.numbers) == (NEXT, 18 + 1)
    assert 0 < heard.unknowns < total.unknowns
    assert "outcome" not in {one.exchange for one in found}  # where nothing is sent to the server


def test_scores_of_vertical_data(hundred: Path) -> None:
    """J scores of a row against its K_i columns for the server of the plain channel; B J sums for a client."""
    ssca = {"name": "ssca", "batch_size": 3} | SIZES
    found = conditions(replay(hundred, ssca, model={"name": "mlp", "bias": False, "hidden": 4}))
    one, heard, others = of(found, "scores", "server"), of(found, "scores", "client 0"), 64 - 13
    assert (one.unknowns, one.numbers, one.determined) == (3 * 12, 3 * 4, False)
    assert (heard.unknowns, heard.numbers) == (3 * others, 12)
    wide = conditions(replay(hundred, ssca, model={"name": "mlp", "bias": False, "hidden": 16}))
    assert of(wide, "scores", "server").determined  # 16 cells, 12 columns


def test_the_server_hears_no_masked_scores(sides: Path) -> None:
    allowed = {"security": "masked", "allow": ["gradients", "all-losses", "certificate-gradients"]}
    found = conditions(replay(sides, {"name": "ssca", "batch_size": 2} | SIZES, aggregation=allowed))
    scores, gradients = of(found, "scores", "server"), of(found, "gradients", "server")
    assert (scores.receives, scores.numbers, scores.determined) == ("nothing", 0, False)
    assert (gradients.receives, gradients.numbers) == ("each client's own values", 640)
