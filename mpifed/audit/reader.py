"""Messages received in a recorded run, decoded, and what the algorithm declares that they reveal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.messages import Play, decoded, filled, message_of, plays
from mpifed.audit.replay import Replay
from mpifed.audit.reveals_check import finite, wrong_revealed
from mpifed.audit.transcript import RecordedMessage
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Exchange, Measure, ServerRecord
from mpifed.core.record import Array, Record, bare_leaves, map_leaves
from mpifed.core.reveals import Received, Revealed, function_of

EACH, SUM, SEALED = "each client's upload", "the decoded sum", "masked uploads, read as if they were plain"
HIDDEN = "uploads are ciphertexts, which cannot be read without the key"

Kind = TypeVar("Kind", bound=Revealed)


class _Place(NamedTuple):
    """Position of an exchange in the set-up, in a round or in a measure."""

    sequence: tuple[Exchange, ...]
    number: int
    server: Callable[[], ServerRecord]  # gives a server state to broadcast from


class Reader:
    """Received messages by exchange, as far as they can be read; decoded on demand."""

    def __init__(self, replay: Replay, messages: tuple[RecordedMessage, ...]) -> None:
        self.replay = replay
        self.exchanges: dict[str, Exchange] = {}  # of set-up, rounds and measures, by name
        self._places: dict[str, _Place] = {}
        measures: tuple[Measure, ...] = replay.algorithm.measures
        sequences: list[tuple[tuple[Exchange, ...], Callable[[], ServerRecord]]] = [
            (sequence, lambda: replay.round_starts[0].server) for sequence in (replay.exchanges, replay.algorithm.setup)
        ]
        sequences += [(measure.exchanges, partial(measure.start, replay.server)) for measure in measures]
        for sequence, server in sequences:
            for number, exchange in enumerate(sequence):
                if exchange.name not in self.exchanges:
                    self.exchanges[exchange.name] = exchange
                    self._places[exchange.name] = _Place(tuple(sequence), number, server)
        self.rounds = [self.exchanges[exchange.name] for exchange in replay.exchanges]
        self.all_plays = cache(lambda name: plays(messages, name))
        self._plan = cache(lambda name: message_of(replay, self.exchanges[name]))
        self._source = cache(self._find_source)

    def position(self, exchange: Exchange) -> int:
        """Index of an exchange within its round."""
        return self._places[exchange.name].number

    def seen(self, exchange: Exchange) -> str:
        """Which form of the uploads the server has: EACH or SEALED."""
        return EACH if self.replay.in_clear(exchange) else SEALED

    def readable(self, exchange: Exchange) -> bool:
        """Whether uploads are numbers, masked or not, rather than ciphertexts."""
        return self.replay.transcript.channel != "encrypted" or exchange.clear

    def plays(self, exchange: Exchange) -> list[Play]:
        """Occurrences of an exchange of which the broadcast and an upload were recorded."""
        recorded = self.all_plays(exchange.name)
        return [play for play in recorded if play.uploads and self.question(exchange, play) is not None]

    def first_and_last(self, exchange: Exchange) -> list[Play]:
        """The first of these occurrences, and the last if there are several."""
        plays = self.plays(exchange)
        return plays[:1] + plays[1:][-1:]

    # --- broadcasts and uploads --------------------------------------------------------------------------------------

    def question(self, exchange: Exchange, play: Play) -> Record | None:
        """The last broadcast of the round up to this exchange; () if there is none, None if it was not recorded."""
        source, template = self._source(exchange.name)
        if source is None:
            return ()
        if source.name != exchange.name:
            others = self.all_plays(source.name)
            if exchange in self.rounds:
                others = [other for other in others if other.round == play.round][-1:]
            else:  # outside the rounds: the occurrence of the same number
                at = [other is play for other in self.all_plays(exchange.name)].index(True)
                others = others[at : at + 1]
            if not others:
                return None
            play = others[0]
        return filled(template, play.question)

    def _find_source(self, name: str) -> tuple[Exchange | None, Record]:
        """(the exchange with the last broadcast up to `name`, an example of its broadcast)."""
        place = self._places[name]
        for number in range(place.number, -1, -1):
            exchange = place.sequence[number]
            question = exchange.ask(place.server(), self.replay.round_starts[0].now.at(number))
            if bare_leaves(question):
                return exchange, question
        return None, ()

    def of_client(self, exchange: Exchange, play: Play, client: int) -> Received | None:
        """One client's upload; a masked one is decoded as if it were plain. None if it cannot be read."""
        answer = decoded(self._plan(exchange.name), play.uploads.get(client, []))
        if answer is None:
            return None
        shard, sealed = self.replay.shards[client], not self.replay.in_clear(exchange)
        return self._received(exchange, play, answer, (client,), shard.columns, sealed)

    def of_sum(self, exchange: Exchange, play: Play) -> Iterator[Received]:
        """The sum that the server decodes: over all columns, and over those that only its clients hold."""
        if play.opened_for != "server":
            return
        total = filled(exchange.fields, play.opened)
        present = tuple(sorted(play.uploads))
        whole = np.arange(self.replay.algorithm.problem.features)
        yield self._received(exchange, play, total, present, whole, False)
        holders = self._with_same_columns(present)
        columns = self.replay.shards[present[0]].columns
        if holders and len(columns) < len(whole):
            yield self._received(exchange, play, total, holders, columns, False)

    def received(self, exchange: Exchange, play: Play, clients: int) -> Iterator[tuple[str, Received]]:
        """(EACH, SEALED or SUM, message) of each of the first `clients` clients, and of the sum."""
        uploads = (self.of_client(exchange, play, client) for client in list(play.uploads)[:clients])
        yield from ((self.seen(exchange), upload) for upload in uploads if upload is not None)
        yield from ((SUM, total) for total in self.of_sum(exchange, play))

    def _received(
        self, exchange: Exchange, play: Play, answer: Record, clients: tuple[int, ...], columns: NDArray[np.int64],
        sealed: bool,
    ) -> Received:  # fmt: skip
        wide = map_leaves(lambda leaf: np.asarray(leaf, dtype=np.float64), answer)
        question, rows = self.question(exchange, play), self._rows(clients)
        return Received(exchange, play.round, question, wide, clients, rows, columns, sealed)

    @cached_property
    def _rows(self) -> Callable[[tuple[int, ...]], NDArray[np.int64]]:
        """Function of clients that gives the indices of rows that any of them holds."""
        shards = self.replay.shards

        def rows(clients: tuple[int, ...]) -> NDArray[np.int64]:
            if len(clients) == 1:
                return np.asarray(shards[clients[0]].rows)
            return np.unique(np.concatenate([shards[client].rows for client in clients]))

        return cache(rows)

    def _with_same_columns(self, present: tuple[int, ...]) -> tuple[int, ...]:
        """Participating clients with the columns of the first one; () if other clients hold any of these columns."""
        columns = self.replay.algorithm.problem.columns
        holders = tuple(client for client in present if columns.groups[client] == columns.groups[present[0]])
        who = np.isin(np.arange(len(columns.groups)), present)
        alone = bool((columns.held_by(who)[columns.of(present[0])] == len(holders)).all())
        return holders if alone else ()

    # --- what the algorithm declares ---------------------------------------------------------------------------------

    def revealed(self, received: Received) -> list[Revealed]:
        """What the algorithm declares that a message reveals, [] without `reveals`; UsageError where that is wrong."""
        algorithm = self.replay.algorithm
        name = f'{type(algorithm).__name__}.reveals of {_whose(received)} in "{received.exchange.name}"'
        try:
            items = list(algorithm.reveals(_read_only(received)))
        except Exception as error:
            raise UsageError(f"{name}: {type(error).__name__}: {error}; correct the method") from error
        for item in items:
            wrong = wrong_revealed(item, received)
            if wrong:
                raise UsageError(f"{name}: {wrong}; correct the method: mpifed/core/reveals.py says what is expected")
        return list(filter(finite, items))  # masked numbers are arbitrary, and may have been divided by zero

    def revealed_by_client(
        self, kind: type[Kind], exchange: Exchange, most: int | None = None
    ) -> Iterator[tuple[Play, dict[int, list[Kind]]]]:
        """(occurrence, items of a kind by client, of the first `most` clients) for every occurrence of an exchange."""
        for play in self.plays(exchange):
            by_client: dict[int, list[Kind]] = {}
            for client in sorted(play.uploads)[:most]:
                received = self.of_client(exchange, play, client)
                for item in [] if received is None else self.revealed(received):
                    if isinstance(item, kind):
                        by_client.setdefault(client, []).append(item)
            yield play, by_client

    def revealed_by_sum(self, kind: type[Kind], exchange: Exchange) -> Iterator[tuple[Play, Kind]]:
        """(occurrence, item of a kind in the sum over all columns) for every occurrence of an exchange."""
        for play in self.plays(exchange):
            for received in list(self.of_sum(exchange, play))[:1]:
                yield from ((play, item) for item in self.revealed(received) if isinstance(item, kind))

    @property
    def attribution(self) -> str:
        """Suffix of statements about uploads that rely on the algorithm's declaration."""
        return ", as the algorithm declares" if self.replay.algorithm.explains_answers() else ""

    @property
    def undeclared(self) -> list[str]:
        """Exchanges of the set-up and of a round whose answers are of a class that declares nothing."""
        algorithm = self.replay.algorithm
        return [
            exchange.name
            for exchange in (*algorithm.setup, *self.rounds)
            if not algorithm.explains_answers() or self._made_anew(exchange)
        ]

    def _made_anew(self, exchange: Exchange) -> bool:
        """Whether a class answers the exchange anew, and leaves what it reveals to be declared by its base."""
        answer = function_of(exchange.answer)
        for kind in type(self.replay.algorithm).__mro__:  # the most derived class first
            if "reveals" in vars(kind):
                return False
            if any(function_of(attribute) is answer for attribute in vars(kind).values() if callable(attribute)):
                return True
        return False


def _read_only(received: Received) -> Received:
    """A read-only copy: the algorithm cannot change what attacks are given."""

    def copied(leaf: Array) -> Array:
        leaf = np.array(leaf)
        leaf.setflags(write=False)
        return leaf

    question, answer = (map_leaves(copied, record) for record in (received.question, received.answer))
    rows, columns = copied(received.rows), copied(received.columns)
    return received._replace(question=question, answer=answer, rows=rows, columns=columns)


def _whose(received: Received) -> str:
    clients = received.clients
    return f"the upload of client {clients[0]}" if len(clients) == 1 else f"the sum of {len(clients)} uploads"
