"""Targets of attacks on gradients: gradients that the server received from single clients, or in their sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.received import Reader
from mpifed.core.reveals import MeanGradient, Received
from mpifed.maths.objectives import Parameters


class Target(NamedTuple):
    """A gradient that an attacker has, and the auditor's ground truth."""

    seen: str  # EACH, SUM or SEALED
    round: int
    exchange: str
    model: Parameters  # at which the gradient was taken
    gradient: Parameters  # mean over `batch` rows
    batch: int
    read: Callable[[], NDArray[np.float64]]  # gives `rows`; lazy, since they may be wide
    numbers: int  # in `rows`
    clients: tuple[int, ...]  # whose rows they are
    parts: bool = False  # whether each client has contributed the gradient of its own columns

    @property
    def rows(self) -> NDArray[np.float64]:
        """[b, p] the rows that entered, or may have entered; unknown to the attacker."""
        return self.read()


def targets(reader: Reader, clients: int) -> Iterator[Target]:
    """Gradients of at most `clients` clients in the first and last occurrence of each exchange."""
    for exchange in reader.rounds:
        plays = reader.plays(exchange)
        for play in plays[:1] + plays[1:][-1:]:
            for seen, received in reader.received(play, clients):
                for gradient in reader.revealed(received):
                    if not isinstance(gradient, MeanGradient) or (gradient.first and play is not plays[0]):
                        continue
                    if _complete(reader, received, gradient):
                        yield _target(reader, seen, received, gradient)


def in_parts(reader: Reader) -> bool:
    """Whether clients send gradients of their own columns only."""
    gradients = (gradient for _, _, gradient in reader.of_sums(MeanGradient, reader.rounds))
    first = next(gradients, None)
    whole = all(
        len(shard.columns) == reader.replay.algorithm.problem.features for shard in reader.replay.shards.values()
    )
    return first is not None and first.parts and not whole  # a client with all columns sends no part


def _complete(reader: Reader, received: Received, mean: MeanGradient) -> bool:
    """Whether a gradient is of whole rows: of all clients' columns, or of clients that hold all these columns."""
    if mean.parts:
        return len(received.clients) > 1 and len(received.columns) == reader.replay.algorithm.problem.features
    return all(len(reader.replay.shards[client].columns) == len(received.columns) for client in received.clients)


def _target(reader: Reader, seen: str, received: Received, mean: MeanGradient) -> Target:
    replay, name, clients = reader.replay, received.exchange.name, received.clients
    entered = {client: replay.rows(received.round, name, client) for client in clients}
    batch = sum(len(rows) for rows in entered.values())
    if mean.parts:
        numbers = replay.shards[clients[0]].rows[entered[clients[0]]]
        batch = len(numbers)

    def rows() -> NDArray[np.float64]:
        if mean.parts:
            return replay.full_rows(numbers)
        return np.concatenate([replay.features(client, positions) for client, positions in entered.items()])

    size = (batch if mean.parts else sum(map(len, entered.values()))) * len(received.columns)
    return Target(seen, received.round, name, mean.model, mean.gradient, batch, cache(rows), size, clients, mean.parts)
