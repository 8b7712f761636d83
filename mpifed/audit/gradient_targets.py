"""Targets of attacks on gradients: gradients that the server received from single clients, or in their sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.reader import SUM, Reader
from mpifed.audit.undeclared_uploads import as_gradients
from mpifed.core.reveals import MeanGradient, Received
from mpifed.maths.objectives import Parameters

ALIKE = 0.9999  # cosine from which on a guess equals a declared gradient
OFF = 1e-2  # largest part of a guess outside the span of the rows
FEW_ROWS, MOST_NUMBERS = 10, 2**22  # limits on the rows of a guess about a declared exchange
FEW = 4  # most clients whose undeclared uploads are tried as gradients


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
    guess: str = ""  # the interpretation of an undeclared upload

    @property
    def rows(self) -> NDArray[np.float64]:
        """[b, p] the rows that entered, or may have entered; unknown to the attacker."""
        return self.read()


def targets(reader: Reader, clients: int) -> Iterator[Target]:
    """Gradients of at most `clients` clients in the first and last occurrence of each exchange."""
    for exchange in reader.rounds:
        plays = reader.first_and_last(exchange)
        guessed = any(other.name == exchange.name for other in reader.guessed)
        for play in plays:
            few = list(play.uploads)[:FEW]
            for seen, received in reader.received(exchange, play, clients):
                candidates = [("", item) for item in reader.revealed(received) if isinstance(item, MeanGradient)]
                if guessed and (seen == SUM or received.clients[0] in few):
                    candidates += as_gradients(reader, received)
                for guess, gradient in candidates:
                    if not (gradient.first and play is not plays[0]) and _complete(reader, received, gradient):
                        yield _target(reader, seen, received, gradient, guess)


def undeclared_targets(reader: Reader, clients: int, explained: set[str], declared: list[Target]) -> Iterator[Target]:
    """Guesses about uploads outside the rounds, or whose declaration has led to no success.

    `explained`: exchanges on which an attack has succeeded. `declared`: targets that the algorithm declares, which are
    not tried twice.
    """
    known = explained | {exchange.name for exchange in reader.guessed}
    others = [exchange for name, exchange in reader.exchanges.items() if name not in known]
    for exchange in filter(reader.readable, others):
        for play in reader.first_and_last(exchange):
            for seen, received in reader.received(exchange, play, min(clients, FEW)):
                if received.sealed:  # random numbers
                    continue
                guesses = ((guess, gradient) for guess, gradient in as_gradients(reader, received))
                complete = ((guess, gradient) for guess, gradient in guesses if _complete(reader, received, gradient))
                guessed = (_target(reader, seen, received, gradient, guess) for guess, gradient in complete)
                yield from (target for target in guessed if not _tried(target, declared) and _may_be(target))


def _tried(guess: Target, declared: list[Target]) -> bool:
    """Whether the algorithm declares the same gradient, up to a factor."""
    first = np.ravel(guess.gradient.first)
    for target in declared:
        if target[:3] == guess[:3] and target.clients == guess.clients:  # seen, round, exchange
            other = np.ravel(target.gradient.first)
            if abs(first @ other) >= ALIKE * np.linalg.norm(first) * np.linalg.norm(other):
                return True
    return False


def _may_be(guess: Target) -> bool:
    """Whether a guess lies in the span of the rows that entered, as a gradient does; only the auditor can know.

    Any vector lies in the span of as many rows as columns; then only small minibatches are tried.
    """
    first = guess.gradient.first
    columns = len(first)
    if not guess.batch or guess.numbers > MOST_NUMBERS or not np.any(first):
        return False
    if guess.batch >= columns:
        return guess.batch <= FEW_ROWS
    left, values, _ = np.linalg.svd(guess.rows.T, full_matrices=False)
    span = left[:, values > 1e-9 * values.max(initial=0.0)]
    return bool(np.linalg.norm(first - span @ (span.T @ first)) < OFF * np.linalg.norm(first))


def in_parts(reader: Reader) -> bool:
    """Whether clients send gradients of their own columns only."""
    gradients = (
        gradient for exchange in reader.rounds for _, gradient in reader.revealed_by_sum(MeanGradient, exchange)
    )
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


def _target(reader: Reader, seen: str, received: Received, mean: MeanGradient, guess: str) -> Target:
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
    return Target(
        seen, received.round, name, mean.model, mean.gradient, batch, cache(rows), size, clients, mean.parts, guess
    )
