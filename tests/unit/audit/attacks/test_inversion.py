"""Minibatches of a few: found while they leave enough equations, and reported as not found otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attacked import digits, mean_gradient, model_of, objective_of
from lengths import covering

from mpifed.audit.attacks.inversion import Inversion, invert
from mpifed.audit.attacks.matching import match_all, recovered
from mpifed.core.record import map_leaves

X, Y = digits()


def tried(case: str, away: float, X: Any, Y: Any, seed: int = 0, starts: int = 4) -> tuple[Inversion, int]:
    """What is found of these rows, and how many are right with their labels."""
    model = model_of(case, X.shape[1], seed=seed, away=away)
    found = invert(objective_of(case), model, mean_gradient(case, model, X, Y), len(X), starts=starts)
    matches = match_all(found.rows, X)
    right = [one.verdict == "row" and label == Y[one.at] for one, label in zip(matches, found.labels, strict=True)]
    assert recovered(matches) >= sum(right)
    return found, sum(right)


@covering({"batch": [2, 4], "case": ["mlp", "network, bias", "softmax", "one-vs-rest"]}, 1)
def test_small_batches_of_digits(case: str, batch: int) -> None:
    for i in range(4):
        some = slice(batch * i, batch * (i + 1))
        found, right = tried(case, 0.1, X[some], Y[some], seed=i)
        assert found.claimed
        assert right == batch
        assert found.rank == batch
        assert found.residual < 1e-5


@pytest.mark.parametrize("case", ["softmax", "one-vs-rest", "true-class-logistic", "softmax, bias"])
def test_a_model_of_zeros_gives_the_sums_of_the_classes(case: str) -> None:
    """Those that occur once are rows, however many clients there are; of the others the sum is found."""
    once = np.array([np.flatnonzero(np.equal(Y, label))[0] for label in (3, 1, 7, 0, 9, 4)])
    found, right = tried(case, 0.0, X[once], Y[once])
    assert (found.method, found.claimed, right) == ("class sums", True, 6)
    twice = np.append(once, np.flatnonzero(Y == 3)[1])
    found, right = tried(case, 0.0, X[twice], Y[twice])
    assert (found.method, found.claimed, right) == ("class sums", False, 5)
    both = found.rows[found.labels.tolist().index(3)]
    np.testing.assert_allclose(both, X[twice[0]] + X[twice[-1]], atol=1e-5)


def test_noise_ends_it() -> None:
    model = model_of("mlp", 64)
    rng = np.random.default_rng(1)
    seen = map_leaves(
        lambda g: g + np.abs(g).max() * rng.standard_normal(g.shape), mean_gradient("mlp", model, X[:2], Y[:2])
    )
    found = invert(objective_of("mlp"), model, seen, 2, starts=2)
    assert not found.claimed
    assert recovered(match_all(found.rows, X[:2])) == 0
