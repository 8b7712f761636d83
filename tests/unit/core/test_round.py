"""Keyed random numbers, rows drawn with them, and who is there in which half of which exchange."""

from __future__ import annotations

import os
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import covering
from scipy.stats import chisquare, kstest

import mpifed.core.round as round_module
from mpifed.core.round import SETUP, Leaving, Round, below, secret_words

pytestmark = pytest.mark.usefixtures("loops_by")
NOBODY = np.zeros(0, dtype=bool)
SMALL, LARGE = 60, 3000  # shards below and above the size that is drawn for all clients at once
SURE = 1e-9  # what is not seeded passes but for one in 10^9


def at(index: int = 0, seed: int = 1, secure: bool = False) -> Round:
    return Round(index, seed, NOBODY, secure=secure)


def draw(now: Round, clients: Any, sizes: Any, count: int, purpose: str = "rows") -> Any:
    return now.draw(purpose, np.asarray(clients), np.asarray(sizes), count)


@pytest.mark.parametrize("size", [1, 2, 3, SMALL, 1023, 1024, 1025, LARGE])
def test_epochs_are_permutations_and_the_rest_without_replacement(size: int) -> None:
    for index, count in product(range(20), {1, size // 2, size - 1, size, 3 * size + size // 2} - {0}):
        rows = draw(at(index), [0, 1, 5], [size] * 3, count)
        assert (rows.shape, rows.dtype, rows.min() >= 0, rows.max() < size) == ((3, count), np.int64, True, True)
        for row in rows.tolist():
            for epoch in range(0, count, size):
                one = row[epoch : epoch + size]
                assert len(set(one)) == len(one)
        if size >= SMALL and count > 2 * size:
            first, second = rows[0, :size], rows[0, size : 2 * size]
            assert (first != second).any() and (first != np.arange(size)).any()


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True).map(sorted), st.integers(1, 130),
    st.integers(0, 2**62), st.data(),
)  # fmt: skip
def test_a_client_draws_the_same_whoever_else_draws(clients: list[int], count: int, seed: int, data: Any) -> None:
    size_of = {c: data.draw(st.sampled_from([3, 17, 18, 60, 1024, 1025, 1300])) for c in clients}
    now = at(3, seed)
    together = draw(now, clients, [size_of[c] for c in clients], count)
    some = sorted(data.draw(st.sets(st.sampled_from(clients), min_size=1)))
    part = draw(now, some, [size_of[c] for c in some], count)
    for client, row in zip(some, part, strict=True):
        np.testing.assert_array_equal(row, together[clients.index(client)])
        np.testing.assert_array_equal(row, draw(now, [client], [size_of[client]], count)[0])


def of_generator(now: Round, purpose: str, client: int) -> Any:
    return now.rng(purpose, client).integers(2**63, size=50)


def of_normals(now: Round, purpose: str, client: int) -> Any:
    return now.normals(purpose, np.array([client]), (4, 3), "float64").ravel()


def of_rows(now: Round, purpose: str, client: int) -> Any:
    return [(client, *draw(now, [client], [LARGE], 30, purpose)[0].tolist())]  # as a whole: few numbers are alike


@pytest.mark.parametrize("drawn", [of_generator, of_normals, of_rows])
def test_every_key_matters(drawn: Any) -> None:
    """No two streams share a number, shifted or not; and the same keys give the same."""
    keys = [*product((0, 1, 2**63 - 1), (0, 1, 2**40), ("minibatch 10", "minibatch 11", ""), (0, 1, 7, 10**6))]
    if drawn is of_generator:
        keys += [(1, index, "", client) for index in (SETUP, 0) for client in (-1, 5)]
    seen: set[Any] = set()
    for seed, index, purpose, client in keys:
        numbers = list(drawn(at(index, seed), purpose, client))
        assert not seen & set(numbers)
        seen |= set(numbers)
        assert numbers == list(drawn(at(index, seed), purpose, client))


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
    # the counts of one draw are dependent: their variance is (1 - count / size) of the multinomial's, no matter here
    plausible(np.bincount(many(size, count, 400).ravel(), minlength=size))


@pytest.mark.parametrize(("size", "orders"), [(4, 24), (5, 120)])
def test_every_order_is_as_likely(size: int, orders: int) -> None:
    found = np.unique(many(size, size, 1000), axis=0, return_counts=True)[1]
    assert len(found) == orders
    plausible(found)


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


