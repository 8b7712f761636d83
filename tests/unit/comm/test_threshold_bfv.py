from __future__ import annotations

import importlib.util
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from ranks import Threads, on_ranks, totals

from mpifed.comm.accumulate import make_sum
from mpifed.comm.channel import ChannelSetting, Protection
from mpifed.comm.encryption.channel import Encrypted
from mpifed.comm.encryption.decryption import DecryptionRequest
from mpifed.comm.encryption.schemes import make_scheme
from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.core.errors import BrokenProtocol, TooFewClients, UsageError
from mpifed.core.exchange import Field, ToClients, ToServer
from mpifed.core.holdings import Cells
from mpifed.core.round import Round
from mpifed.testing import Alone


def _missing() -> str:
    if importlib.util.find_spec("openfhe") is None:
        return "openfhe is not installed; it is for Python 3.10 and 3.12 (pip install 'mpifed[threshold]')"
    try:
        import openfhe  # noqa: F401
    except ImportError as error:
        return f"openfhe does not import on Python {sys.version_info.major}.{sys.version_info.minor}: {error}"
    return ""


MISSING = _missing()
here = pytest.mark.skipif(bool(MISSING), reason=MISSING)
CLIENTS = 3
FIELD = Field((20,), 2.0**-40, 2.0**10)  # two limbs in slots of 48 bits


@pytest.mark.skipif(not MISSING, reason="openfhe imports here")
def test_where_the_library_does_not_import_the_error_says_where_it_does() -> None:
    with pytest.raises(UsageError, match=r"Python 3\.10 on Linux, and 3\.12 on Ubuntu 24\.04.*set scheme = \"bfv\""):
        make_scheme(Protection(scheme="threshold-bfv"), 3)


def keyed(clients: int) -> Any:
    scheme: Any = make_scheme(Protection(scheme="threshold-bfv"), clients)
    joint = None
    for client in range(clients):
        joint = scheme.join(client, joint)
    scheme.use(joint)
    return scheme


def parts(scheme: Any, total: Any) -> list[bytes]:
    return [scheme.part(client, total) for client in sorted(scheme._shares)]


@here
@pytest.mark.parametrize("clients", [1, 2, 3, 16, 64])
def test_sums_of_extremes_are_exact(clients: int) -> None:
    scheme = keyed(clients)
    each, rng = scheme.capacity // clients, np.random.default_rng(clients)
    kinds = rng.integers(-each, each, (2, scheme.slots), endpoint=True)
    kinds[:, 0::4], kinds[:, 1::4] = each, -each
    blocks = [scheme.load(scheme.encrypt(kind)) for kind in kinds]
    total, expected = scheme.load(scheme.encrypt(kinds[0])), kinds[0].copy()
    for i in range(1, clients):
        total = scheme.add(total, blocks[i % 2])
        expected += kinds[i % 2]
    assert expected[0] == clients * each
    total = scheme.load(scheme.save(total))
    assert np.array_equal(scheme.fuse(parts(scheme, total)), expected)


