"""What was received in the exchanges of a recorded run, and what the algorithm says that it reveals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.attempt import Floats
from mpifed.audit.declared import finite, wrong_revealed
from mpifed.audit.plays import Decoder, Play, complete, filled, plays
from mpifed.audit.stage import Stage
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Exchange, Measure
from mpifed.core.record import Record, bare_leaves, map_leaves
from mpifed.core.reveals import (
    AddedNoise,
    DualSum,
    DualVariables,
    InnerProducts,
    MeanGradient,
    Received,
    Revealed,
    ScoreDerivatives,
    function_of,
)
from mpifed.run.transcript import Message

EACH, SUM, SEALED = "each client's upload", "the opened sum", "sealed uploads, read as if they were plain"
HIDDEN = "ciphertexts, which are no numbers without the key"
SHOWN = 16  # rows, in pictures

Kind = TypeVar("Kind", MeanGradient, InnerProducts, ScoreDerivatives, DualVariables, DualSum, AddedNoise)


class _Place(NamedTuple):
    """Where an exchange stands: in the set-up, in a round or in a measure."""

    sequence: tuple[Exchange, ...]
    number: int
    server: Callable[[], Any]  # a state of the server's, from which it can ask


class Reader:
    """What was received, exchange by exchange, as far as it can be read; nothing is decoded before it is asked for."""

    def __init__(self, stage: Stage, messages: tuple[Message, ...]) -> None:
        self.stage = stage
        self.exchanges: dict[str, Exchange] = {}  # of set-up, rounds and measures, by name
        self._places: dict[str, _Place] = {}
        measures: tuple[Measure, ...] = stage.algorithm.measures
        sequences: list[tuple[tuple[Exchange, ...], Callable[[], Any]]] = [
            (one, lambda: stage.scenes[0].server) for one in (stage.exchanges, stage.algorithm.setup)
        ]
        sequences += [(one.exchanges, partial(one.start, stage.server)) for one in measures]
        for sequence, server in sequences:
            for number, one in enumerate(sequence):
                if one.name not in self.exchanges:
                    self.exchanges[one.name] = one
                    self._places[one.name] = _Place(tuple(sequence), number, server)
        self.rounds = [self.exchanges[one.name] for one in stage.exchanges]
        self.all_plays = cache(lambda name: plays(messages, name))
        self._decoder = cache(lambda name: Decoder(stage, self.exchanges[name]))
        self._source = cache(self._find_source)

    def scales(self, exchange: Exchange) -> list[float]:
        """Of what grid each field of an answer is a multiple."""
        return self._decoder(exchange.name).scales

    def position(self, exchange: Exchange) -> int:
        """Its number in a round."""
        return self._places[exchange.name].number

    def seen(self, exchange: Exchange) -> str:
        """What the server has of its answers."""
        return EACH if self.stage.in_clear(exchange) else SEALED

    def readable(self, exchange: Exchange) -> bool:
        """Whether what travels are numbers, be they sealed."""
        return self.stage.transcript.channel != "encrypted" or not exchange.private

    def plays(self, exchange: Exchange) -> list[Play]:
        """Every time it was played, and the question and somebody's answer were recorded."""
        found = self.all_plays(exchange.name)
        return [play for play in found if play.uploads and self.question(exchange, play) is not None]

    # --- questions and answers ---------------------------------------------------------------------------------------

    def question(self, exchange: Exchange, play: Play) -> Record | None:
        """The last question of the round that asks something; () where none does, None where it was not recorded."""
        source, template = self._source(exchange.name)
        if source is None:
            return ()
        if source.name != exchange.name:
            others = self.all_plays(source.name)
            if exchange in self.rounds:
                others = [one for one in others if one.round == play.round][-1:]
            else:  # before or beside rounds: as often as this one
                at = [one is play for one in self.all_plays(exchange.name)].index(True)
                others = others[at : at + 1]
            if not others:
                return None
            play = others[0]
        return filled(template, play.question) if complete(template, play.question) else None

    def _find_source(self, name: str) -> tuple[Exchange | None, Record]:
        """(the exchange with the last question up to this one, a question of its)."""
        place = self._places[name]
        for number in range(place.number, -1, -1):
            one = place.sequence[number]
            asked = one.ask(place.server(), self.stage.scenes[0].now.at(number))
            if bare_leaves(asked):
                return one, asked
        return None, ()

    def of_client(self, exchange: Exchange, play: Play, client: int) -> Received | None:
        """One client's answer; what is sealed, as if it were not. None where nothing can be read."""
        answer = self._decoder(exchange.name)(play.uploads.get(client, []))
        if answer is None:
            return None
        shard, sealed = self.stage.shards[client], not self.stage.in_clear(exchange)
        return self._received(exchange, play, answer, (client,), shard.columns, sealed)

    def of_sum(self, exchange: Exchange, play: Play) -> Iterator[Received]:
        """The sum that the server hears: of all columns, and of those that its clients hold with nobody else."""
        if play.opened_for != "server" or not complete(exchange.fields, play.opened):
            return
        total = filled(exchange.fields, play.opened)
        present = tuple(sorted(play.uploads))
        whole = np.arange(self.stage.algorithm.problem.features)
        yield self._received(exchange, play, total, present, whole, False)
        own = self._with_same_columns(present)
        columns = self.stage.shards[present[0]].columns
        if own and len(columns) < len(whole):
            yield self._received(exchange, play, total, own, columns, False)

    def _received(
        self, exchange: Exchange, play: Play, answer: Record, clients: tuple[int, ...], columns: NDArray[np.int64],
        sealed: bool,
    ) -> Received:  # fmt: skip
        wide = map_leaves(lambda leaf: np.asarray(leaf, dtype=np.float64), answer)
        question, rows = self.question(exchange, play), self._rows(clients)
        return Received(exchange, play.round, question, wide, clients, rows, columns, sealed)

    @cached_property
    def _rows(self) -> Any:
        """(clients) -> the numbers of the rows that any of them holds."""
        shards = self.stage.shards

        def rows(clients: tuple[int, ...]) -> NDArray[np.int64]:
            if len(clients) == 1:
                return np.asarray(shards[clients[0]].rows)
            return np.unique(np.concatenate([shards[client].rows for client in clients]))

        return cache(rows)

    def _with_same_columns(self, present: tuple[int, ...]) -> tuple[int, ...]:
        """Those present who hold the columns of the first of them; nobody where others hold some of these."""
        columns = self.stage.cells.columns
        own = tuple(client for client in present if columns.groups[client] == columns.groups[present[0]])
        who = np.isin(np.arange(len(columns.groups)), present)
        alone = bool((columns.held_by(who)[columns.of(present[0])] == len(own)).all())
        return own if alone else ()

    # --- what the algorithm says of them -----------------------------------------------------------------------------

    def revealed(self, received: Received) -> list[Revealed]:
        """What the algorithm says of it; nothing where it has no such method.

        Raises
        ------
        UsageError
            when the method fails, or what it gives has no shapes that fit.
        """
        algorithm = self.stage.algorithm
        name = f'{type(algorithm).__name__}.reveals of {_whose(received)} to "{received.exchange.name}"'
        try:
            found = list(algorithm.reveals(_read_only(received)))
        except Exception as error:
            raise UsageError(
                f"{name}: {type(error).__name__}: {error}; correct it, or leave it out, and the audit tries by itself"
            ) from error
        for item in found:
            wrong = wrong_revealed(item, received)
            if wrong:
                raise UsageError(f"{name}: {wrong}; correct it: mpifed/core/reveals.py says what is expected")
        return [item for item in found if finite(item)]  # what is sealed is any number, and may be divided by zero

    def told(
        self, kind: type[Kind], exchange: Exchange, most: int | None = None
    ) -> Iterator[tuple[Play, dict[int, list[Kind]]]]:
        """(play, what is of a kind in the answers of so many clients) of each time an exchange was played."""
        for play in self.plays(exchange):
            found: dict[int, list[Kind]] = {}
            for client in sorted(play.uploads)[:most]:
                received = self.of_client(exchange, play, client)
                items = [] if received is None else [one for one in self.revealed(received) if isinstance(one, kind)]
                if items:
                    found[client] = items
            yield play, found

    def told_by_sum(self, kind: type[Kind], exchange: Exchange) -> Iterator[tuple[Play, Kind]]:
        """(play, what is of a kind in the sum over all columns) of each time an exchange was played."""
        for play in self.plays(exchange):
            for received in list(self.of_sum(exchange, play))[:1]:
                yield from ((play, one) for one in self.revealed(received) if isinstance(one, kind))

    @property
    def by_word(self) -> str:
        """What to add to a sentence about answers that is taken from the algorithm."""
        return ", as the algorithm says" if self.stage.algorithm.explains_answers() else ""

    @cached_property
    def beside(self) -> list[Exchange]:
        """Exchanges of the set-up and of measures of whose answers the algorithm says nothing."""
        known = {one.name for one in self.rounds}
        others = [one for name, one in self.exchanges.items() if name not in known and self.plays(one)]
        return [one for one in others if not any(self.revealed(each) for each in self._first(one))]

    @cached_property
    def undeclared(self) -> list[Exchange]:
        """Exchanges of a round of whose answers the algorithm says nothing."""
        found = []
        for exchange in self.rounds:
            said = [bool(self.revealed(one)) for one in self._first(exchange)] if self.plays(exchange) else []
            if said and not any(said):
                found.append(exchange)
        return found

    @cached_property
    def guessed(self) -> list[Exchange]:
        """Those, and exchanges whose answers a class makes anew that has inherited what is said of them."""
        known = [one.name for one in self.undeclared]
        return [one for one in self.rounds if one.name in known or (self.plays(one) and self._made_anew(one))]

    def _made_anew(self, exchange: Exchange) -> bool:
        answer = function_of(exchange.answer)
        for kind in type(self.stage.algorithm).__mro__:  # the youngest class first
            if "reveals" in vars(kind):
                return False
            if any(function_of(one) is answer for one in vars(kind).values() if callable(one)):
                return True
        return False

    def _first(self, exchange: Exchange) -> Iterator[Received]:
        """All that was received when it was first played."""
        play = self.plays(exchange)[0]
        yield from self.of_sum(exchange, play)
        each = (self.of_client(exchange, play, client) for client in play.uploads)
        yield from (one for one in each if one is not None)


def _read_only(received: Received) -> Received:
    """A copy, so that what the algorithm does with it changes nothing that attacks are handed."""

    def copied(leaf: Any) -> Any:
        leaf = np.array(leaf)
        leaf.setflags(write=False)
        return leaf

    question, answer = (map_leaves(copied, one) for one in (received.question, received.answer))
    rows, columns = copied(received.rows), copied(received.columns)
    return received._replace(question=question, answer=answer, rows=rows, columns=columns)


def _whose(received: Received) -> str:
    clients = received.clients
    return f"the answer of client {clients[0]}" if len(clients) == 1 else f"the sum of {len(clients)} answers"


def pictures(pairs: Iterable[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """(found, there) for pictures, where rows are of one width."""
    pairs = list(pairs)
    if not pairs or len({len(row) for row, _ in pairs}) > 1:
        return np.zeros((0, 0)), np.zeros((0, 0))
    return np.stack([row for row, _ in pairs[:SHOWN]]), np.stack([one for _, one in pairs[:SHOWN]])
