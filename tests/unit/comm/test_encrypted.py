from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from mpifed.comm.accumulate import make_sum
from mpifed.comm.channel import Channel, ChannelSetting, Protection
from mpifed.comm.encryption.bfv import Bfv
from mpifed.comm.encryption.bundles import bundle
from mpifed.comm.encryption.channel import Encrypted
from mpifed.comm.exchange_plan import ExchangePlan
from ranks import Threads, on_ranks, totals

from mpifed.core.errors import BrokenProtocol, NumericalError
from mpifed.core.exchange import Field, Placed, ToClients, ToServer
from mpifed.core.holdings import Cells, Holdings
from mpifed.core.round import Leaving, Round
from mpifed.testing import Solo

CLIENTS = 5


class Answer(NamedTuple):
    v: Any  # [30], one limb
    count: Any  # []
    wide: Any  # [2, 3], two limbs
    by_column: Any  # [2, 7]
    own: Any  # [4], of client 3


FIELDS = Answer(
    Field((30,)), Field((), 1.0, 2.0**20), Field((2, 3), 2.0**-20, 2.0**40), Field((2, 7), columns=1),
    Field((4,), sender=3),
)  # fmt: skip
APART = slice(0, 2), np.array([2, 5]), np.array([3, 4, 6])
DISJOINT = Cells.of_columns(Holdings(7, np.array([0, 1, 0, 1, 2]), APART))
OVERLAPPING = Cells.of_columns(Holdings(7, np.arange(5), tuple(slice(i, i + 3) for i in range(5))))


def answer(columns: Cells, clients: np.ndarray) -> Answer:
    """What `clients` answer, each with numbers of its own."""
    rng = [np.random.default_rng(int(client)) for client in clients]
    at = [columns.columns.of(client) for client in clients]
    return Answer(
        np.array([one.uniform(-1024, 1024, 30) for one in rng]),
        np.array([one.integers(0, 2**20) for one in rng]),
        np.array([one.uniform(-(2.0**40), 2.0**40, (2, 3)) for one in rng]),
        Placed([one.uniform(-9, 9, (2, len(np.arange(7)[a]))) for one, a in zip(rng, at, strict=True)], at, 7, 1),
        np.array([one.uniform(-9, 9, 4) for one in rng]),
    )


def exchange(kind: type = ToServer, fields: Any = FIELDS, name: str = "up", **more: Any) -> Any:
    return kind(name, fields, None, None, None, **more)


def everybody(present: Any = None, leaving: Leaving | None = None) -> Round:
    present = np.ones(CLIENTS) if present is None else present
    return Round(0, 1, np.array(present, dtype=bool), leaving=leaving)


class Party:
    """A rank with its channel and the plan of one exchange."""

    def __init__(
        self, comm: Any, of: Any, columns: Cells = DISJOINT, channel: type = Encrypted, scheme: Any = None,
        hosted: Any = None, dtype: str = "float64", **protection: Any,
    ) -> None:  # fmt: skip
        if hosted is None:  # rank 0 only serves, where there are others
            ranks = np.arange(CLIENTS) % max(1, comm.size - 1) + (comm.size > 1)
            hosted = np.flatnonzero(ranks == comm.rank)
        clients = len(columns.columns.groups)
        protection = {"channel": channel.name, "allow": (of.name,)} | protection
        self.hosted = np.asarray(hosted, dtype=np.int64)
        setting = ChannelSetting(comm, self.hosted, clients, columns, Protection(**protection))
        self.channel = channel(setting) if scheme is None else channel(setting, scheme())
        self.columns = columns
        self.plan = ExchangePlan(of, lambda: make_sum(of, clients, dtype=dtype), columns)
        self.channel.prepare([self.plan])

    def play(self, now: Round, add_one_by_one: bool = False) -> tuple[bool, np.ndarray]:
        """Whether this rank hears the sum, and what it then is."""
        self.plan.reduced[...] = 7
        self.channel.begin(self.plan, now)
        clients = self.hosted[now.present[self.hosted]]
        if len(clients):
            add = self.channel.add_one_by_one if add_one_by_one else self.channel.add
            add(self.plan, answer(self.columns, clients), clients, now)
        self.plan.sum.message[-1] = 1
        heard = self.channel.collect(self.plan, now)
        return heard, self.plan.reduced.copy()


