"""What an attack on a gradient is pointed at: what the server received of single clients, or of their sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.plays import Play
from mpifed.audit.reader import SUM, Reader
from mpifed.audit.undeclared import as_gradients
from mpifed.core.exchange import Exchange
from mpifed.core.reveals import MeanGradient, Received
from mpifed.maths.objectives import Parameters

FEW = 4  # clients whose answers are tried as gradients where the algorithm does not say what they are


class Target(NamedTuple):
    """A gradient that an attacker has, and what the auditor knows of it."""

    seen: str  # EACH, SUM or SEALED
    round: int
    exchange: str
    model: Parameters  # where it was taken
    gradient: Parameters  # mean over `batch` rows
    batch: int
    look: Callable[[], NDArray[np.float64]]  # gives `rows`, which are read when they are needed: they may be wide
    numbers: int  # in them
    whom: tuple[int, ...]  # of which clients they are
    parts: bool = False  # whether the clients have put it together, each its own columns
    guess: str = ""  # as what an answer is taken of which the algorithm says nothing

    @property
    def rows(self) -> NDArray[np.float64]:
        """[b, p] the rows that entered, or may have; nothing an attacker has."""
        return self.look()


def targets(reader: Reader, clients: int) -> Iterator[Target]:
    """Gradients in a transcript, of at most so many clients, of the first time an exchange was played and the last."""
    for exchange in reader.rounds:
        plays = reader.plays(exchange)
        guessed = any(one.name == exchange.name for one in reader.guessed)
        for play in plays[:1] + plays[1:][-1:]:
            few = list(play.uploads)[:FEW]
            for seen, received in _received(reader, exchange, play, clients):
                said = [("", one) for one in reader.revealed(received) if isinstance(one, MeanGradient)]
                if guessed and (seen == SUM or received.clients[0] in few):
                    said += as_gradients(reader, received)
                for guess, one in said:
                    if not (one.first and play is not plays[0]) and _complete(reader, received, one):
                        yield _target(reader, seen, received, one, guess)


def in_parts(reader: Reader) -> bool:
    """Whether clients send parts of gradients of whole rows, by their columns."""
    found = (one for exchange in reader.rounds for _, one in reader.told_by_sum(MeanGradient, exchange))
    first = next(found, None)
    return first is not None and first.parts


def _received(reader: Reader, exchange: Exchange, play: Play, clients: int) -> Iterator[tuple[str, Received]]:
    """(how it was seen, what) of each client, and of the sum."""
    for client in list(play.uploads)[:clients]:
        received = reader.of_client(exchange, play, client)
        if received is not None:
            yield reader.seen(exchange), received
    for received in reader.of_sum(exchange, play):
        yield SUM, received


def _complete(reader: Reader, received: Received, found: MeanGradient) -> bool:
    """Whether it is of all there is of the rows: put together from all clients, or by clients with these columns."""
    if found.parts:
        return len(received.clients) > 1 and len(received.columns) == reader.stage.algorithm.problem.features
    return all(len(reader.stage.shards[client].columns) == len(received.columns) for client in received.clients)


def _target(reader: Reader, seen: str, received: Received, found: MeanGradient, guess: str) -> Target:
    stage, name, whom = reader.stage, received.exchange.name, received.clients
    entered = {client: stage.rows(received.round, name, client) for client in whom}
    batch = sum(len(rows) for rows in entered.values())
    if not stage.replayed:  # with secret draws nobody can say which
        entered = {client: np.arange(stage.shards[client].samples) for client in whom}
        batch = found.batch * len(whom)
    if found.parts:
        numbers = stage.shards[whom[0]].rows[entered[whom[0]]]
        batch = len(numbers)

    def rows() -> NDArray[np.float64]:
        if found.parts:
            return stage.whole(numbers)
        return np.concatenate([stage.features(client, own) for client, own in entered.items()])

    size = (batch if found.parts else sum(map(len, entered.values()))) * len(received.columns)
    return Target(
        seen, received.round, name, found.model, found.gradient, batch, cache(rows), size, whom, found.parts, guess
    )
