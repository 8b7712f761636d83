from __future__ import annotations

import pickle

import numpy as np
import pytest

from mpifed.comm.encryption.paillier import PackedPaillier
from mpifed.core.errors import BrokenProtocol


@pytest.fixture(scope="module")
def keyed() -> PackedPaillier:
    scheme = PackedPaillier(1024)  # a small key: what is tested does not depend on its size
    scheme.make_keys()
    return scheme


def plaintext(scheme: PackedPaillier, block: bytes) -> int:
    """By the textbook: L(c^lambda mod n^2) / lambda mod n."""
    n, order = int.from_bytes(scheme.public(), "little"), int.from_bytes(scheme.secret(), "little")
    found = (pow(int.from_bytes(block, "little"), order, n * n) - 1) // n * pow(order, -1, n) % n
    return found if found < n // 2 else found - n


def test_a_ciphertext_holds_the_integers_side_by_side(keyed: PackedPaillier) -> None:
    values = [1, -1, 2**61, -(2**61), 0, 12345]
    found = plaintext(keyed, keyed.encrypt(np.array(values)))
    assert found == sum(value << (64 * k) for k, value in enumerate(values))


@pytest.mark.parametrize("clients", [1, 3, 1000])
def test_sums_agree_with_integers(keyed: PackedPaillier, clients: int) -> None:
    each = keyed.capacity // clients
    rng = np.random.default_rng(clients)
    kinds = rng.integers(-each, each, (2, keyed.slots), endpoint=True)
    kinds[:, 0::4], kinds[:, 1::4] = each, -each
    blocks = [keyed.load(keyed.encrypt(kind)) for kind in kinds]
    total, expected = blocks[0], kinds[0].astype(object)
    for i in range(1, clients):
        total, expected = keyed.add(total, blocks[i % 2]), expected + kinds[i % 2]
    block = keyed.save(total)
    assert plaintext(keyed, block) == sum(int(value) << (64 * k) for k, value in enumerate(expected))
    assert keyed.open(keyed.load(block)).tolist() == expected.tolist()


def test_slots_and_sizes() -> None:
    assert (PackedPaillier(2048).slots, PackedPaillier(2048).nbytes) == (31, 512)
    assert (PackedPaillier(3072).slots, PackedPaillier(3072).nbytes) == (47, 768)
    assert PackedPaillier(2048).security == "112 bits (Paillier, modulus of 2048 bits)"
    assert PackedPaillier(3072).security == "128 bits (Paillier, modulus of 3072 bits)"


def test_a_key_of_the_default_size() -> None:
    scheme = PackedPaillier()
    scheme.make_keys()
    values = np.arange(-15, 16) * 2**57
    assert np.array_equal(scheme.open(scheme.load(scheme.encrypt(values))), values)
    assert int.from_bytes(scheme.public(), "little").bit_length() == 2048


def test_without_the_secret_key(keyed: PackedPaillier) -> None:
    server = PackedPaillier(1024)
    server.use(keyed.public())
    total = server.add(server.load(server.encrypt(np.array([1]))), server.load(keyed.encrypt(np.array([-3]))))
    assert not server.opens
    with pytest.raises(BrokenProtocol, match="no secret key"):
        server.open(total)
    client = PackedPaillier(1024)
    client.use(keyed.public())
    client.trust(keyed.secret())
    assert client.opens and client.open(client.load(server.save(total)))[0] == -2


def test_damaged_bytes(keyed: PackedPaillier) -> None:
    block = keyed.encrypt(np.arange(keyed.slots))
    for bad in (b"", block[:-1], block + b"\0", bytes(len(block)), b"\xff" * len(block)):
        with pytest.raises(BrokenProtocol, match="altered"):
            keyed.load(bad)
    flipped = keyed.load(bytes([block[0] ^ 1]) + block[1:])
    with pytest.raises(BrokenProtocol, match="altered"):
        for _ in range(20):  # what it opens to is as good as random; one in 2^63 would pass
            keyed.open(flipped)


def test_encryptions_differ_and_keys_stay(keyed: PackedPaillier) -> None:
    assert keyed.encrypt(np.zeros(3, dtype=np.int64)) != keyed.encrypt(np.zeros(3, dtype=np.int64))
    (words, modulus), *_ = keyed.words(keyed.encrypt(np.zeros(3, dtype=np.int64)))
    assert modulus == 2**64 and len(np.unique(words)) == len(words) == (keyed.nbytes - 64) // 8
    assert "PackedPaillier object" in repr(keyed)
    with pytest.raises(TypeError):
        pickle.dumps(keyed)
