from __future__ import annotations

import pickle

import numpy as np
import pytest
import seal

from mpifed.comm.channels.bfv import Bfv
from mpifed.core.errors import BrokenProtocol

ZEROS = np.zeros(8192, np.int64)


@pytest.fixture(scope="module")
def keyed() -> Bfv:
    scheme = Bfv()
    scheme.use(*scheme.make_keys())
    return scheme


@pytest.mark.parametrize(("clients", "budget"), [(1, 54), (2, 53), (10_000, 41)])
def test_sums_of_extremes_are_exact(keyed: Bfv, clients: int, budget: int) -> None:
    each, rng = keyed.capacity // clients, np.random.default_rng(clients)
    kinds = rng.integers(-each, each, (3, keyed.slots), endpoint=True)
    kinds[:, 0::4], kinds[:, 1::4] = each, -each
    blocks = [keyed.encrypt(kind) for kind in kinds]
    total = blocks[0]
    for i in range(1, clients):
        total = keyed.add(total, blocks[i % 3])
    expected = (kinds * np.bincount(np.arange(clients) % 3, minlength=3)[:, None]).sum(axis=0)
    assert expected[0] == clients * each and expected[1] == -clients * each and len(total) == keyed.nbytes
    assert np.array_equal(keyed.open(total), expected)
    assert keyed.budget is not None and keyed.budget >= budget


def test_a_kept_sum_lasts_for_a_thousand_million_changes(keyed: Bfv) -> None:
    """A doubling costs one bit of noise budget, even where all noise is the same."""
    total = keyed.encrypt(ZEROS + 1)
    for _ in range(30):
        total = keyed.add(total, total)
    assert (keyed.open(total) == 2**30).all()
    assert keyed.budget is not None and keyed.budget >= 24


def test_ciphertexts_and_changes_of_sums_show_nothing(keyed: Bfv) -> None:
    """Who keeps two ciphertexts of zeros, or two sums, of which one has a change of zero more, sees uniform numbers."""
    one, other = keyed.encrypt(ZEROS), keyed.encrypt(ZEROS)
    x, y, total = (np.frombuffer(b[-(2**18) :], "<u8").reshape(2, 2, -1) for b in (one, other, keyed.add(one, other)))
    for i, modulus in enumerate(seal.CoeffModulus.Create(8192, [60, 60, 32])[:2]):
        prime = np.uint64(modulus.value())
        for words in (x[:, i], y[:, i], (total[:, i] + prime - x[:, i]) % prime):
            shares = np.histogram(words / float(prime), 16, (0, 1))[0] / words.size
            assert np.allclose(shares, 1 / 16, atol=0.012)  # 6 standard deviations
    assert not (x == y).any()


def test_who_has_which_key(keyed: Bfv) -> None:
    server = Bfv()
    server.use(server.make_keys()[0])
    for scheme, said in ((server, "no secret key"), (keyed, "0 bits of noise budget.*nothing was opened")):
        with pytest.raises(BrokenProtocol, match=said):
            scheme.open(server.encrypt(np.array([1])))
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(keyed)
    with pytest.raises(ValueError, match="encryption parameters"):
        Bfv([60, 60, 33])  # less than 192 bits
