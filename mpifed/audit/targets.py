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

ALIKE = 0.9999  # cosine between a guess and what is said, from which on they are the same
OFF = 1e-2  # of a guess may lie outside of all sums over the rows
FEW_ROWS, MOST_NUMBERS = 10, 2**22  # behind a guess beside what is said
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


def unsaid_targets(reader: Reader, clients: int, explained: set[str], told: list[Target]) -> Iterator[Target]:
    """Guesses at answers of which the algorithm says something else, or which are beside the rounds.

    Parameters
    ----------
    explained : exchanges of which an attack has made something already
    told : targets of what the algorithm says, which are not tried twice
    """
    known = explained | {one.name for one in reader.guessed}
    for exchange in [one for name, one in reader.exchanges.items() if name not in known and reader.readable(one)]:
        plays = reader.plays(exchange)
        for play in plays[:1] + plays[1:][-1:]:
            for seen, received in _received(reader, exchange, play, min(clients, FEW)):
                if received.sealed:  # random numbers, whatever the algorithm says
                    continue
                guesses = ((guess, one) for guess, one in as_gradients(reader, received))
                complete = ((guess, one) for guess, one in guesses if _complete(reader, received, one))
                some = (_target(reader, seen, received, one, guess) for guess, one in complete)
                yield from (one for one in some if not _tried(one, told) and _may_be(one))


def _tried(guess: Target, told: list[Target]) -> bool:
    """Whether the algorithm says the same of it, up to a factor."""
    first = np.ravel(guess.gradient.first)
    for one in told:
        if (one.seen, one.round, one.exchange, one.whom) == (guess.seen, guess.round, guess.exchange, guess.whom):
            other = np.ravel(one.gradient.first)
            if abs(first @ other) >= ALIKE * np.linalg.norm(first) * np.linalg.norm(other):
                return True
    return False


def _may_be(guess: Target) -> bool:
    """Whether it is a sum over the rows that entered, which a gradient is: what only the auditor can see beforehand.

    Among as many rows as columns anything is; then only few are looked at.
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
    """Whether clients send parts of gradients of whole rows, by their columns."""
    found = (one for exchange in reader.rounds for _, one in reader.told_by_sum(MeanGradient, exchange))
    first = next(found, None)
    whole = all(len(one.columns) == reader.stage.algorithm.problem.features for one in reader.stage.shards.values())
    return first is not None and first.parts and not whole  # whoever holds whole rows sends no part of them


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
