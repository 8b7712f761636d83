"""What algorithms measure outside the measured time, for the history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias

from typing_extensions import TypeVar

from mpifed.core.exchange import Block, Exchange, Server
from mpifed.core.record import Record

Columns: TypeAlias = dict[str, float | None]  # of one row of the history
FirstNumbers: TypeAlias = dict[str, Any]  # numbers of the first iterate, in terms of JSON: any that JSON knows

Outcome = TypeVar("Outcome", bound=Record, default=Record, covariant=True)


@dataclass(frozen=True)
class Measure(Generic[Server, Outcome]):
    """Exchanges outside the measured time, run `turns` times, whose outcome becomes columns of the history.

    They have client states of their own, which may begin with what the algorithm's clients keep, and change nothing
    of it.
    """

    exchanges: tuple[Exchange, ...]
    start: Callable[[Server], Record]  # (server) -> what the exchanges take as the server's state
    # (server, that state at the end, what `first` has given of the first iterate) -> columns
    report: Callable[[Server, Outcome, FirstNumbers], Columns]
    start_clients: Callable[[Block, Record], Record] = lambda block, clients: ()  # (block, states) -> the measure's
    turns: int = 1
    certificate: tuple[str, ...] = ()  # the columns of a certificate, which is made when the job asks for one
    # (server, state at the end) -> numbers of the first iterate: every checkpoint holds them
    first: Callable[[Server, Outcome], FirstNumbers] | None = None
