"""Security condition of the papers: what a party receives must leave the private numbers underdetermined.

Cui, Li and Ye (arXiv:2104.06011, "Security Analysis" of Algorithms 1 to 4) ask that the equations
q(w, z) = q(w, x) for the rows x that entered have infinitely many solutions z. That is so where they have more
unknowns than independent equations, and almost only there; the count of received numbers is an upper bound of these.

The condition is necessary for secrecy and not sufficient: an underdetermined system may still reveal most of a row, and
a party with prior knowledge of rows needs fewer equations. The attacks go further.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from mpifed.audit.recording import Play, Replay
from mpifed.core.exchange import hearing
from mpifed.core.record import Array
from mpifed.core.round import SETUP

NOTE = "underdetermined is necessary for secrecy and not sufficient; class labels are not counted as unknowns"
NEXT = "the next broadcast"

Owners: TypeAlias = dict[int, Array]  # by client, positions of its rows that entered


class Condition(NamedTuple):
    """The condition for an exchange and a party."""

    exchange: str
    round: int
    party: str  # "server", "client 0"
    receives: str  # "each client's upload", "the sum of 8 uploads", ...
    rows: int  # that entered the exchange
    unknowns: int  # private numbers
    numbers: int  # that the party received: an upper bound of independent equations
    determined: bool  # whether it is not shown that the unknowns are underdetermined


def conditions(replay: Replay, client: int = 0) -> list[Condition]:
    """Conditions of every exchange with private rows, for the server and for a client, in the last round."""
    plays = {one.exchange.name: one for one in replay.plays if one.round in (SETUP, replay.now.index)}
    listed = list[Condition]()
    for play in plays.values():
        entered = {one: _entered(play, one) for one in play.uploads}
        owners = {one: rows for one, rows in entered.items() if len(rows)}
        if not owners or not play.message.size:
            continue
        parties = [("server", *_of_server(replay, play, owners)), *_of_client(replay, play, client, owners)]
        for party, receives, some, numbers in parties:
            unknowns, distinct = 0, set[int]()
            for one, rows in some.items():
                shard = replay.shards[one]
                distinct.update(shard.rows[rows].tolist())
                unknowns += len(rows) * (len(shard.columns) + (shard.y.dtype.kind == "f"))
            counts = len(distinct), unknowns, numbers, 0 < unknowns <= numbers
            listed.append(Condition(play.exchange.name, play.round, party, receives, *counts))
    return listed


def _entered(play: Play, client: int) -> Array:
    """Positions of a client's rows that it has read in the round until then."""
    here = np.flatnonzero(play.rows.get(client, ()))
    return here if play.round == SETUP or play.before is None else np.union1d(here, _entered(play.before, client))


def _of_server(replay: Replay, play: Play, owners: Owners) -> tuple[str, Owners, int]:
    """What the server receives: each upload, of which the one with fewest unknowns counts, or the sum."""
    clear, receives = (replay.in_clear(play.exchange), f"the sum of {len(owners)} uploads")
    if play.exchange.hear is not None and not clear:
        return "nothing", owners, 0
    if all(place.held is not None and (place.held.holders <= 1).all() for place in play.message.places):
        receives = "each client's own values"
    elif clear:
        least = min(owners, key=lambda client: len(owners[client]) * len(replay.shards[client].columns))
        owners, receives = {least: owners[least]}, "each client's upload"
    return receives, owners, _numbers(play, [*owners])


def _of_client(replay: Replay, play: Play, client: int, owners: Owners) -> Iterator[tuple[str, str, Owners, int]]:
    """What a client learns about the others in a round: from a sum that it hears, or from the next broadcast."""
    exchange, receives = play.exchange, NEXT
    if exchange.hear is not None:
        receives = f"the sum of {len(owners)} uploads"
        client = int(hearing(exchange, replay.now)[0]) if exchange.hears else client
    others = {other: rows for other, rows in owners.items() if other != client}
    if any(place.field.to_holders for place in play.message.places):
        others = {other: rows for other, rows in others.items() if _numbers(play, [other], client)}
    numbers = _numbers(play, [*others], client)
    if numbers and play.round != SETUP:
        yield f"client {client}", receives, others, numbers


def _numbers(play: Play, clients: Sequence[int], hearer: int | None = None) -> int:
    """Numbers in the sum of these clients' uploads; for a client those that it holds, or hears."""
    message, total = play.message, 0
    filled, own = np.zeros((2, message.size), dtype=bool)
    for client in clients:
        filled[message.own(client)] = True
    if hearer is not None:
        own[message.own(hearer)] = True
    for place in message.places:
        at = slice(place.start, place.start + place.field.size)  # of the first limb
        whole = hearer is None or (play.exchange.hear is not None and not place.field.to_holders)
        total += int((filled[at] & (own[at] | whole)).sum())
    return total
