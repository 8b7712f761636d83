"""Keyed random numbers, and rows drawn with them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import covering
from scipy.stats import chisquare

import mpifed.core.round as round_module
from mpifed.core.round import SETUP, Round, below, secret_words

pytestmark = pytest.mark.usefixtures("loops_by")
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
        for purpose in ("minibatch 10", "minibatch 11", "")
        for client in (-1, 0, 1, 10**6)
    }
    seen: set[int] = set()
    for numbers in streams.values():
        assert not seen & set(numbers)  # no two streams share a number, shifted or not
        seen |= set(numbers)


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


@covering({"pair": ["clients", "rounds", "epochs", "places"], "size": [8, 1030]}, 1)
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


@pytest.mark.parametrize("spare", [-26, -18, -12])
def test_too_few_random_numbers_are_followed_by_others(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_module, "_SPARE", spare)  # for 20 rows: 4, 12 or 20 numbers at first
    clients, sizes = np.array([0, 1, 2, 7, 9]), np.array([80, 81, 500, 3000, 80])
    rows = draw(at(), clients, sizes, 20)
    assert all(len(set(row)) == 20 for row in rows.tolist())
    assert (rows >= 0).all() and (rows < sizes[:, None]).all()
    for i in range(5):
        np.testing.assert_array_equal(draw(at(), clients[i : i + 1], sizes[i : i + 1], 20)[0], rows[i])


# --- secret numbers --------------------------------------------------------------------------------------------------

# NIST's test vectors of AES-GCM, cases 1 and 13 to 14: blocks 0 and 1 of a key of zeros, and block 2 where it is given
ZERO_KEYS = {
    16: "66e94bd4ef8a2c3b884cfa59ca342b2e58e2fccefa7e3061367f1d57a4e7455a",
    32: "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738bcea7403d4d606b6e074ec5d3baf39d18",
}


@pytest.mark.parametrize("size", ZERO_KEYS)
def test_secret_numbers_are_aes_in_counter_mode(size: int) -> None:
    words = secret_words(bytes(size))
    blocks = [words(count) for count in (1, len(ZERO_KEYS[size]) // 16 - 1)]
    assert np.concatenate(blocks).tobytes().hex() == ZERO_KEYS[size]


@pytest.mark.parametrize("index", [SETUP, 0, 1, 2**40])
def test_a_round_has_counters_of_its_own(index: int) -> None:
    """Its number is their upper half."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key, counters = os.urandom(32), np.array([[index, 0], [index, 1]]).astype(">i8").tobytes()
    blocks = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(counters)
    assert secret_words(key, index)(4).tobytes() == blocks


def secure(index: int = 0) -> Round:
    return Round(index, 1, NOBODY, secure=True)


# what is not seeded passes but for one in 10^9
SURE = 1e-9


@pytest.mark.parametrize("size", [1, 7, SMALL, LARGE])
def test_secure_draws(size: int) -> None:
    clients, sizes, count = np.arange(3), np.full(3, size), 2 * size + size // 2
    rows = secure().draw("rows", clients, sizes, count, secret=True)
    assert rows.shape == (3, count)
    for row in rows.tolist():
        assert sorted(row[:size]) == sorted(row[size : 2 * size]) == list(range(size))
        assert len(set(row[2 * size :])) == size // 2
        assert set(row) <= set(range(size))
    if size >= SMALL:
        others = [now.draw("rows", clients, sizes, count, secret=True) for now in (secure(), at())]
        assert len({tuple(row) for some in (rows, *others) for row in some.tolist()}) == 9


def test_only_what_is_secret_is_not_keyed() -> None:
    clients, sizes = np.arange(4), np.array([9, SMALL, 1000, LARGE])
    np.testing.assert_array_equal(secure().draw("rows", clients, sizes, 9), at().draw("rows", clients, sizes, 9))
    for secret in (False, True):
        np.testing.assert_array_equal(
            at().draw("rows", clients, sizes, 9, secret), at().draw("rows", clients, sizes, 9)
        )


@pytest.mark.parametrize("size", [10, 12])  # of one client, and of all of them at once
def test_secure_draws_take_every_row_as_often(size: int) -> None:
    rows = secure().draw("rows", np.arange(6000), np.full(6000, size), 3, secret=True)
    assert all(len(set(row)) == 3 for row in rows.tolist())
    assert chisquare(np.bincount(rows.ravel(), minlength=size)).pvalue > SURE
    assert chisquare(np.bincount(rows[:, 0], minlength=size)).pvalue > SURE
    others = (rows[:, 1] - rows[:, 0]) % size  # neither is a row likelier after another
    assert chisquare(np.bincount(others, minlength=size)[1:]).pvalue > SURE


@pytest.mark.parametrize("chance", [1 / 3, 0.1, 1 - 2.0**-53, 2.0**-60])
def test_a_chance_is_rounded_down(chance: float) -> None:
    """To what the numbers of a generator, multiples of 2^-53, can be below with that probability."""
    steps = below(chance) * 2.0**53
    assert steps == int(steps) and steps <= chance * 2.0**53 < steps + 1


def test_keyed_normals_are_a_clients_own() -> None:
    """Whoever else draws; and every key matters."""

    def normals(now: Round, purpose: str, client: int) -> tuple[float, ...]:
        return tuple(now.normals(purpose, np.array([client]), (4, 3), "float64").ravel().tolist())

    keys = [(s, i, p, c) for s in (1, 2) for i in (0, 1) for p in ("a", "b") for c in (-1, 0, 7)]
    seen = {key: normals(at(key[1], key[0]), key[2], key[3]) for key in keys}
    assert len(set(seen.values())) == len(seen)
    assert all(normals(at(i, s), p, c) == found for (s, i, p, c), found in seen.items())
    assert normals(secure(), "a", 0) != normals(secure(), "a", 0)
    together = at(1).normals("a", np.array([2, 5, 7]), (4, 3), "float64")
    assert tuple(together[2].ravel().tolist()) == normals(at(1), "a", 7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("now", [at(3), secure(3)], ids=["keyed", "secure"])
def test_normals(now: Round, dtype: str) -> None:
    from scipy.stats import kstest

    numbers = now.normals("noise", np.arange(4), (50, 100), dtype)
    assert numbers.shape == (4, 50, 100)
    assert numbers.dtype == dtype
    assert kstest(numbers.ravel(), "norm").pvalue > SURE
    correlations = np.corrcoef(numbers.reshape(4, -1).astype("f8"))[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 6.2 / np.sqrt(5000)


def test_a_forked_process_draws_its_own_numbers() -> None:
    """Else two children would release with the same noise, whose difference tells everything."""
    now = at(0)._replace(secure=True)

    def drawn() -> bytes:
        words = now.words("noise", 0)(4).tobytes()
        return words + now.normals("noise", np.array([0]), (4,)).tobytes()

    drawn()  # the keys are there before
    found = []
    for _ in range(2):
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            os.write(writing, drawn())
            os._exit(0)
        os.waitpid(child, 0)
        found.append(os.read(reading, 1000))
        os.close(reading)
        os.close(writing)
    parts = [one[start : start + 16] for one in (*found, drawn()) for start in (0, 32)]
    assert all(len(one) == 16 for one in parts) and len(set(parts)) == 6
