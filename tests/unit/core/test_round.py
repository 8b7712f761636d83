"""Keyed random numbers, and rows drawn with them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from mpifed.core.round import SETUP, Round

NOBODY = np.zeros(0, dtype=bool)
SMALL, LARGE = 60, 3000  # shards below and above the size that is drawn for all clients at once
both_paths = pytest.mark.parametrize("size", [1, 2, 3, SMALL, 1023, 1024, 1025, LARGE])


def at(index: int = 0, seed: int = 1) -> Round:
    return Round(index, seed, NOBODY)


def draw(now: Round, clients: Any, sizes: Any, count: int, purpose: str = "rows") -> Any:
    return now.draw(purpose, np.asarray(clients), np.asarray(sizes), count)


@both_paths
def test_without_replacement_and_in_range(size: int) -> None:
    for index in range(20):
        for count in {1, size // 2, size - 1, size} - {0}:
            rows = draw(at(index), [0, 1, 5], [size] * 3, count)
            assert rows.shape == (3, count)
            assert rows.dtype == np.int64
            assert rows.min() >= 0
            assert rows.max() < size
            assert all(len(set(row)) == count for row in rows.tolist())


@both_paths
def test_epochs_are_permutations(size: int) -> None:
    count = 3 * size + size // 2
    rows = draw(at(), [2, 3], [size, size], count)
    for row in rows:
        for epoch in range(3):
            assert sorted(row[epoch * size : (epoch + 1) * size]) == list(range(size))
        rest = row[3 * size :].tolist()
        assert len(set(rest)) == len(rest)
    if size >= SMALL:
        first, second = rows[0, :size], rows[0, size : 2 * size]
        assert (first != second).any()
        assert (first != np.arange(size)).any()


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True).map(sorted),
    st.integers(1, 130),
    st.integers(0, 2**62),
    st.data(),
)
def test_a_client_draws_the_same_whoever_else_draws(clients: list[int], count: int, seed: int, data: Any) -> None:
    size_of = {c: data.draw(st.sampled_from([3, 17, 18, 60, 1024, 1025, 1300])) for c in clients}
    now = at(3, seed)
    together = draw(now, clients, [size_of[c] for c in clients], count)
    some = sorted(data.draw(st.sets(st.sampled_from(clients), min_size=1)))
    part = draw(now, some, [size_of[c] for c in some], count)
    for client, row in zip(some, part, strict=True):
        np.testing.assert_array_equal(row, together[clients.index(client)])
        np.testing.assert_array_equal(row, draw(now, [client], [size_of[client]], count)[0])


def test_other_calls_in_between_change_nothing() -> None:
    expected = {size: draw(at(4), [1, 2, 9], [size] * 3, 40) for size in (SMALL, LARGE)}
    numbers = at(4).rng("rows", 1).random(5)
    for size in (LARGE, SMALL):
        draw(at(7), [0, 1], [LARGE, SMALL], 100)
        generator = at(4).rng("rows", 1)
        half = generator.random(2)
        draw(at(4), [1], [size], 3)
        np.testing.assert_array_equal(np.concatenate([half, generator.random(3)]), numbers)
        np.testing.assert_array_equal(draw(at(4), [1, 2, 9], [size] * 3, 40), expected[size])


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_every_key_matters(size: int) -> None:
    drawn = {
        (seed, index, purpose, client): tuple(draw(at(index, seed), [client], [size], 30, purpose)[0].tolist())
        for seed in (1, 2)
        for index in (0, 1, 2)
        for purpose in ("rows", "others")
        for client in (0, 1, 2, 1000)
    }
    assert len(set(drawn.values())) == len(drawn)


def test_every_key_of_a_generator_matters() -> None:
    streams = {
        (seed, index, purpose, client): tuple(Round(index, seed, NOBODY).rng(purpose, client).integers(2**63, size=50))
        for seed in (0, 1, 2**63 - 1)
        for index in (SETUP, 0, 1, 2**40)
        for purpose in ("a", "b", "")
        for client in (-1, 0, 1, 10**6)
    }
    seen: set[int] = set()
    for numbers in streams.values():
        assert not seen & set(numbers)  # no two streams share a number, shifted or not
        seen |= set(numbers)


def test_a_generator_is_a_function_of_its_keys() -> None:
    np.testing.assert_array_equal(at(5).rng("x", 3).standard_normal(9), at(5).rng("x", 3).standard_normal(9))
    everybody = Round(5, 1, np.ones(4, dtype=bool))
    assert everybody.rng("x").random() == at(5).rng("x").random()  # who is present does not matter


def plausible(observed: Any, expected: Any = None) -> None:
    """Chi-square at one in 10^4; the seeds are fixed, so this either always passes or never."""
    observed = np.ravel(observed)
    expected = np.full(observed.size, observed.mean()) if expected is None else np.ravel(expected)
    assert (observed[expected == 0] == 0).all()
    assert chisquare(observed[expected > 0], expected[expected > 0]).pvalue > 1e-4


def many(size: int, count: int, rounds: int, clients: int = 8) -> Any:
    """[rounds * clients, count]"""
    return np.concatenate([draw(at(t), range(clients), [size] * clients, count) for t in range(rounds)])


@pytest.mark.parametrize(("size", "count"), [(7, 3), (10, 1), (16, 15), (60, 20), (1100, 50)])
def test_every_row_is_as_likely(size: int, count: int) -> None:
    rows = many(size, count, 400)
    counts = np.bincount(rows.ravel(), minlength=size)
    # the counts of one draw are dependent: their variance is (1 - count / size) of the multinomial's, no matter here
    plausible(counts)


@pytest.mark.parametrize("size", [4, 5])
def test_every_order_is_as_likely(size: int) -> None:
    rows = many(size, size, 1000)
    orders = np.unique(rows, axis=0, return_counts=True)[1]
    assert len(orders) == {4: 24, 5: 120}[size]
    plausible(orders)


def test_every_subset_is_as_likely() -> None:
    rows = np.sort(many(6, 3, 800), axis=1)
    subsets, counts = np.unique(rows, axis=0, return_counts=True)
    assert [tuple(s) for s in subsets.tolist()] == list(combinations(range(6), 3))
    plausible(counts)


@pytest.mark.parametrize("size", [8, 1030])
@pytest.mark.parametrize("pair", ["clients", "rounds", "epochs", "places"])
def test_no_pairs_that_depend_on_each_other(size: int, pair: str) -> None:
    if pair == "epochs":
        rows = many(size, size + 1, 700)
        one, two = rows[:, 0], rows[:, size]
    elif pair == "places":
        rows = many(size, 2, 700)
        one, two = rows[:, 0], rows[:, 1] - (rows[:, 1] > rows[:, 0])
    else:
        rows = np.stack([draw(at(t), range(8), [size] * 8, 1)[:, 0] for t in range(700)])
        one, two = (rows[:, :-1], rows[:, 1:]) if pair == "clients" else (rows[:-1], rows[1:])
    scaled = (one * 6 // size * 6 + two * 6 // size).ravel()
    bins = np.bincount(np.arange(size) * 6 // size, minlength=6)
    second = np.bincount(np.arange(size - 1) * 6 // size, minlength=6) if pair == "places" else bins
    expected = np.outer(bins / bins.sum(), second / second.sum()).ravel() * scaled.size
    plausible(np.bincount(scaled, minlength=36), expected)


def test_order_within_a_batch_is_random() -> None:
    """Where several steps share one draw, the first rows must not be the smaller ones."""
    for size in (50, 2000):
        rows = many(size, 20, 100)
        first, second = rows[:, :10].ravel() >= size // 2, rows[:, 10:].ravel() >= size // 2
        plausible([first.sum(), (~first).sum()])
        plausible([second.sum(), (~second).sum()])


@pytest.mark.parametrize("index", [SETUP, 0, 2**40])
def test_large_numbers_of_rounds_seeds_and_clients(index: int) -> None:
    rows = draw(Round(index, 2**63 - 1, NOBODY), [0, 10**6, 10**9], [10, 2000, 10], 10)
    assert sorted(rows[0].tolist()) == sorted(rows[2].tolist()) == list(range(10))


def test_no_clients() -> None:
    assert draw(at(), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 3).shape == (0, 3)