@pytest.mark.parametrize("size", [1, 7, SMALL, LARGE])
def test_secure_draws(size: int) -> None:
    """Permutations as well; and only what is secret is not keyed."""
    clients, sizes, count = np.arange(3), np.full(3, size), 2 * size + size // 2
    rows, *others = (at(secure=secure).draw("rows", clients, sizes, count, secret=True) for secure in (1, 1, 0))
    for row in rows.tolist():
        assert sorted(row[:size]) == sorted(row[size : 2 * size]) == list(range(size))
        assert len(set(row[2 * size :])) == size // 2 and set(row) <= set(range(size))
    if size >= SMALL:
        assert len({tuple(row) for some in (rows, *others) for row in some.tolist()}) == 9
    for secure in (False, True):
        np.testing.assert_array_equal(draw(at(secure=secure), clients, sizes, count), others[-1])


@pytest.mark.parametrize("size", [10, 12])  # of one client, and of all of them at once
def test_secure_draws_take_every_row_as_often(size: int) -> None:
    rows = at(secure=True).draw("rows", np.arange(6000), np.full(6000, size), 3, secret=True)
    assert all(len(set(row)) == 3 for row in rows.tolist())
    others = (rows[:, 1] - rows[:, 0]) % size  # neither is a row likelier after another
    counts = [np.bincount(some, minlength=size) for some in (rows.ravel(), rows[:, 0], others)]
    assert all(chisquare(some).pvalue > SURE for some in (*counts[:2], counts[2][1:]))


@pytest.mark.parametrize("chance", [1 / 3, 0.1, 1 - 2.0**-53, 2.0**-60])
def test_a_chance_is_rounded_down(chance: float) -> None:
    """To what the numbers of a generator, multiples of 2^-53, can be below with that probability."""
    steps = below(chance) * 2.0**53
    assert steps == int(steps) and steps <= chance * 2.0**53 < steps + 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("secure", [False, True])
def test_normals(secure: bool, dtype: str) -> None:
    now = at(3, secure=secure)
    numbers = now.normals("noise", np.arange(4), (50, 100), dtype)
    assert (numbers.shape, numbers.dtype) == ((4, 50, 100), dtype)
    assert kstest(numbers.ravel(), "norm").pvalue > SURE
    correlations = np.corrcoef(numbers.reshape(4, -1).astype("f8"))[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 6.2 / np.sqrt(5000)
    alone = now.normals("noise", np.array([2]), (50, 100), dtype)[0]
    assert np.array_equal(alone, numbers[2]) != secure  # a client's own, whoever else draws


def test_a_forked_process_draws_its_own_numbers() -> None:
    """Else two children would release with the same noise, whose difference tells everything."""
    now = at(secure=True)

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


# --- who is there ----------------------------------------------------------------------------------------------------

CLIENTS, EXCHANGES = 6, 3
members = st.lists(st.booleans(), min_size=CLIENTS, max_size=CLIENTS).map(np.array)
parts = st.lists(st.integers(0, 2 * EXCHANGES), min_size=CLIENTS, max_size=CLIENTS)


@given(members, parts, st.integers(0, CLIENTS - 1))
def test_asked_answering_and_staying(who: Any, halves: list[int], most: int) -> None:
    """Half 2e is answering exchange e, half 2e + 1 hearing its sum; who is there in h halves is in 0 ... h - 1."""
    plain, leaving = Round(4, 9, who), Round(4, 9, who, leaving=Leaving(who, np.array(halves), most))
    there = [[bool(w) and h > half for w, h in zip(who, halves, strict=True)] for half in range(2 * EXCHANGES)]
    count, void = int(who.sum()), []
    for number in range(EXCHANGES):
        here, now = leaving.at(number), plain.at(number)
        assert now is plain and now.asked is now.present is now.staying is who
        assert (now.void, now.fewest) == (False, count)
        assert here.asked.tolist() == (there[2 * number - 1] if number else who.tolist())
        assert (here.present.tolist(), here.staying.tolist()) == (there[2 * number], there[2 * number + 1])
        stay = sum(there[2 * number + 1])
        assert here.void == (count - stay > most or not stay)
        assert here.fewest == max(count - most, 1) and (here.void or int(here.present.sum()) >= here.fewest)
        void.append(here.void)
        # clients draw what they would have drawn, whoever else leaves
        sizes = np.full(CLIENTS, 10)
        np.testing.assert_array_equal(*(draw(one, np.arange(CLIENTS), sizes, 4) for one in (here, plain)))
    assert void == sorted(void)  # a void round stays so
