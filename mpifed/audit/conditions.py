"""Security condition of the papers: what a party receives must leave the private numbers underdetermined.

Cui, Li and Ye (arXiv:2104.06011, "Security Analysis" of Algorithms 1 to 4) ask that the equations
q(w, z) = q(w, x) for the rows x that entered have infinitely many solutions z. That is so where they have more
unknowns than independent equations, and almost only there; the count of received numbers is an upper bound of these.

The condition is necessary for secrecy and not sufficient: an underdetermined system may still reveal most of a row, and
a party with prior knowledge of rows needs fewer equations. The attacks go further.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mpifed.audit.equation_counts import (
    PrivateNumbers,
    of_single_clients,
    paper_count,
    pool_of,
    private_numbers,
    received_numbers,
    rows_of,
    sizes,
    sum_of,
)
from mpifed.audit.replay import Replay, RoundStart
from mpifed.core.exchange import Exchange, answering, fields_of, hearing
from mpifed.core.record import leaves, of_columns
from mpifed.core.round import SETUP

OPEN, UNDERDETERMINED = "not excluded", "underdetermined"
NOTHING, NEXT = "nothing", "the next broadcast"
NOTE = "underdetermined is necessary for secrecy and not sufficient; class labels are not counted as unknowns"


class Condition(NamedTuple):
    """The condition for an exchange and a party."""

    exchange: str
    round: int
    party: str  # "server", "client 0"
    receives: str  # "each client's upload", "the sum of 8 uploads", ...
    about: str  # clients whose numbers are unknown
    rows: int  # that entered the exchange
    unknowns: int  # private numbers
    numbers: int  # that the party received
    equations: int  # upper bound of the independent ones
    pool: int  # private numbers of all rows that may enter any round; 0 if every round has new unknowns
    paper: str = ""  # the count of the papers, for their own exchanges

    @property
    def rounds_until(self) -> int | None:
        """Rounds until there are as many equations as private numbers; None if never, or outside the rounds."""
        return -(-self.pool // self.equations) if self.pool and self.equations and self.round != SETUP else None

    @property
    def verdict(self) -> str:
        """Whether the equations determine the unknowns."""
        return UNDERDETERMINED if self.unknowns > self.equations else OPEN

    @property
    def missing(self) -> int:
        """Number of missing equations; a lower bound."""
        return max(0, self.unknowns - self.equations)

    @property
    def text(self) -> str:
        if not self.unknowns:
            return "no private rows enter"
        if self.verdict == UNDERDETERMINED:
            return f"underdetermined by at least {self.missing}"
        return "not shown to be underdetermined: as many equations as unknowns"


def conditions(replay: Replay, client: int = 0) -> list[Condition]:
    """Conditions of every exchange with private rows, for the server and for a client, in the last round."""
    listed: list[Condition] = []
    start = replay.last
    index = start.now.index
    for exchange in replay.exchanges:
        listed += _of_server(replay, exchange, index, _answering(replay, exchange, start))
        listed += _of_client(replay, start, exchange, client)
    outside = {exchange.name: exchange for exchange in (*replay.algorithm.setup, *_measured(replay))}
    for exchange in outside.values():
        listed += _of_server(replay, exchange, SETUP, private_numbers(replay, exchange, SETUP))
    return listed


def _measured(replay: Replay) -> list[Exchange]:
    """Exchanges of measures that took place."""
    played = {play.exchange.name for play in replay.transcript.plays if play.round == SETUP and play.rows}
    return [
        exchange for measure in replay.algorithm.measures for exchange in measure.exchanges if exchange.name in played
    ]


def _of_server(replay: Replay, exchange: Exchange, round: int, owners: list[PrivateNumbers]) -> Iterator[Condition]:
    """What the server receives."""
    if not owners:
        return
    clear, about = replay.in_clear(exchange), "all participating clients"
    if clear and not of_single_clients(replay, exchange):
        owners = [min(owners, key=lambda owner: owner.unknowns)]
        numbers, about = sum(sizes(replay, exchange, owners[0].client)), f"client {owners[0].client}"
        receives = "each client's upload"
    elif exchange.hear is None or clear:
        numbers = received_numbers(replay, exchange, [owner.client for owner in owners])
        receives = sum_of(replay, exchange, len(owners))
    else:
        receives, numbers = NOTHING, 0
    yield _condition(replay, exchange, round, "server", receives, owners, numbers, about)


def _answering(
    replay: Replay, exchange: Exchange, start: RoundStart, hidden_model: bool = False
) -> list[PrivateNumbers]:
    """Private numbers of the clients that upload in an exchange of this round."""
    there = answering(exchange, exchange.at(start.now, 0))
    return [owner for owner in private_numbers(replay, exchange, start.now.index, hidden_model) if there[owner.client]]


def _of_client(replay: Replay, start: RoundStart, exchange: Exchange, client: int) -> Iterator[Condition]:
    """What a client learns about the others."""
    now = start.now
    if exchange.hear is None:
        yield from _of_next_question(replay, start, exchange, client)
        return
    if exchange.hears is not None:
        client = int(np.flatnonzero(hearing(exchange, now))[0])
    others = [owner for owner in _answering(replay, exchange, start, hidden_model=True) if owner.client != client]
    numbers = received_numbers(replay, exchange, [owner.client for owner in others], client) if others else 0
    if not numbers:
        return
    if any(field.to_holders for field in fields_of(exchange).values()):
        others = [owner for owner in others if received_numbers(replay, exchange, [owner.client], client)]
    senders = {field.sender for field in fields_of(exchange).values()}
    about = f"all but client {client}"
    if client in senders:
        return  # the client has sent it itself
    alone = [sender for sender in senders if sender is not None]
    all_alone = len(alone) == len(senders)
    whom = f"values of client {min(alone)}" if all_alone else sum_of(replay, exchange, len(others) + 1)
    yield _condition(replay, exchange, now.index, f"client {client}", whom, others, numbers, about)


def _of_next_question(replay: Replay, start: RoundStart, exchange: Exchange, client: int) -> Iterator[Condition]:
    """A sum for the server, which clients do not receive, but may infer from the next broadcast."""
    others = [owner for owner in private_numbers(replay, exchange, start.now.index) if owner.client != client]
    if not others or exchange.name != replay.exchanges[-1].name:
        return
    first = next(other for other in replay.exchanges if leaves(other.ask(replay.server, start.now.at(0))))
    question = first.ask(replay.server, start.now.at(0))
    columns = replay.algorithm.problem.columns
    others_too = columns.held_by(np.arange(len(columns.groups)) != client)[columns.of(client)] > 0
    broadcast_numbers = sum(  # columns that no other client holds follow from its own rows
        np.size(leaf) if name not in of_columns(question) else np.size(leaf[0]) * int(others_too.sum())
        for name, leaf in leaves(question)
        if np.asarray(leaf).dtype.kind == "f" and np.ndim(leaf)
    )
    numbers = min(broadcast_numbers, received_numbers(replay, exchange, [owner.client for owner in others]))
    party, about = f"client {client}", f"all but client {client}"
    yield _condition(replay, exchange, start.now.index, party, NEXT, others, numbers, about)


def _condition(
    replay: Replay, exchange: Exchange, round: int, party: str, receives: str, owners: list[PrivateNumbers],
    numbers: int, about: str,
) -> Condition:  # fmt: skip
    unknowns, rows = sum(owner.unknowns for owner in owners), rows_of(replay, owners)
    paper = "" if round == SETUP or receives == NEXT else paper_count(replay, exchange, party, rows, owners)
    return Condition(
        exchange.name, round, party, receives, about, rows, unknowns, numbers, min(numbers, unknowns),
        pool_of(replay, owners), paper,
    )  # fmt: skip
