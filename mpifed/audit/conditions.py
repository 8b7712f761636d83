"""Security condition of the papers: what a party receives must leave the private numbers underdetermined.

Cui, Li and Ye (arXiv:2104.06011, "Security Analysis" of Algorithms 1 to 4) ask that the equations
q(w, z) = q(w, x) for the rows x that entered have infinitely many solutions z. That is so where they have more
unknowns than independent equations, and almost only there. Where the numbers are few, the independent equations are
those of the derivative, see `mpifed.audit.jacobian`; otherwise the count of received numbers is an upper bound.

The condition is necessary for secrecy and not sufficient: an underdetermined system may still reveal most of a row, and
a party with prior knowledge of rows needs fewer equations. The attacks go further.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mpifed.audit.counts import Side, paper_count, pool_of, received_numbers, rows_of, sides_of, single, sizes, sum_of
from mpifed.audit.jacobian import MOST, Bench
from mpifed.audit.stage import Scene, Stage, rehearse
from mpifed.comm.channel import answering
from mpifed.core.exchange import Exchange, ToServer, fields_of
from mpifed.core.record import leaves
from mpifed.core.round import SETUP

DETERMINED, OPEN, UNDERDETERMINED = "determined", "not excluded", "underdetermined"
NOTHING = "nothing"
NOTE = "underdetermined is necessary for secrecy and not sufficient; class labels are not counted as unknowns"


class Condition(NamedTuple):
    """The condition for an exchange and a party."""

    exchange: str
    round: int
    party: str  # "server", "client 0"
    receives: str  # "each client's upload", "the sum of 8 uploads", ...
    about: str  # clients whose numbers are unknown
    rows: int  # that entered the exchange
    unknowns: int  # private numbers
    numbers: int  # that the party received
    equations: int  # independent ones; an upper bound if only counted
    counted: bool  # whether `equations` is a count rather than a rank
    pool: int  # private numbers of all rows that may enter any round; 0 if every round has new unknowns
    paper: str = ""  # the count of the papers, for their own exchanges

    @property
    def rounds_until(self) -> int | None:
        """Rounds until there are as many equations as private numbers; None if never, or outside the rounds."""
        return -(-self.pool // self.equations) if self.pool and self.equations and self.round != SETUP else None

    @property
    def verdict(self) -> str:
        """Whether the equations determine the unknowns."""
        if self.unknowns > self.equations:
            return UNDERDETERMINED
        return OPEN if self.counted else DETERMINED

    @property
    def missing(self) -> int:
        """Number of missing equations; a lower bound if only counted."""
        return max(0, self.unknowns - self.equations)

    @property
    def text(self) -> str:
        if not self.unknowns:
            return "no private rows enter"
        if self.verdict == UNDERDETERMINED:
            return f"underdetermined by {'at least ' if self.counted else ''}{self.missing}"
        if self.verdict == OPEN:
            return "not shown to be underdetermined (equations only counted)"
        return "determined"


def conditions(stage: Stage, client: int = 0) -> list[Condition]:
    """Conditions of every exchange with private rows, for the server and for a client, in the last round."""
    listed: list[Condition] = []
    if stage.scenes[-1].now.secure:  # secret draws cannot be replayed: test noise gives the same counts
        privacy: Any = stage.job.privacy
        job = stage.job.model_copy(update={"privacy": replace(privacy, noise="test")})
        stage = rehearse(job, len(stage.scenes))
    scene = stage.scenes[-1]
    bench = Bench(stage, scene)
    for exchange in stage.exchanges:
        listed += _of_server(stage, bench, scene, exchange)
        listed += _of_client(stage, bench, scene, exchange, client)
    outside = {exchange.name: exchange for exchange in (*stage.algorithm.setup, *_measured(stage))}
    for exchange in outside.values():
        listed += _counted(stage, exchange)
    return listed


def _measured(stage: Stage) -> list[Exchange]:
    """Exchanges of measures that took place."""
    played = {exchange for round, exchange in stage.entered if round == SETUP}
    return [
        exchange for measure in stage.algorithm.measures for exchange in measure.exchanges if exchange.name in played
    ]


def _of_server(stage: Stage, bench: Bench, scene: Scene, exchange: Exchange) -> Iterator[Condition]:
    name, now = exchange.name, scene.now
    sides = _answering(stage, exchange, scene)
    if not sides:
        return
    clear = stage.in_clear(exchange)
    if clear and not single(stage, exchange):
        side = min(sides, key=lambda side: side.unknowns)
        numbers = sum(sizes(stage, exchange, side.client))
        yield _condition(
            stage, bench, exchange, now.index, "server", "each client's upload", [side], [side.client], numbers,
            about=f"client {side.client}",
        )  # fmt: skip
    elif isinstance(exchange, ToServer) or clear:
        numbers = received_numbers(stage, exchange, [side.client for side in sides])
        yield _condition(
            stage, bench, exchange, now.index, "server", sum_of(stage, exchange, len(sides)), sides,
            [side.client for side in sides], numbers, about="all participating clients",
        )  # fmt: skip
    else:
        rows, unknowns = rows_of(stage, sides), sum(side.unknowns for side in sides)
        yield Condition(
            name,
            now.index,
            "server",
            NOTHING,
            "all participating clients",
            rows,
            unknowns,
            0,
            0,
            False,
            pool_of(stage, sides),
        )


def _answering(stage: Stage, exchange: Exchange, scene: Scene, hidden_model: bool = False) -> list[Side]:
    """Sides of the clients that upload in an exchange of this round."""
    here = scene.now.back if exchange.returning else scene.now
    there = answering(exchange, here)
    return [side for side in sides_of(stage, exchange, scene.now.index, hidden_model) if there[side.client]]


def _of_client(stage: Stage, bench: Bench, scene: Scene, exchange: Exchange, client: int) -> Iterator[Condition]:
    """What a client learns about the others."""
    now = scene.now
    if isinstance(exchange, ToServer):
        yield from _of_next_question(stage, scene, exchange, client)
        return
    if exchange.hearer is not None:
        client = exchange.hearer
    others = [side for side in _answering(stage, exchange, scene, hidden_model=True) if side.client != client]
    numbers = received_numbers(stage, exchange, [side.client for side in others], client) if others else 0
    if not numbers:
        return
    if any(field.rows is not None for field in fields_of(exchange).values()):
        others = [side for side in others if received_numbers(stage, exchange, [side.client], client)]
    senders = {field.sender for field in fields_of(exchange).values()}
    about = f"all but client {client}"
    if client in senders:
        return  # the client has sent it itself
    alone = [sender for sender in senders if sender is not None]
    all_alone = len(alone) == len(senders)
    whom = f"values of client {min(alone)}" if all_alone else sum_of(stage, exchange, len(others) + 1)
    yield _condition(
        stage, bench, exchange, now.index, f"client {client}", whom, others, [side.client for side in others],
        numbers, about=about,
    )  # fmt: skip


def _of_next_question(stage: Stage, scene: Scene, exchange: Exchange, client: int) -> Iterator[Condition]:
    """A sum for the server, which clients do not receive, but may infer from the next broadcast."""
    others = [side for side in sides_of(stage, exchange, scene.now.index) if side.client != client]
    if not others or exchange.name != stage.exchanges[-1].name:
        return
    first = next(other for other in stage.exchanges if leaves(other.ask(stage.server, scene.now.at(0))))
    question = first.ask(stage.server, scene.now.at(0))
    columns = stage.cells.columns
    others_too = columns.held_by(np.arange(len(columns.groups)) != client)[columns.of(client)] > 0
    broadcast_numbers = sum(  # columns that no other client holds follow from its own rows
        np.size(leaf) if name not in first.told_by_columns else np.size(leaf[0]) * int(others_too.sum())
        for name, leaf in leaves(question)
        if np.asarray(leaf).dtype.kind == "f" and np.ndim(leaf)
    )
    rows, unknowns = rows_of(stage, others), sum(side.unknowns for side in others)
    numbers = min(broadcast_numbers, received_numbers(stage, exchange, [side.client for side in others]))
    yield Condition(
        exchange.name, scene.now.index, f"client {client}", "the next broadcast", f"all but client {client}", rows,
        unknowns, numbers, min(numbers, unknowns), True, pool_of(stage, others),
    )  # fmt: skip


def _condition(
    stage: Stage, bench: Bench, exchange: Exchange, round: int, party: str, receives: str, sides: list[Side],
    senders: list[int], numbers: int, about: str,
) -> Condition:  # fmt: skip
    """The condition by the rank of what is received, if that is cheap; else by a count."""
    unknowns = sum(side.unknowns for side in sides)
    counted = unknowns > MOST or numbers < unknowns // 4 or any(other.stale for other in stage.exchanges)
    equations = min(numbers, unknowns)
    if not counted:
        equations = bench.rank(exchange.name, [side.private for side in sides], senders).equations
    rows = rows_of(stage, sides)
    paper = paper_count(stage, exchange, party, rows, sides)
    return Condition(
        exchange.name, round, party, receives, about, rows, unknowns, numbers, equations, counted,
        pool_of(stage, sides), paper,
    )  # fmt: skip


def _counted(stage: Stage, exchange: Exchange) -> Iterator[Condition]:
    """The condition for the server in an exchange outside the rounds, by a count."""
    sides = sides_of(stage, exchange, SETUP)
    if not sides:
        return
    clear = stage.in_clear(exchange)
    plain = clear and not single(stage, exchange)
    if plain:
        sides = [min(sides, key=lambda side: side.unknowns)]
    numbers = sum(sizes(stage, exchange, sides[0].client)) if plain else 0
    if not plain and (isinstance(exchange, ToServer) or clear):
        numbers = received_numbers(stage, exchange, [side.client for side in sides])
    rows, unknowns = rows_of(stage, sides), sum(side.unknowns for side in sides)
    receives = "each client's upload" if plain else sum_of(stage, exchange, len(sides)) if numbers else NOTHING
    about = f"client {sides[0].client}" if plain else "all participating clients"
    yield Condition(
        exchange.name, SETUP, "server", receives, about, rows, unknowns, numbers, min(numbers, unknowns), True,
        pool_of(stage, sides),
    )  # fmt: skip