@here
def test_additions_by_the_thousand_are_exact() -> None:
    """As many as clients may be; keys of few, so that it does not take long."""
    scheme = keyed(2)
    values = np.tile([scheme.capacity // 1024, -(scheme.capacity // 1024)], scheme.slots // 2)
    one, total = scheme.load(scheme.encrypt(values)), scheme.load(scheme.encrypt(values))
    for _ in range(1023):
        total = scheme.add(total, one)
    assert np.array_equal(scheme.fuse(parts(scheme, total)), 1024 * values)


@here
def test_without_one_clients_part_nothing_opens() -> None:
    scheme = keyed(CLIENTS)
    values = np.arange(scheme.slots)
    total = scheme.load(scheme.encrypt(values))
    found = parts(scheme, total)
    assert np.array_equal(scheme.fuse(found), values)
    for missing in range(CLIENTS):
        some = [part for client, part in enumerate(found) if client != missing]
        try:
            opened = scheme.fuse(some)
        except BrokenProtocol:
            continue
        assert (opened == values).mean() < 0.001


@here
def test_a_part_is_hidden_in_noise_and_never_the_same() -> None:
    scheme = keyed(2)
    total = scheme.load(scheme.encrypt(np.zeros(scheme.slots, dtype=np.int64)))
    one, other = (next(iter(scheme.words(scheme.part(0, total))))[0] for _ in range(2))
    assert (one == other).mean() < 0.001


@here
def test_parameters_leave_room_for_the_noise_that_hides_shares() -> None:
    """The library's fixed noise of 20 bits would do with half the ring and half the modulus."""
    security = keyed(1).security
    assert security == "128 bits (BFV with noise flooding, ring of dimension 16384, modulus of 240 bits)"


@here
def test_damaged_bytes() -> None:
    scheme = keyed(1)
    block = scheme.encrypt(np.arange(5))
    for bad in (b"", b"xx", block[:100], block[:-5]):
        with pytest.raises(BrokenProtocol, match="altered"):
            scheme.load(bad)
    with pytest.raises(BrokenProtocol, match="PublicKey of 3 bytes"):
        scheme.use(b"abc")
    with pytest.raises(TypeError):
        pickle.dumps(scheme)


@here
def test_what_a_ciphertext_consists_of_looks_uniform() -> None:
    scheme = keyed(1)
    for words, modulus in scheme.words(scheme.encrypt(np.zeros(5, dtype=np.int64))):
        assert np.allclose(np.histogram(words / modulus, 16, (0, 1))[0] / len(words), 1 / 16, atol=0.017)


@here
def test_too_many_clients() -> None:
    with pytest.raises(UsageError, match="2000 clients, at most 1024"):
        make_scheme(Protection(scheme="threshold-bfv"), 2000)


class Party:
    def __init__(self, transport: Any, kind: type, **more: Any) -> None:
        ranks = np.arange(CLIENTS) % max(1, transport.size - 1) + (transport.size > 1)
        hosted, columns = np.flatnonzero(ranks == transport.rank), Cells.all(CLIENTS)
        of = kind("up", FIELD, None, None, None, **more)
        protection = Protection("encrypted", scheme="threshold-bfv")
        self.channel = Encrypted(ChannelSetting(transport, hosted, CLIENTS, columns, protection))
        self.plan = ExchangePlan(of, lambda: make_sum(of, CLIENTS, exact=True, dtype="float64"), columns)
        self.hosted, self.transport = hosted, transport
        self.channel.prepare([self.plan])
        transport.heard = []

    def play(self, now: Round) -> tuple[bool, np.ndarray, list[bytes]]:
        self.plan.reduced[...] = 7
        self.channel.begin(self.plan, now)
        if len(self.hosted):
            answers = np.array([np.random.default_rng(int(c)).uniform(-1024, 1024, 20) for c in self.hosted])
            self.channel.add(self.plan, answers, self.hosted, now)
        self.plan.sum.message[-1] = 0
        heard = self.channel.collect(self.plan, now)
        return heard, self.plan.reduced[:-1].copy(), self.transport.heard


def expected() -> np.ndarray:
    answers = [np.random.default_rng(client).uniform(-1024, 1024, 20) for client in range(CLIENTS)]
    return np.sum([np.round(one * 2.0**40).astype(np.int64) for one in answers], axis=0)


ALL = Round(0, 1, np.ones(CLIENTS, dtype=bool))


@here
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_server_hears_the_sum_by_the_help_of_all(ranks: int) -> None:
    found = on_ranks(ranks, lambda transport: Party(transport, ToServer).play(ALL))
    assert [heard for heard, _, _ in found] == [rank == 0 for rank in range(ranks)]
    assert np.array_equal(found[0][1], expected())


@here
@pytest.mark.parametrize("more, hearing", [({}, [1, 2, 3]), ({"hearer": 1}, [2])])
def test_clients_hear_a_sum_that_the_server_cannot_open(more: Any, hearing: list[int]) -> None:
    """The server passes on the parts, but they are sealed: none of them loads."""

    def play(transport: Threads) -> tuple[Any, ...]:
        party = Party(transport, ToClients, **more)
        sealed = party.channel._decryption._parts
        given: list[bytes] = []
        party.channel._decryption._parts = lambda *a: (given.append(sealed(*a)), given[-1])[1]
        heard, reduced, _ = party.play(ALL)
        return heard, reduced, given, party.channel

    found = on_ranks(4, play)
    for rank, (heard, reduced, _, _) in enumerate(found):
        assert heard == (rank in hearing)
        assert np.array_equal(reduced, expected()) == heard
    parts_passed_on = {client: part for _, _, given, _ in found for one in given for client, part in one.items()}
    assert sorted(parts_passed_on) == [0, 1, 2]
    channel = found[0][3]
    with pytest.raises(BrokenProtocol):
        channel._decryption._fuse(parts_passed_on, DecryptionRequest(b"up 1", lambda *_: None, channel.keys.timed))


@here
def test_shares_stay_on_their_ranks() -> None:
    def play(transport: Threads) -> list[int]:
        return sorted(Party(transport, ToServer).channel.scheme._shares)

    assert on_ranks(3, play) == [[], [0, 2], [1]]


@here
def test_an_altered_part_and_an_absent_client() -> None:
    party = Party(Alone(), ToServer)
    scheme, honest = party.channel.scheme, party.channel.scheme.part
    scheme.part = lambda client, total: _altered(honest(client, total)) if client == 1 else honest(client, total)
    with pytest.raises(BrokenProtocol, match="no sum of integers"):
        party.play(ALL)
    scheme.part = honest
    with pytest.raises(TooFewClients, match="2 of 3 clients"):
        party.play(Round(0, 1, np.array([True, True, False])))
    assert np.array_equal(party.play(ALL)[1], expected())


def _altered(part: bytes) -> bytes:
    at = len(part) // 8  # among its numbers
    return part[:at] + bytes(byte ^ 1 for byte in part[at : at + 64]) + part[at + 64 :]


@here
def test_traffic() -> None:
    server, client = Party(Alone(), ToServer), Party(Alone(), ToClients)
    scheme = server.channel.scheme
    sent = scheme.encrypt(np.arange(5))
    block, part = len(sent), len(scheme.part(0, scheme.load(sent)))
    assert (scheme.nbytes, scheme.part_nbytes) == (block, part)
    assert len(scheme.part(1, scheme.load(sent))) == part
    assert totals(server.channel.traffic(server.plan, ALL)) == (3 * block + 3 * part, 3 * block)
    assert totals(client.channel.traffic(client.plan, ALL)) == (3 * block + 3 * part, 3 * block + 9 * part)
