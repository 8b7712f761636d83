"""Shares of a secret: against the library, against Neville's scheme, and changed ones."""

from __future__ import annotations

import os
from itertools import combinations

import numpy as np
import pytest
import shamirs
from mpifed.comm.masking.secret_sharing import PRIME, SECRET_BYTES, SHARE_BYTES, check, commitment, rebuild, split

from mpifed.core.errors import BrokenProtocol, TooFewClients


def numbered(shares: list[bytes]) -> dict[int, bytes]:
    return dict(enumerate(shares, 1))


def lagrange(points: dict[int, int]) -> int:
    """The value at 0 of the polynomial through the points: a short loop, by Neville's scheme."""
    xs = sorted(points)
    values = [points[x] for x in xs]
    for step in range(1, len(xs)):
        values = [
            (xs[i] * values[i + 1] - xs[i + step] * values[i]) * pow(xs[i] - xs[i + step], PRIME - 2, PRIME) % PRIME
            for i in range(len(xs) - step)
        ]
    return values[0]


@pytest.mark.parametrize(("holders", "threshold"), [(3, 2), (5, 4), (9, 5), (16, 11), (40, 27)])
def test_any_that_are_enough(holders: int, threshold: int) -> None:
    rng = np.random.default_rng(holders)
    for secret in (os.urandom(SECRET_BYTES), bytes(SECRET_BYTES), b"\xff" * SECRET_BYTES):
        shares = numbered(split(secret, holders, threshold))
        assert {len(share) for share in shares.values()} == {SHARE_BYTES}
        for _ in range(5):
            who = rng.permutation(holders)[: rng.integers(threshold, holders + 1)] + 1
            some = {int(number): shares[int(number)] for number in who}
            assert rebuild(some, threshold) == secret
            values = {number: int.from_bytes(share, "little") for number, share in some.items()}
            assert lagrange(values).to_bytes(SECRET_BYTES, "little") == secret
            library = shamirs.interpolate([shamirs.share(x, y, PRIME) for x, y in values.items()], threshold=threshold)
            assert library.to_bytes(SECRET_BYTES, "little") == secret


def test_one_too_few_tell_nothing() -> None:
    """Two of three needed: with another secret some third share fits them as well."""
    shares = numbered(split(b"a" * 16, 5, 3))
    two = {number: int.from_bytes(shares[number], "little") for number in (1, 4)}
    others = set()
    for third in range(100):  # every value of another share gives another secret: the three determine it one to one
        others.add(lagrange({**two, 2: third}))
    assert len(others) == 100


def test_too_few() -> None:
    shares = numbered(split(os.urandom(16), 9, 6))
    for count in range(6):
        with pytest.raises(TooFewClients, match=f"^{count} shares of a secret that takes 6"):
            rebuild(dict(list(shares.items())[:count]), 6)


@pytest.mark.parametrize("bit", [0, 7, 100, 129])
def test_a_changed_share_is_found(bit: int) -> None:
    """By what the client has committed to, or because the numbers are not of any secret."""
    secret, context = os.urandom(16), b"seed of client 3"
    shares, committed = numbered(split(secret, 5, 3)), commitment(secret, context)
    check(rebuild(shares, 3), context, committed)
    for number in (1, 2, 3):
        value = int.from_bytes(shares[number], "little") ^ (1 << bit)
        changed = shares | {number: value.to_bytes(SHARE_BYTES, "little")}
        with pytest.raises(BrokenProtocol, match=r"do not belong to one secret|not what the client has committed to"):
            check(rebuild(changed, 3), context, committed)
    assert any(rebuild({i: shares[i] for i in three}, 3) == secret for three in combinations(shares, 3))


def test_commitments_are_bound_to_their_context() -> None:
    secret = os.urandom(16)
    with pytest.raises(BrokenProtocol, match="seed of client 4: the reconstructed secret"):
        check(secret, b"seed of client 4", commitment(secret, b"seed of client 3"))
    assert len(commitment(secret, b"")) == 32
