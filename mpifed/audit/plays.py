"""Transcripts put together again: exchange by exchange, who was asked what, who sent what, and what was opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.sums import ExactSum, Sum, make_sum
from mpifed.core.exchange import Exchange
from mpifed.core.record import Record, leaves, map_leaves
from mpifed.run.config import Job
from mpifed.run.transcript import Message, client_of


class Play(NamedTuple):
    """One exchange, as it was played once."""

    round: int
    question: dict[str, NDArray[Any]]  # by the names of leaves
    uploads: dict[int, list[Message]]  # of each client, its parts
    opened: dict[str, NDArray[Any]]  # the sum, by the names of leaves; empty where nobody opened it
    opened_for: str  # "server", "clients", "client 3"; "" where nobody did


def plays(messages: Iterable[Message], exchange: str) -> list[Play]:
    """Every time an exchange was played, in order; what all ranks have recorded of it."""
    found: dict[int, Play] = {}
    for one in messages:
        if one.exchange != exchange or one.kind not in ("question", "upload", "opened"):
            continue
        play = found.setdefault(one.turn, Play(one.round, {}, {}, {}, ""))
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


def exact_sum(job: Job, exchange: Exchange, clients: int) -> Sum:
    """The sum on whose grids answers were recorded."""
    settings: dict[str, Any] = job.sum_settings() | {"exact": True}
    return make_sum(exchange, clients, **settings)


class Decoder:
    """Turns the integers of one client's answer back into numbers."""

    def __init__(self, job: Job, exchange: Exchange, clients: int) -> None:
        self._sum = exact_sum(job, exchange, clients)

    @property
    def size(self) -> int:
        """Integers of a message."""
        return self._sum.places[-1].stop

    @property
    def scales(self) -> list[float]:
        """Of what grid each field is a multiple."""
        return [place.form.scale for place in self._sum.places]

    def __call__(self, upload: list[Message]) -> Record | None:
        """The answer, or None where what travels are no integers of this size."""
        data = upload[0].data if len(upload) == 1 else None
        if data is None or data.size != self.size or data.dtype.itemsize != self._sum.message.dtype.itemsize:
            return None
        assert isinstance(self._sum, ExactSum)
        return self._sum.total(np.append(data.view(self._sum.message.dtype), 0))
