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

from mpifed.audit.recording import Play, Replay
from mpifed.core.exchange import Exchange, answering, fields_of, hearing
from mpifed.core.record import bare_leaves, leaves, of_columns
from mpifed.core.round import SETUP
from mpifed.run.setup import all_exchanges

NOTE = "underdetermined is necessary for secrecy and not sufficient; class labels are not counted as unknowns"
NOTHING, NEXT = "nothing", "the next broadcast"


class Condition(NamedTuple):
    """The condition for an exchange and a party."""

    exchange: str
    round: int
    party: str  # "server", "client 0"
    receives: str  # "each client's upload", "the sum of 8 uploads", ...
    rows: int  # that entered the exchange
    unknowns: int  # private numbers
    numbers: int  # that the party received: an upper bound of independent equations

    @property
    def determined(self) -> bool:
        """Whether it is not shown that the unknowns are underdetermined."""
        return 0 < self.unknowns <= self.numbers

    @property
    def text(self) -> str:
        if self.determined:
            return "not shown to be underdetermined: as many numbers as unknowns"
        return f"underdetermined by at least {self.unknowns - self.numbers}" if self.numbers else "no equations"


def conditions(replay: Replay, client: int = 0) -> list[Condition]:
    """Conditions of every exchange with private rows, for the server and for a client, in the last round."""
    plays = {play.exchange.name: play for play in replay.transcript.plays if play.round in (SETUP, replay.now.index)}
    rounds = [exchange.name for exchange in replay.algorithm.exchanges]
    listed = list[Condition]()
    for exchange in all_exchanges(replay.algorithm):
        if exchange.name not in plays:
            continue
        play, among = plays[exchange.name], exchange.name in rounds
        before = rounds[: rounds.index(exchange.name) + 1] if among else [exchange.name]
        entered = {c: {row for name in before for row in replay.rows(play.round, name, c)} for c in replay.shards}
        there = set(answering(exchange, exchange.at(replay.now, 0)).tolist()) if among else {*replay.shards}
        owners = {c: rows for c, rows in entered.items() if rows and c in there}
        if owners and fields_of(exchange):
            listed.append(_of_server(replay, play, owners))
            listed += _of_client(replay, play, client, owners) if among else ()
    return listed


def _condition(
    replay: Replay,
    play: Play,
    party: str,
    receives: str,
    owners: dict[int, set[int]],
    numbers: int,
    model: bool = False,
) -> Condition:
    """`model`: whether the columns' parts of the model are unknown as well, as to clients who hold others."""
    unknowns, question = 0, replay.plays(replay.algorithm.exchanges[0].name)[-1].asked
    for client, rows in owners.items():
        shard = replay.shards[client]
        weights = [leaf[0].size for name, leaf in leaves(question) if model and name in of_columns(question)]
        unknowns += len(rows) * (len(shard.columns) + (np.asarray(shard.y).dtype.kind == "f"))
        unknowns += sum(weights) * len(shard.columns)
    distinct = {int(replay.shards[client].rows[row]) for client, rows in owners.items() for row in rows}
    return Condition(play.exchange.name, play.round, party, receives, len(distinct), unknowns, numbers)


def _of_server(replay: Replay, play: Play, owners: dict[int, set[int]]) -> Condition:
    """What the server receives: each upload, of which the one with fewest unknowns counts, or the sum."""
    exchange, single = play.exchange, _of_single_clients(replay, play.exchange)
    if exchange.hear is not None and not replay.in_clear(exchange):
        return _condition(replay, play, "server", NOTHING, owners, 0)
    receives = "each client's own values" if single else f"the sum of {len(owners)} uploads"
    if replay.in_clear(exchange) and not single:
        least = min(owners, key=lambda client: len(owners[client]) * len(replay.shards[client].columns))
        owners, receives = {least: owners[least]}, "each client's upload"
    return _condition(replay, play, "server", receives, owners, _numbers(replay, exchange, [*owners]))


def _of_client(replay: Replay, play: Play, client: int, owners: dict[int, set[int]]) -> Iterator[Condition]:
    """What a client learns about the others: from a sum that it hears, or from the next broadcast."""
    exchange, hidden = play.exchange, replay.problem.split == "columns"
    if exchange.hears is not None:
        client = int(hearing(exchange, replay.now)[0])
    others = {other: rows for other, rows in owners.items() if other != client}
    numbers, receives = _numbers(replay, exchange, [*others], client), NEXT
    if exchange.hear is None:
        numbers, hidden = min(_broadcast_after(replay, play, client), _numbers(replay, exchange, [*others])), False
    else:
        fields = fields_of(exchange).values()
        senders = {field.sender for field in fields}
        if client in senders:  # the client has sent it itself
            return
        if any(field.to_holders for field in fields):
            others = {c: rows for c, rows in others.items() if _numbers(replay, exchange, [c], client)}
        single = _of_single_clients(replay, exchange)
        receives = "each client's own values" if single else f"the sum of {len(others) + 1} uploads"
    if others and numbers:
        yield _condition(replay, play, f"client {client}", receives, others, numbers, hidden)


def _broadcast_after(replay: Replay, play: Play, client: int) -> int:
    """Numbers of the next broadcast, of this round or the next, in columns that others hold as well."""
    plays = replay.transcript.plays
    later = [one for one in plays[plays.index(play) + 1 :] if one.round == play.round and bare_leaves(one.question)]
    question = (later or replay.plays(replay.algorithm.exchanges[0].name))[0].question
    columns = replay.problem.columns
    shared = int((columns.held_by(np.arange(len(columns.groups)) != client)[columns.of(client)] > 0).sum())
    parts = [(name, np.asarray(leaf)) for name, leaf in leaves(question)]
    parts = [(name, leaf) for name, leaf in parts if leaf.dtype.kind == "f" and leaf.ndim]
    return sum(leaf[0].size * shared if name in of_columns(question) else leaf.size for name, leaf in parts)


def _of_single_clients(replay: Replay, exchange: Exchange) -> bool:
    """Whether every value of an exchange is of a single client."""
    held = [field.holdings(replay.problem.clients) for field in fields_of(exchange).values()]
    return all(holdings is not None and bool((holdings.holders <= 1).all()) for holdings in held)


def _numbers(replay: Replay, exchange: Exchange, clients: list[int], hearer: int | None = None) -> int:
    """Numbers in the sum of these clients' uploads; of what is sent to its holders alone, those of this one."""
    total, everybody = 0, np.arange(replay.problem.clients)
    for field in fields_of(exchange).values():
        held = field.holdings(replay.problem.clients)
        if held is None:
            total += field.size if clients else 0
            continue
        filled = held.held_by(np.isin(everybody, clients)) > 0
        if field.to_holders and hearer is not None:
            filled &= held.held_by(everybody == hearer) > 0
        total += field.size // held.length * int(filled.sum())
    return total