def plain(of: Any, columns: Cells, now: Round) -> np.ndarray:
    return Party(Solo(), of, columns, Channel, hosted=np.arange(CLIENTS)).play(now)[1][:-1]


@pytest.mark.parametrize("kind", [ToServer, ToClients])
@pytest.mark.parametrize(
    "scheme, ranks, columns",
    [(Bfv, ranks, columns) for ranks in (1, 2, 4) for columns in (DISJOINT, OVERLAPPING)],
)
def test_the_sum_is_the_plain_channels(kind: type, ranks: int, scheme: Any, columns: Cells) -> None:
    of, now = exchange(kind), everybody([1, 1, 0, 1, 1])
    expected = plain(of, columns, now)
    found = on_ranks(ranks, lambda comm: Party(comm, of, columns, scheme=scheme).play(now))
    for rank, (heard, reduced) in enumerate(found):
        idle = rank == 3  # its one client is absent
        assert heard == (ranks == 1 or (rank == 0 if kind is ToServer else rank > 0 and not idle))
        if heard:
            assert np.array_equal(reduced[:-1], expected)
    assert found[0][1][-1] == ranks  # the system's own number


def test_a_server_without_clients_has_no_secret_key_and_hears_no_sum_for_clients() -> None:
    of = exchange(ToClients)

    def play(comm: Threads) -> tuple[Any, ...]:
        party = Party(comm, of)
        _, reduced = party.play(everybody())
        secret = party.channel.scheme.secret() if party.channel.scheme.opens else None
        return party.channel.scheme, comm.heard, reduced, secret

    (scheme, heard, reduced, _), (_, _, known, secret), (_, _, _, same) = on_ranks(3, play)
    assert not scheme.opens
    with pytest.raises(BrokenProtocol, match="no secret key"):
        scheme.open(scheme.load(scheme.encrypt(np.array([1]))))
    assert (reduced[:-1] == 7).all() and not (known[:-1] == 7).all()
    assert secret == same
    middle = secret[1000:1064]  # whatever frames it
    assert not any(middle in message for message in heard)
    told = known[:8].tobytes()
    assert not any(told in message for message in heard)


@pytest.mark.parametrize("bits, enough, too_many", [([60, 60], 0, 2), ([40, 36, 60], 2, 5000)])
def test_the_self_test_finds_parameters_that_are_too_small(bits: list[int], enough: int, too_many: int) -> None:
    """Among them such that a few additions are exact, and many are not."""

    def start(clients: int) -> Party:
        of, columns = exchange(fields=Field((3,))), Cells.all(clients)
        return Party(Solo(), of, columns, scheme=lambda: Bfv(bits), hosted=np.arange(clients))

    if enough:
        assert start(enough).channel.budget < 16
    with pytest.raises(BrokenProtocol, match=r"self-test of the encryption.* does not decrypt"):
        start(too_many)


def test_the_self_test_finds_sums_that_wrap() -> None:
    def too_roomy() -> Bfv:
        scheme = Bfv()
        scheme.capacity = 2 * Bfv.capacity
        return scheme

    with pytest.raises(BrokenProtocol, match=r"decrypts to other values in \d+ of 8192 slots"):
        on_ranks(2, lambda comm: Party(comm, exchange(), scheme=too_roomy))


def test_integers_out_of_range_are_never_encrypted() -> None:
    party = Party(Solo(), exchange(), hosted=np.arange(CLIENTS))
    party.channel.scheme.encrypt = None  # a call would be another error
    integers = np.zeros(len(party.plan.reduced) - 1, dtype=np.int64)
    integers[0] = 2**50 + 1
    with pytest.raises(NumericalError, match=r"up\.v: client 4 sends the integer"):
        party.channel.seal(party.plan, integers, 4, everybody())


