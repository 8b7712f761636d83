"""Messages received in a recorded run, decoded, and what they reveal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.local import LocalSteps
from mpifed.audit.recording import Play
from mpifed.audit.replay import Replay
from mpifed.audit.reveals import declares, of_answer, revealed
from mpifed.core.exchange import Exchange
from mpifed.core.record import Record, bare_leaves, map_leaves
from mpifed.core.reveals import Received, Revealed
from mpifed.core.round import Round
from mpifed.job.participation import round_of

EACH, SUM, SEALED = "each client's upload", "the decoded sum", "masked uploads, read as if they were plain"
HIDDEN = "uploads are ciphertexts, which cannot be read without the key"

Kind = TypeVar("Kind", bound=Revealed)


class Reader:
    """Received messages by exchange, as far as they can be read; decoded on demand."""

    def __init__(self, replay: Replay) -> None:
        self.replay, self.rounds = replay, replay.exchanges
        measures = (measure.exchanges for measure in replay.algorithm.measures)
        sequences = (self.rounds, replay.algorithm.setup, *measures)
        self.exchanges = {exchange.name: exchange for sequence in sequences for exchange in sequence}
        self._asking: dict[Play, Play] = {}  # by occurrence, the last one of its round that asks something
        self._before = {
            second: first for first, second in pairwise(replay.transcript.plays) if first.round == second.round
        }
        last: Play | None = None
        for play in replay.transcript.plays:
            if last is None or last.round != play.round or bare_leaves(play.question):
                last = play
            self._asking[play] = last

    def position(self, exchange: Exchange) -> int:
        """Index of an exchange within its round."""
        return [other.name for other in self.rounds].index(exchange.name)

    def seen(self, exchange: Exchange) -> str:
        """Which form of the uploads the server has: EACH or SEALED."""
        return EACH if self.replay.in_clear(exchange) else SEALED

    def readable(self, exchange: Exchange) -> bool:
        """Whether uploads are numbers, masked or not, rather than ciphertexts."""
        return self.replay.channel != "encrypted" or exchange.clear

    def plays(self, exchange: Exchange) -> list[Play]:
        """Occurrences of an exchange with an upload, in order."""
        return [play for play in self.replay.plays(exchange.name) if play.uploads]

    # --- uploads and sums --------------------------------------------------------------------------------------------

    def of_client(self, play: Play, client: int) -> Received | None:
        """One client's upload; a masked one is decoded as if it were plain. None if it cannot be read."""
        message, upload = play.message, play.uploads.get(client)
        if upload is None or upload.dtype.itemsize != message.dtype.itemsize:  # ciphertexts are bytes
            return None
        numbers = np.zeros(message.size, message.dtype)
        numbers[message.own(client)] = upload
        sealed = not self.replay.in_clear(play.exchange)
        before = self._before.get(play)
        earlier = None if before is None else self.of_client(before, client)
        columns = self.replay.shards[client].columns
        return self._received(play, message.decode(numbers), (client,), columns, sealed)._replace(earlier=earlier)

    def of_sum(self, play: Play) -> Iterator[Received]:
        """The sum that the server decodes: over all columns, and over those that only its clients hold."""
        if play.total is None or play.exchange.hear is not None:
            return
        present = tuple(sorted(play.uploads))
        whole = np.arange(self.replay.problem.features)
        before = self._before.get(play)
        earlier = None if before is None else next(self.of_sum(before), None)
        yield self._received(play, play.total, present, whole)._replace(earlier=earlier)
        holders = self._with_same_columns(present)
        columns = self.replay.shards[present[0]].columns
        if holders and len(columns) < len(whole):
            yield self._received(play, play.total, holders, columns)

    def received(self, play: Play, clients: int) -> Iterator[tuple[str, Received]]:
        """(EACH, SEALED or SUM, message) of each of the first `clients` clients, and of the sum."""
        uploads = (self.of_client(play, client) for client in list(play.uploads)[:clients])
        yield from ((self.seen(play.exchange), upload) for upload in uploads if upload is not None)
        yield from ((SUM, total) for total in self.of_sum(play))

    def _received(
        self, play: Play, answer: Record, clients: tuple[int, ...], columns: NDArray[np.int64], sealed: bool = False
    ) -> Received:
        question, wide = self._asking[play].question, map_leaves(np.float64, answer)
        rows = self._rows(clients).copy()
        now = self._now(play.round)
        return Received(play.exchange, play.round, question, wide, clients, rows, columns.copy(), sealed, now)

    @cached_property
    def _now(self) -> Callable[[int], Round]:
        """Function of a round's number."""
        return cache(lambda index: round_of(self.replay.job, self.replay.problem.clients, index))

    @cached_property
    def _rows(self) -> Callable[[tuple[int, ...]], NDArray[np.int64]]:
        """Function of clients that gives the indices of rows that any of them holds."""
        shards = self.replay.shards
        return cache(lambda clients: np.unique(np.concatenate([shards[client].rows for client in clients])))

    def _with_same_columns(self, present: tuple[int, ...]) -> tuple[int, ...]:
        """Participating clients with the columns of the first one; () if other clients hold any of these columns."""
        columns = self.replay.problem.columns
        holders = tuple(client for client in present if columns.groups[client] == columns.groups[present[0]])
        who = np.isin(np.arange(len(columns.groups)), present)
        alone = bool((columns.held_by(who)[columns.of(present[0])] == len(holders)).all())
        return holders if alone else ()

    # --- what they reveal ---------------------------------------------------------------------------------------------

    def revealed(self, received: Received) -> list[Revealed]:
        """What a message reveals; UsageError where the algorithm's own declaration is wrong."""
        algorithm = self.replay.algorithm
        if isinstance(algorithm, LocalSteps):
            algorithm = algorithm.in_round(received.now)
        return revealed(algorithm, received)

    def of_clients(
        self, kind: type[Kind], exchanges: Iterable[Exchange], most: int | None = None
    ) -> Iterator[tuple[Exchange, Play, int, Kind]]:
        """(exchange, occurrence, client, item) of a kind in uploads of the first `most` clients of each occurrence."""
        for exchange in exchanges:
            for play in self.plays(exchange):
                for client in sorted(play.uploads)[:most]:
                    received = self.of_client(play, client)
                    items = [] if received is None else self.revealed(received)
                    yield from ((exchange, play, client, item) for item in items if isinstance(item, kind))

    def of_sums(self, kind: type[Kind], exchanges: Iterable[Exchange]) -> Iterator[tuple[Exchange, Play, Kind]]:
        """(exchange, occurrence, item) of a kind in the sums over all columns."""
        for exchange in exchanges:
            for play in self.plays(exchange):
                for received in list(self.of_sum(play))[:1]:
                    yield from ((exchange, play, item) for item in self.revealed(received) if isinstance(item, kind))

    @property
    def attribution(self) -> str:
        """Suffix of statements about uploads that rely on the algorithm's declaration."""
        algorithm = self.replay.algorithm
        known = any(of_answer(algorithm, exchange) or declares(algorithm, exchange) for exchange in self.rounds)
        return ", as the algorithm declares" if known else ""

    @property
    def undeclared(self) -> list[str]:
        """Exchanges of the set-up and of a round of whose answers nobody says what they reveal."""
        algorithm = self.replay.algorithm
        exchanges = (*algorithm.setup, *self.rounds)
        return [exchange.name for exchange in exchanges if not declares(algorithm, exchange)]
