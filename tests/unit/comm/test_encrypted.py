"""The encrypted channel: its sums are the plain channel's; what stands in slots; ciphertexts; who can open them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import seal
from hypothesis import given, settings
from hypothesis import strategies as st
from masking import Case, play, vector

from mpifed.comm.channels.base import ChannelSetting, Protection
from mpifed.comm.channels.bfv import Bfv
from mpifed.comm.channels.encrypted import Encrypted
from mpifed.comm.channels.packing import Packing
from mpifed.comm.sums import Message
from mpifed.core.errors import BrokenProtocol
from mpifed.core.exchange import Exchange, Field
from mpifed.core.holdings import Holdings
from mpifed.core.round import Round
from mpifed.maths.fixedpoint import grid
from mpifed.testing import Solo

ENCRYPTED = Protection("encrypted", min_clients=1)


def test_a_server_without_clients_is_given_no_secret_and_no_sum_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys, made = Bfv.make_keys, list[tuple[bytes, bytes]]()
    monkeypatch.setattr(Bfv, "make_keys", lambda scheme: made.append(make_keys(scheme)) or made[-1])  # type: ignore
    server, client, _ = play(vector(to_clients=True, protection=ENCRYPTED))
    assert client.opened and not server.opened and len(server.channel.comm.heard) > 3
    for hidden in (made[0][1][1000:1064], client.reduced[:2].tobytes()):
        assert not any(hidden in message for message in server.channel.comm.heard)


@pytest.mark.parametrize(
    ("bits", "room", "clients", "said"),
    [((60, 60), 1, 2, "does not decrypt"), ((40, 36, 60), 1, 2, ""), ((40, 36, 60), 1, 5000, "does not decrypt"),
     ((60, 60, 32), 2, 2, r"decrypts to other values in \d+ of 8192 slots")],
)  # fmt: skip
def test_the_self_test(bits: tuple[int, ...], room: int, clients: int, said: str) -> None:
    """It finds parameters of which a few additions are exact, and many are not; and sums that wrap."""
    channel = Encrypted(ChannelSetting(Solo(), np.arange(clients), clients))
    channel.scheme = Bfv(bits)
    channel.scheme.capacity *= room
    error = f"self-test of the encryption.* {said}"
    with pytest.raises(BrokenProtocol, match=error) if said else nullcontext():
        channel.prepare([])


def test_bytes_are_those_of_ciphertexts() -> None:
    """Of 9000 values, two; where many columns are held by few, of their own; and of an opened sum, to the server."""
    block, sides = Bfv().nbytes, np.array([0, 0, 0, 1, 1])
    many, few = (Holdings(2 * n, sides, (slice(0, n), slice(n, 2 * n))) for n in (10000, 20))
    for field, to_clients, up, down in [
        (Field((9000,)), False, 8 * block + 8 * 9000, 2 * block), (Field((9000,)), True, 8 * block, 8 * block),
        (Field((20000,), held=many), False, 8 * block + 8 * 20000, 4 * block),
        (Field((40,), held=few), False, 4 * block + 8 * 40, block),
        (Field((40,), held=few, to_holders=True), True, 4 * block, 4 * block),
        (Field((20000,), held=many, to_holders=True), True, 8 * block, 8 * block),
    ]:  # fmt: skip
        case = Case([list(range(5))], None, field, to_clients, ENCRYPTED)
        channel = case.channel(Solo())
        traffic = channel.traffic(case.plan(channel), Round(3, 1, np.array([1, 1, 0, 1, 1], bool)))
        assert [int(part.sum()) for part in traffic] == [up, down]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([(2.0**-20, 2.0), (2.0**-50, 2.0**20)]) | st.tuples(st.just(1.0), st.floats(2.0**30, 2.0**50)),
    st.sampled_from([(8192, 2**57), (16384, 2**47), (31, 2**62 + 2**32)]),
    st.sampled_from([1, 2, 16, 1000, 5000]), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_sums_come_back_exactly(
    form: tuple[float, float], scheme: tuple[int, int], clients: int, parts: bool, seed: int
) -> None:
    """One and two limbs of the grid, one and two in slots; no slot's sum is beyond the capacity, of extremes either."""
    assert grid(1.0, 2.5, 3).largest == (3,)  # as a bound between two multiples may round to the one above
    rng, sides = np.random.default_rng(seed), np.arange(clients) % 2
    held = Holdings(40, sides, (slice(0, 20), slice(20, 40))) if parts else None
    exchange: Any = Exchange("e", Field((40,), *form, held=held), ask=lambda *_: None, answer=None)  # nobody plays it
    message = Message(exchange, clients)
    packing, most = Packing(message, *scheme), np.repeat(message.places[0].form.largest, 40)
    slots, expected = np.zeros(packing.at.shape, object), np.zeros(len(most), object)
    for client in range(min(clients, 2)):  # all of a side send the same
        extremes = rng.random(len(most)) < 0.5
        integers = np.where(extremes, rng.choice([-1, 1], len(most)) * most, rng.integers(-most, most))
        if parts:
            integers.reshape(-1, 2, 20)[:, 1 - client] = 0
        count = int((sides == client).sum())
        slots[packing.senders[:, client]] += count * packing.pack(integers, client).astype(object)
        expected += count * integers.astype(object)
    assert max(map(abs, slots.ravel())) <= scheme[1]
    which, everybody = np.arange(len(slots)), np.ones(clients, bool)
    assert np.array_equal(packing.unpack(slots.astype(np.int64), which, everybody), expected)
    slots[-1, -1] += clients * packing.most[packing.at[-1, -1]] + abs(slots[-1, -1]) + 1
    with pytest.raises(BrokenProtocol, match="e: what was decrypted is no sum"):
        packing.unpack(slots.astype(np.int64), which, everybody)


ZEROS = np.zeros(8192, np.int64)


@pytest.fixture(scope="module")
def keyed() -> Bfv:
    scheme = Bfv()
    scheme.use(*scheme.make_keys())
    return scheme


@pytest.mark.parametrize(
    ("at", "alter", "said"),
    [(slice(5), np.invert, "does not load"), (slice(5000, 5001), lambda part: part ^ 1, "budget left.*nothing was op"),
     (slice(5000, 5008), lambda part: part | 255, "does not load"), (slice(131184, None), np.zeros_like, "gives")],
)  # fmt: skip
def test_what_was_altered_is_not_opened(keyed: Bfv, at: slice, alter: Callable[[Any], Any], said: str) -> None:
    block = np.frombuffer(keyed.encrypt(ZEROS), np.uint8).copy()
    block[at] = alter(block[at])
    with pytest.raises(BrokenProtocol, match=said) as caught:
        keyed.open(block.tobytes())
    assert "altered" in str(caught.value)


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