def damaged(upload: np.ndarray, how: str) -> np.ndarray:
    bad = upload.copy()
    if how == "cut":
        return bad[:-100]
    if how == "no header":
        return bad[:5]
    if how == "miscounted":
        bad[:8].view("<i8")[0] += 1
    if how == "negative":
        bad[:8].view("<i8")[0] = -1
    if how == "coefficients":
        bad[5000:5100] ^= 1
    if how == "coefficients too large":
        bad[5000:5100] = 255
    return bad


@pytest.mark.parametrize(
    "how", ["cut", "no header", "miscounted", "negative", "coefficients", "coefficients too large"]
)
def test_what_was_altered_on_its_way_is_not_opened(how: str) -> None:
    party = Party(Solo(), exchange(), hosted=np.arange(CLIENTS))
    now, plan, channel = everybody(), party.plan, party.channel
    plan.reduced[...] = 7
    channel.begin(plan, now)
    integers = np.zeros(len(plan.reduced) - 1, dtype=np.int64)
    with pytest.raises(BrokenProtocol, match="altered"):
        for client in range(CLIENTS):
            upload = channel.seal(plan, integers, client, now)
            channel.gather(plan, damaged(upload, how) if client == 2 else upload, client)
        channel.collect(plan, now)
    assert (plan.reduced[:-1] == 7).all()


def test_traffic_counts_ciphertexts() -> None:
    now, block = everybody([1, 1, 0, 1, 1]), Bfv().nbytes
    one = Field((9000,))  # two ciphertexts
    for kind, up, down in [(ToServer, 4 * 2 * block + 8 * 9000, 2 * block), (ToClients, 4 * 2 * block, 4 * 2 * block)]:
        party = Party(Solo(), exchange(kind, one), hosted=np.arange(CLIENTS))
        assert totals(party.channel.traffic(party.plan, now)) == (up, down)
    many = Cells.of_columns(Holdings(20000, np.array([0, 0, 0, 1, 1]), (slice(0, 10000), slice(10000, 20000))))
    party = Party(Solo(), exchange(fields=Field((20000,), columns=0)), many, hosted=np.arange(CLIENTS))
    assert totals(party.channel.traffic(party.plan, now)) == (4 * 2 * block + 8 * 20000, 4 * block)
    assert party.channel.keys.up_bytes > 196_000 and party.channel.keys.down_bytes > 4 * 196_000


def test_a_single_client_and_a_field_of_nothing() -> None:
    columns = Cells.all(1)
    for size, expected in ((3, 1.0), (0, 0.0)):
        party = Party(Solo(), exchange(fields=Field((size,))), columns, hosted=np.arange(1))
        now = Round(0, 1, np.ones(1, dtype=bool))
        party.channel.begin(party.plan, now)
        party.channel.add(party.plan, np.ones((1, size)), np.array([0]), now)
        assert party.channel.collect(party.plan, now)
        assert party.plan.sum.total(party.plan.reduced).sum() == size * expected


def test_missing_and_unknown_ciphertexts() -> None:
    party = Party(Solo(), exchange(), hosted=np.arange(CLIENTS))
    now, plan, channel = everybody(), party.plan, party.channel
    channel.begin(plan, now)
    with pytest.raises(BrokenProtocol, match=r"ciphertexts \[0\] of the sum are missing"):
        channel.collect(plan, now)
    channel.begin(plan, now)
    block = channel.scheme.encrypt(np.array([0]))
    channel.gather(plan, bundle({0: block, 99: block}), 0)
    with pytest.raises(BrokenProtocol, match=r"ciphertexts \[99\] are of no client"):
        channel.collect(plan, now)


def test_a_client_that_encrypts_more_than_it_may() -> None:
    """Such a sum is not what honest clients can add up to."""
    party = Party(Solo(), exchange(fields=Field((3,), 1.0, 10.0)), hosted=np.arange(CLIENTS))
    now, plan, channel = everybody(), party.plan, party.channel
    channel.begin(plan, now)
    channel.gather(plan, bundle({0: channel.scheme.encrypt(np.array([51, 0, 0]))}), 0)
    plan.reduced[...] = 7
    with pytest.raises(BrokenProtocol, match=r"up: what was decrypted is no sum"):
        channel.collect(plan, now)
    assert (plan.reduced[:-1] == 7).all()
