"""Systems of linear equations: exact with enough of them, and honest with fewer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attacked import digits

from mpifed import StepSize
from mpifed.algorithms.revealed import of_statistics
from mpifed.algorithms.ssca_vertical import SSCAVertical
from mpifed.audit.attacks.inversion import invert
from mpifed.audit.attacks.linear import (
    rows_from_duals,
    rows_from_products,
    rows_from_scores,
    rows_from_slopes,
)
from mpifed.audit.attacks.matching import match_all, recovered
from mpifed.core.block import Block
from mpifed.core.exchange import Problem
from mpifed.core.round import SETUP, Round
from mpifed.maths.objectives import MLP, Softmax

RNG = np.random.default_rng(4)
S, P = 12, 7
ROWS = RNG.standard_normal((S, P))
FACTOR = 0.03 * S


def duals(rounds: int, moving: int = S) -> tuple[Any, Any]:
    """alpha [T, s], of which the first `moving` move, and the w that they make: X' alpha = lambda N w."""
    alpha = np.zeros((rounds, S))
    alpha[:, :moving] = RNG.uniform(0, 1, (rounds, moving))
    return alpha, alpha @ ROWS / FACTOR


def test_duals_and_models_give_all_rows() -> None:
    found = rows_from_duals(*duals(S), FACTOR)
    np.testing.assert_allclose(found.rows, ROWS, atol=1e-9)
    assert found.determined.all()
    assert found.needed == S and (found.rank == S).all()
    assert found.residual < 1e-12


def test_too_few_rounds_of_duals_give_no_row() -> None:
    found = rows_from_duals(*duals(S - 1), FACTOR)
    assert not found.determined.any()
    assert (found.rank == S - 1).all()
    assert np.linalg.norm(found.rows - ROWS, axis=1).min() > 1e-3
    assert np.linalg.norm(found.rows) < np.linalg.norm(ROWS)  # of least norm


def test_duals_that_never_move_stay_unknown_and_the_others_do_not() -> None:
    found = rows_from_duals(*duals(9, moving=8), FACTOR)
    np.testing.assert_allclose(found.rows[:8], ROWS[:8], atol=1e-9)
    assert found.determined[:8].all() and not found.determined[8:].any()
    assert not found.rows[8:].any()


def test_duals_that_move_together_give_their_sum() -> None:
    alpha, _ = duals(20)
    alpha[:, 1] = alpha[:, 0]
    found = rows_from_duals(alpha, alpha @ ROWS / FACTOR, FACTOR)
    assert not found.determined[:2].any() and found.determined[2:].all()
    np.testing.assert_allclose(found.rows[0] + found.rows[1], ROWS[0] + ROWS[1], atol=1e-9)


def test_single_precision_is_enough() -> None:
    """As a run has it; what rounding leaves open is not called determined."""
    alpha, w = duals(3 * S)
    found = rows_from_duals(alpha.astype(np.float32), w.astype(np.float32), FACTOR)
    np.testing.assert_allclose(found.rows, ROWS, atol=1e-4)
    assert found.determined.all()
    alpha[:, 1] = alpha[:, 0] * (1 + 1e-7)
    found = rows_from_duals(alpha.astype(np.float32), (alpha @ ROWS / FACTOR).astype(np.float32), FACTOR)
    assert not found.determined[:2].any()


def test_products_give_all_rows() -> None:
    w = RNG.standard_normal((P, P))
    found = rows_from_products(w, w @ ROWS.T)
    np.testing.assert_allclose(found.rows, ROWS, atol=1e-9)
    assert found.determined.all() and found.needed == P and (found.rank == P).all()


def test_products_at_weights_of_zero_tell_nothing_of_those_features() -> None:
    """Four rounds, two features whose weights stay zero, five that are needed."""
    w = RNG.standard_normal((4, P))
    w[:, [2, 5]] = 0
    found = rows_from_products(w, w @ ROWS.T)
    assert not found.determined.any() and (found.rank == 4).all()
    w = np.concatenate([w, w[:1] + np.eye(P)[:1]])
    found = rows_from_products(w, w @ ROWS.T)
    seen = np.array([True, True, False, True, True, False, True])
    assert (found.determined == seen).all()
    np.testing.assert_allclose(found.rows[:, seen], ROWS[:, seen], atol=1e-9)
    np.testing.assert_allclose(found.rows[:, ~seen], 0, atol=1e-12)


def test_products_of_absent_samples() -> None:
    """NaN in rounds without them: sample 0 was there often enough, sample 1 was not, sample 2 never."""
    w = RNG.standard_normal((P + 2, P))
    products = w @ ROWS.T
    products[:2, 0] = np.nan
    products[:3, 1] = np.nan
    products[:, 2] = np.nan
    found = rows_from_products(w, products)
    assert found.rank[:3].tolist() == [P, P - 1, 0]
    np.testing.assert_allclose(found.rows[[0, *range(3, S)]], ROWS[[0, *range(3, S)]], atol=1e-9)
    assert found.determined[0].all() and not found.determined[1:3].any()
    assert np.isfinite(found.residual)


def test_scores_of_several_rounds() -> None:
    """Three scores a round and seven columns: a row is needed in three rounds."""
    rows = np.array([[0, 1, 2, 3], [3, 0, 1, 5], [5, 0, 3, 7], [3, 8, 9, 5]])
    weights = RNG.standard_normal((4, P, 3))
    scores = np.stack([ROWS[some] @ w for some, w in zip(rows, weights, strict=True)])
    numbers, found = rows_from_scores(rows, scores, weights)
    assert numbers.tolist() == [0, 1, 2, 3, 5, 7, 8, 9]
    assert found.rank.tolist() == [7, 6, 3, 7, 7, 3, 3, 3]
    full = np.isin(numbers, [0, 3, 5])
    assert (found.determined.all(axis=1) == full).all() and found.needed == P
    np.testing.assert_allclose(found.rows[full], ROWS[numbers[full]], atol=1e-9)
    assert np.linalg.norm(found.rows[~full] - ROWS[numbers[~full]], axis=1).min() > 1e-3


