"""Messages received in a recorded run, decoded, and what they reveal. What is sealed is not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from mpifed.algorithms.local_method import LocalSteps
from mpifed.algorithms.reveals import Received, Revealed
from mpifed.audit.recording import Play, Replay
from mpifed.audit.reveals import revealed
from mpifed.core.record import Array, Record, map_leaves
from mpifed.job.participation import round_of

EACH, SUM = "each client's upload", "the decoded sum"

Kind = TypeVar("Kind", bound=Revealed)


class Reader:
    """Received messages, as far as they can be read; decoded on demand."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    def of_client(self, play: Play, client: int) -> Received | None:
        """One client's upload; None if it cannot be read."""
        if client not in play.uploads or play.sealed:
            return None
        numbers = np.zeros(play.message.size, np.int64)
        numbers[play.message.own(client)] = play.uploads[client]
        earlier = None if play.before is None else self.of_client(play.before, client)
        return self._received(play, play.message.decode(numbers), [client], self.replay.shards[client].columns, earlier)

    def of_sum(self, play: Play) -> Received | None:
        """The sum that the server decodes, over all columns; None where there is none."""
        if play.total is None or not play.uploads or play.exchange.hear is not None:
            return None
        earlier = None if play.before is None else self.of_sum(play.before)
        columns = np.arange(self.replay.problem.features)
        return self._received(play, play.total, sorted(play.uploads), columns, earlier)

    def _received(
        self, play: Play, answer: Record, clients: list[int], columns: Array, earlier: Received | None
    ) -> Received:
        rows = np.unique(np.concatenate([self.replay.shards[client].rows for client in clients]))
        now = round_of(self.replay.job, self.replay.problem.clients, play.round)
        wide = map_leaves(np.float64, answer)
        return Received(play.exchange, play.round, play.asked, wide, tuple(clients), rows, columns.copy(), now, earlier)

    def revealed(self, received: Received | None, kind: type[Kind]) -> Iterator[Kind]:
        """What of a kind a message reveals; UsageError where the algorithm's own declaration is wrong."""
        algorithm = self.replay.algorithm
        if received is not None:
            here = algorithm.in_round(received.now) if isinstance(algorithm, LocalSteps) else algorithm
            yield from (item for item in revealed(here, received) if isinstance(item, kind))

    def of_clients(
        self, kind: type[Kind], most: int | None = None, plays: Sequence[Play] = ()
    ) -> Iterator[tuple[Play, int, Kind]]:
        """(occurrence, client, item) of a kind in uploads of the first `most` clients of each occurrence, in order."""
        for play in plays or self.replay.plays:
            for client in sorted(play.uploads)[:most]:
                yield from ((play, client, item) for item in self.revealed(self.of_client(play, client), kind))
