"""Transcripts put together again: exchange by exchange, who was asked what, who sent what, and what was opened."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.stage import Stage
from mpifed.comm.line import Line
from mpifed.comm.sums import make_sum
from mpifed.core.exchange import Exchange
from mpifed.core.record import Record, leaves, map_leaves
from mpifed.run.participation import most_summed
from mpifed.run.transcript import Message, client_of


class Play(NamedTuple):
    """One exchange, as it was played once."""

    round: int
    question: dict[str, NDArray[Any]]  # by the names of leaves
    uploads: dict[int, list[Message]]  # of each client, its parts
    opened: dict[str, NDArray[Any]]  # the sum, by the names of leaves; empty where nobody opened it
    opened_for: str  # "server", "clients", "client 3"; "" where nobody did
    turn: int = 0  # how often the exchange was played before


def plays(messages: Iterable[Message], exchange: str) -> list[Play]:
    """Every time an exchange was played, in order; what all ranks have recorded of it."""
    found: dict[int, Play] = {}
    for one in messages:
        if one.exchange != exchange or one.kind not in ("question", "upload", "opened"):
            continue
        play = found.setdefault(one.turn, Play(one.round, {}, {}, {}, "", one.turn))
        client = client_of(one)
        if one.kind == "question":
            play.question[one.what] = one.data
        elif one.kind == "opened":
            play.opened[one.what] = one.data
            found[one.turn] = play._replace(opened_for=one.receiver)
        elif client is not None:
            play.uploads.setdefault(client, []).append(one)
    return [found[turn] for turn in sorted(found)]


def complete(template: Record, values: dict[str, NDArray[Any]]) -> bool:
    """Whether all leaves are there: a transcript leaves out what is beyond its limit."""
    return all(name in values for name, _ in leaves(template))


def filled(template: Record, values: dict[str, NDArray[Any]]) -> Record:
    """A record of the structure of `template`, its leaves by name."""
    names = iter([name for name, _ in leaves(template)])
    return map_leaves(lambda _: values[next(names)], template)


def line_of(stage: Stage, exchange: Exchange) -> Line:
    """Where clients' numbers lie in the messages of an exchange, on the grids on which answers were recorded."""
    settings: dict[str, Any] = stage.job.sum_settings(stage.algorithm.problem) | {"exact": True}
    most = most_summed(stage.job, stage.algorithm, exchange)
    return Line(exchange, partial(make_sum, exchange, most, **settings), stage.cells)


def integers(line: Line, upload: list[Message]) -> NDArray[np.signedinteger] | None:
    """[m] a message with what one client sent in its places; None where what travels are no integers of this many."""
    data, client = (upload[0].data, client_of(upload[0])) if len(upload) == 1 else (None, None)
    kind = line.sum.message.dtype
    if data is None or client is None or data.nbytes != line.sent[client] or data.dtype.itemsize != kind.itemsize:
        return None
    found: NDArray[np.signedinteger] = np.zeros_like(line.sum.message[:-1])
    line.put(found, client, data.view(kind))
    return found


class Decoder:
    """Turns the integers of one client's answer back into numbers."""

    def __init__(self, stage: Stage, exchange: Exchange) -> None:
        self._line = line_of(stage, exchange)

    @property
    def scales(self) -> list[float]:
        """Of what grid each field is a multiple."""
        return [place.form.scale for place in self._line.sum.places]

    def __call__(self, upload: list[Message]) -> Record | None:
        """The answer, zero in others' places; None where what travels are no integers of this size."""
        message = integers(self._line, upload)
        return None if message is None else self._line.sum.total(np.append(message, 0))