# --- what vertical SSCA sends ----------------------------------------------------------------------------------------

X, Y = digits()
HELD = [slice(0, 20), slice(20, 64)]


def vertical(objective: Any, array_shard: Any, rounds: int, batch: int = 6) -> list[tuple[Any, list[Any], Any]]:
    """(question, each client's partial scores [b, h], the opened gradient) of some rounds."""
    problem = Problem(objective, "columns", np.full(2, 40), 40, 64, 10)
    one: Any = SSCAVertical(
        problem=problem, batch_size=batch, rho=StepSize(0.9, 0.3), gamma=StepSize(0.9, 0.35), tau=1.0
    )
    assert one.check() == []
    shards = [array_shard(i, X[:40, part], Y[:40]) for i, part in enumerate(HELD)]
    for shard, part in zip(shards, HELD, strict=True):
        shard.columns = np.arange(64)[part]
    block, now = Block(tuple(shards)), Round(SETUP, 1, np.ones(2, dtype=bool))
    server, found = one.start_server(now), []
    for index in range(rounds):
        now, clients = now._replace(index=index), one.start_clients(block, now)
        scores, gradients = one.exchanges
        question = scores.ask(server, now)
        clients, partial = scores.answer(clients, question, block, now)
        total = type(partial)(partial.partial.sum(axis=0))
        clients = scores.absorb(clients, total, block, now)
        clients, gathered = gradients.answer(clients, (), block, now)
        first = np.asarray(gathered.statistics.gradient.first).sum(axis=0)
        head = gathered.statistics.gradient.head
        heard = gathered._replace(
            statistics=gathered.statistics._replace(
                gradient=gathered.statistics.gradient._replace(
                    first=first, head=() if head == () else type(head)(*(leaf[0] for leaf in head))
                )
            )
        )
        found.append((question, list(partial.partial[:, 0]), heard.statistics.gradient))
        server = gradients.absorb(server, heard, now)
    return found


def test_one_round_of_partial_scores_gives_the_columns(array_shard: Any) -> None:
    """Fifty hidden cells against 20 and 44 columns, in float32."""
    ((question, scores, _),) = vertical(MLP(hidden=50), array_shard, 1)
    for part, sent in zip(HELD, scores, strict=True):
        numbers, found = rows_from_scores(question.rows[None], sent[None], question.model.first[part][None])
        assert found.determined.all()
        np.testing.assert_allclose(found.rows, X[numbers][:, part], atol=1e-3)


def test_ten_scores_need_several_rounds(array_shard: Any) -> None:
    """Softmax: ten scores, of which nine are independent; 20 columns, and what the rounds add."""
    heard = vertical(Softmax(), array_shard, 8)
    asked = np.array([question.rows for question, _, _ in heard])
    weights = np.array([question.model.first[HELD[0]] for question, _, _ in heard])
    numbers, found = rows_from_scores(asked, np.array([scores[0] for _, scores, _ in heard]), weights)
    times = np.array([(asked[1:] == number).sum() for number in numbers])  # the model of round 0 is zero
    assert (found.rank <= 9 * times).all()
    whole = found.determined.all(axis=1)
    assert not whole[times < 3].any()
    np.testing.assert_allclose(found.rows[whole], X[numbers[whole]][:, HELD[0]], atol=2e-2)


def test_slopes_and_gradients_give_the_minibatch(array_shard: Any) -> None:
    """What the holder of the labels tells the others, beside a client's own gradient."""
    objective = MLP(hidden=50)
    ((question, scores, opened),) = vertical(objective, array_shard, 1)
    y, weights = Y[question.rows], np.full(6, 1 / 6)
    slopes = objective.slope(question.model.head, sum(scores), y, weights).scores
    found = rows_from_slopes(opened.first[0][HELD[1]], slopes)
    assert found.determined.all() and found.needed == 6
    np.testing.assert_allclose(found.rows, X[question.rows][:, HELD[1]], atol=1e-3)


def test_more_rows_than_scores_are_not_determined() -> None:
    slopes = RNG.standard_normal((5, 3))
    found = rows_from_slopes(ROWS[:5].T @ slopes, slopes)
    assert not found.determined.any()
    assert (found.rank == 3).all() and found.needed == 5


@pytest.mark.parametrize("batch", [1, 4])
def test_the_opened_gradient_of_a_vertical_round_is_that_of_whole_rows(batch: int, array_shard: Any) -> None:
    """So that `reconstruct` and `invert` apply to what the server hears, in whatever channel."""
    objective = MLP(hidden=50)
    ((question, _, opened),) = vertical(objective, array_shard, 1, batch)
    rows, seen = question.rows, of_statistics(opened, 1.0)
    own = objective.gradient(question.model, X[rows].astype("f4"), Y[rows], np.full(batch, 1 / batch))
    np.testing.assert_allclose(seen.first, own.first, atol=1e-6)
    np.testing.assert_allclose(seen.head.second, own.head.second, atol=1e-6)
    found = invert(objective, question.model, seen, batch)
    assert found.claimed
    assert recovered(match_all(found.rows, X[rows])) == batch
