"""Messages received in a recorded run, decoded, and what they reveal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.local import LocalSteps
from mpifed.algorithms.reveals import Received, Revealed
from mpifed.audit.recording import Play, Replay
from mpifed.audit.reveals import revealed
from mpifed.core.exchange import Exchange
from mpifed.core.record import Record, map_leaves
from mpifed.job.participation import round_of
from mpifed.run.setup import all_exchanges

EACH, SUM, SEALED = "each client's upload", "the decoded sum", "masked uploads, read as if they were plain"
HIDDEN = "uploads are ciphertexts, which cannot be read without the key"
DECLARED = ", as the algorithm declares"  # suffix of statements that rely on it

Kind = TypeVar("Kind", bound=Revealed)


class Reader:
    """Received messages, as far as they can be read; decoded on demand."""

    def __init__(self, replay: Replay) -> None:
        self.replay, self.rounds = replay, replay.algorithm.exchanges
        self.all = all_exchanges(replay.algorithm)
        self._round = cache(lambda index: round_of(replay.job, replay.problem.clients, index))

    def position(self, exchange: Exchange) -> int:
        """Index of an exchange within its round."""
        return [other.name for other in self.rounds].index(exchange.name)

    def seen(self, exchange: Exchange) -> str:
        """Which form of the uploads the server has: EACH or SEALED."""
        return EACH if self.replay.in_clear(exchange) else SEALED

    @cached_property
    def ciphertexts(self) -> bool:
        """Whether uploads of some exchange of a round cannot be read."""
        return self.replay.channel == "encrypted" and not all(exchange.clear for exchange in self.rounds)

    def of_client(self, play: Play, client: int) -> Received | None:
        """One client's upload; a masked one is decoded as if it were plain. None if it cannot be read."""
        message, upload = play.message, play.uploads.get(client)
        if upload is None or upload.dtype != np.int64:  # ciphertexts are bytes
            return None
        numbers = np.zeros(message.size, np.int64)
        numbers[message.own(client)] = upload
        earlier = None if play.before is None else self.of_client(play.before, client)
        columns = self.replay.shards[client].columns
        sealed = not self.replay.in_clear(play.exchange)
        return self._received(play, message.decode(numbers), (client,), columns, sealed, earlier)

    def of_sum(self, play: Play) -> Received | None:
        """The sum that the server decodes, over all columns; None where there is none."""
        if play.total is None or not play.uploads or play.exchange.hear is not None:
            return None
        earlier = None if play.before is None else self.of_sum(play.before)
        present, columns = tuple(sorted(play.uploads)), np.arange(self.replay.problem.features)
        return self._received(play, play.total, present, columns, False, earlier)

    def _received(
        self, play: Play, answer: Record, clients: tuple[int, ...], columns: NDArray[np.int64], sealed: bool,
        earlier: Received | None,
    ) -> Received:  # fmt: skip
        rows = np.unique(np.concatenate([self.replay.shards[client].rows for client in clients]))
        wide, now = map_leaves(np.float64, answer), self._round(play.round)
        return Received(
            play.exchange, play.round, play.asked, wide, clients, rows, columns.copy(), sealed, now, earlier
        )

    def revealed(self, received: Received | None) -> list[Revealed]:
        """What a message reveals; UsageError where the algorithm's own declaration is wrong."""
        algorithm = self.replay.algorithm
        if received is not None and isinstance(algorithm, LocalSteps):
            algorithm = algorithm.in_round(received.now)
        return [] if received is None else revealed(algorithm, received)

    def of_clients(
        self, kind: type[Kind], exchanges: Iterable[Exchange], most: int | None = None
    ) -> Iterator[tuple[Play, int, Kind]]:
        """(occurrence, client, item) of a kind in uploads of the first `most` clients of each occurrence, in order."""
        names = {exchange.name for exchange in exchanges}
        for play in (play for play in self.replay.transcript.plays if play.exchange.name in names):
            for client in sorted(play.uploads)[:most]:
                items = self.revealed(self.of_client(play, client))
                yield from ((play, client, item) for item in items if isinstance(item, kind))

    def of_sums(self, kind: type[Kind]) -> list[tuple[Play, Kind]]:
        """(occurrence, item) of a kind in the sums of rounds, in order."""
        names = {exchange.name for exchange in self.rounds}
        plays = [play for play in self.replay.transcript.plays if play.exchange.name in names]
        return [(play, item) for play in plays for item in self.revealed(self.of_sum(play)) if isinstance(item, kind)]
