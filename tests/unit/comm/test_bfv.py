from __future__ import annotations

import pickle

import numpy as np
import pytest
from mpifed.comm.encryption.bfv import Bfv

from mpifed.core.errors import BrokenProtocol, UsageError


@pytest.fixture(scope="module")
def keyed() -> Bfv:
    scheme = Bfv()
    scheme.make_keys()
    return scheme


@pytest.mark.parametrize("clients", [1, 2, 1000, 5000])
def test_sums_of_extremes_are_exact(keyed: Bfv, clients: int) -> None:
    each = keyed.capacity // clients
    rng = np.random.default_rng(clients)
    kinds = rng.integers(-each, each, (3, keyed.slots), endpoint=True)
    kinds[:, 0::4], kinds[:, 1::4] = each, -each
    blocks = [keyed.load(keyed.encrypt(kind)) for kind in kinds]
    total, expected = keyed.load(keyed.encrypt(kinds[0])), kinds[0].copy()
    for i in range(1, clients):
        total = keyed.add(total, blocks[i % 3])
        expected += kinds[i % 3]
    assert expected[0] == clients * each and expected[1] == -clients * each
    assert np.array_equal(keyed.open(keyed.load(keyed.save(total))), expected)
    assert keyed.budget is not None and keyed.budget >= 40


def test_two_encryptions_of_the_same_have_nothing_in_common(keyed: Bfv) -> None:
    one, other = (next(keyed.words(keyed.encrypt(np.zeros(8192, dtype=np.int64)))) for _ in range(2))
    assert not (one[0] == other[0]).any()
    for words, modulus in keyed.words(keyed.encrypt(np.zeros(8192, dtype=np.int64))):
        assert modulus.bit_length() == 60 and words.max() < modulus
        shares = np.histogram(words / modulus, 16, (0, 1))[0] / len(words)
        assert np.allclose(shares, 1 / 16, atol=0.012)  # 6 standard deviations


def test_without_the_secret_key_it_encrypts_and_adds_and_opens_nothing(keyed: Bfv) -> None:
    server = Bfv()
    server.use(keyed.public())
    total = server.add(server.load(server.encrypt(np.array([1]))), server.load(server.encrypt(np.array([2]))))
    assert not server.opens
    with pytest.raises(BrokenProtocol, match="no secret key"):
        server.open(total)
    assert keyed.open(keyed.load(server.save(total)))[0] == 3
    client = Bfv()
    client.use(keyed.public())
    client.trust(keyed.secret())
    assert client.opens and client.open(client.load(server.save(total)))[0] == 3


def test_damaged_bytes(keyed: Bfv) -> None:
    block = keyed.encrypt(np.arange(8192))
    for bad in (b"", b"xx", block[:100], block[:-1], block + b"z", block[:5000] + b"\xff" * 8 + block[5008:]):
        with pytest.raises(BrokenProtocol, match="altered"):
            keyed.load(bad)
    flipped = block[:5000] + bytes([block[5000] ^ 1]) + block[5001:]
    with pytest.raises(BrokenProtocol, match="altered"):
        keyed.open(keyed.load(flipped))
    transparent = block[: len(block) // 2] + bytes(len(block) - len(block) // 2)
    with pytest.raises(BrokenProtocol, match="altered"):
        keyed.load(transparent)
    for reader in (keyed.use, keyed.trust):
        with pytest.raises(BrokenProtocol, match="key of 3 bytes does not load"):
            reader(b"abc")


def test_security() -> None:
    assert Bfv().security == "192 bits (BFV, ring of dimension 8192, modulus of 152 bits of at most 152)"
    assert Bfv([60, 60, 33]).security == "128 bits (BFV, ring of dimension 8192, modulus of 153 bits of at most 218)"
    with pytest.raises(UsageError, match="security standard"):
        Bfv([60, 60, 60, 60])


def test_the_secret_key_is_not_shown_and_not_pickled(keyed: Bfv) -> None:
    assert "Bfv object" in repr(keyed)
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(keyed)
