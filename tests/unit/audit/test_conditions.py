"""The papers' condition, against counts that are worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import checked

from mpifed.audit.conditions import NEXT, OPEN, UNDERDETERMINED, Condition, conditions
from mpifed.audit.replay import Replay, replay_job

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
    assert one.equations == min(one.unknowns, one.numbers)
    assert one.verdict == (OPEN if batch == 1 else UNDERDETERMINED)
    assert one.missing == (0 if batch == 1 else 5)


def test_ssca_horizontal_as_the_paper_counts(digits: Path) -> None:
    """B K unknowns against d = J (K + L), for J = 6, K = 64, L = 10; one sample and six hidden cells give it away."""
    found = replay(digits, {"name": "ssca", "batch_size": 1} | SIZES, model={"name": "mlp", "bias": False, "hidden": 6})
    one = of(conditions(found), "gradients", "server")
    assert (one.unknowns, one.equations, one.verdict) == (64, 64, OPEN)
    assert "B K = 1 x 64 = 64" in one.paper and "6 x (64 + 10) = 444: 444" in one.paper
    many = replay(digits, {"name": "ssca", "batch_size": 20} | SIZES, model={"name": "mlp", "bias": False, "hidden": 6})
    one = of(conditions(many), "gradients", "server")
    assert (one.unknowns, one.numbers) == (1280, 445)
    assert (one.verdict, one.missing) == (UNDERDETERMINED, 1280 - 445)
    assert "B K = 20 x 64 = 1280" in one.paper


def test_a_sum_is_of_all_who_answered(digits: Path) -> None:
    """The unknowns add up, the numbers do not: eight rows are too many for 2 hidden cells, one is not."""
    tables: dict[str, Any] = {"model": {"name": "mlp", "bias": False, "hidden": 2}}
    plain = conditions(
        replay(digits, {"name": "fedavg", "batch_size": 1, "client_optimizer": {"learning_rate": 0.5}}, **tables)
    )
    masked = conditions(
        replay(
            digits,
            {"name": "fedavg", "batch_size": 1, "client_optimizer": {"learning_rate": 0.5}},
            aggregation={"security": "masked"},
            **tables,
        )
    )
    one, total = of(plain, "changes", "server"), of(masked, "changes", "server")
    assert (one.unknowns, one.receives, one.verdict) == (64, "each client's upload", OPEN)
    assert (total.unknowns, total.receives, total.numbers) == (512, "the sum of 8 uploads", one.numbers)
    assert total.verdict == UNDERDETERMINED
    assert total.equations == one.numbers == 2 * 74 + 1
    assert total.rounds_until == -(-1438 * 64 // total.equations)


@pytest.mark.parametrize(
    ("algorithm", "exchange", "sent"),
    [({"name": "fedlin"}, "preparation", 18 + 1), ({"name": "proxskip", "p": 1.0}, "changes", 18)],
    ids=["fedlin", "proxskip"],
)
def test_the_next_broadcast_may_be_of_the_same_round(
    classes: Path, algorithm: dict[str, Any], exchange: str, sent: int
) -> None:
    """FedLin's mean gradient, which comes with the model again; and the mean change that ends ProxSkip's round."""
    steps = {"batch_size": 1, "client_optimizer": {"learning_rate": 0.5}}
    found = conditions(replay(classes, algorithm | steps, aggregation={"security": "masked"}))
    total, heard = of(found, exchange, "server"), of(found, exchange, "client 0")
    assert total.numbers == 18 + 1 and (heard.receives, heard.numbers) == (NEXT, sent)
    assert 0 < heard.unknowns < total.unknowns
    assert "outcome" not in {one.exchange for one in found}  # where nothing is sent to the server


def test_scores_of_vertical_data(hundred: Path) -> None:
    """J scores of a row against its K_i columns for the server of the plain channel; B J sums for a client."""
    tables: dict[str, Any] = {"model": {"name": "mlp", "bias": False, "hidden": 4}}
    found = replay(hundred, {"name": "ssca", "batch_size": 3} | SIZES, **tables)
    one = of(conditions(found), "scores", "server")
    assert (one.unknowns, one.numbers, one.equations) == (3 * 12, 3 * 4, 3 * 4)
    heard = of(conditions(found), "scores", "client 0")
    others = 64 - 13
    assert (heard.unknowns, heard.numbers, heard.equations) == ((3 + 4) * others, 12, 12)
    assert f"sum of J K_i + B K_i = {4 * others} + {3 * others}" in heard.paper
    assert heard.rounds_until is None  # every round brings weights that are not known
    wide = replay(
        hundred, {"name": "ssca", "batch_size": 3} | SIZES, model={"name": "mlp", "bias": False, "hidden": 16}
    )
    one = of(conditions(wide), "scores", "server")
    assert (one.unknowns, one.equations, one.verdict) == (36, 36, OPEN)  # 16 cells, 12 columns


def test_the_server_hears_no_masked_scores(sides: Path) -> None:
    allowed = {"security": "masked", "allow": ["gradients", "all-losses", "certificate-gradients"]}
    found = conditions(replay(sides, {"name": "ssca", "batch_size": 2} | SIZES, aggregation=allowed))
    scores = of(found, "scores", "server")
    assert (scores.receives, scores.numbers, scores.verdict) == ("nothing", 0, UNDERDETERMINED)
    gradients = of(found, "gradients", "server")
    assert gradients.receives == "each client's own values"
    assert gradients.numbers == 640
