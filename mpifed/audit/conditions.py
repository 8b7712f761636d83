"""The papers' security condition: what a party hears must leave its equations for the private numbers underdetermined.

Cui, Li and Ye (arXiv:2104.06011, "Security Analysis" of Algorithms 1 to 4) ask that the equations
q(w, z) = q(w, x) for the rows x that entered have infinitely many solutions z. That is so where they have more
unknowns than independent equations, and almost only there. Where the numbers are few, the independent equations are
those of the derivative, see `mpifed.audit.jacobian`; otherwise a count of the numbers heard is an upper bound for them.

The condition is necessary for secrecy and does not suffice: an underdetermined system may still show most of a row, and
whoever knows what rows look like needs fewer equations. The attacks go further.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mpifed.audit.counts import Side, heard_numbers, paper_count, pool_of, rows_of, sides_of, single, sizes, sum_of
from mpifed.audit.jacobian import MOST, Bench
from mpifed.audit.stage import Scene, Stage, rehearse
from mpifed.comm.channel import answering
from mpifed.core.exchange import Exchange, ToServer
from mpifed.core.record import bare_leaves, leaves
from mpifed.core.round import SETUP

DETERMINED, OPEN, UNDERDETERMINED = "determined", "not excluded", "underdetermined"
NOTHING = "nothing"
NOTE = (
    "underdetermined is necessary for secrecy and not sufficient; labels of classes are few-valued and not counted as "
    "unknowns"
)


class Condition(NamedTuple):
    """One exchange, as one party hears it."""

    exchange: str
    round: int
    party: str  # "server", "client 0"
    hears: str  # "each client's answer", "the sum of 8 answers", ...
    about: str  # whose numbers are unknown
    rows: int  # that entered
    unknowns: int  # private numbers
    numbers: int  # that the party got
    equations: int  # independent ones; where only counted, at most
    counted: bool  # whether `equations` is a count and no rank
    pool: int  # private numbers of all rows that may enter some round; 0 where every round brings others
    paper: str = ""  # the papers' own count, where the exchange is theirs

    @property
    def rounds_until(self) -> int | None:
        """After how many rounds there are as many equations as private numbers in all; None: never, or in no round."""
        return -(-self.pool // self.equations) if self.pool and self.equations and self.round != SETUP else None

    @property
    def verdict(self) -> str:
        """Whether the equations leave solutions."""
        if self.unknowns > self.equations:
            return UNDERDETERMINED
        return OPEN if self.counted else DETERMINED

    @property
    def missing(self) -> int:
        """By how many equations it is underdetermined; where counted, at least."""
        return max(0, self.unknowns - self.equations)

    @property
    def text(self) -> str:
        """The verdict in words."""
        if not self.unknowns:
            return "no private rows enter"
        if self.verdict == UNDERDETERMINED:
            return f"underdetermined by {'at least ' if self.counted else ''}{self.missing}"
        if self.verdict == OPEN:
            return "not shown to be underdetermined (numbers counted only)"
        return "determined"


def conditions(stage: Stage, client: int = 0) -> list[Condition]:
    """Of every exchange with private rows, for the server and for one of the clients, in the last round."""
    found: list[Condition] = []
    if stage.scenes[-1].now.secure:  # secret draws cannot be played again: others, by key, count as much
        privacy: Any = stage.job.privacy
        job = stage.job.model_copy(update={"privacy": replace(privacy, noise="test")})
        stage = rehearse(job, len(stage.scenes))
    scene = stage.scenes[-1]
    bench = Bench(stage, scene)
    for exchange in stage.exchanges:
        found += _of_server(stage, bench, scene, exchange)
        found += _of_client(stage, bench, scene, exchange, client)
    beside = {one.name: one for one in (*stage.algorithm.setup, *_measured(stage))}
    for one in beside.values():
        found += _counted(stage, one)
    return found


def _measured(stage: Stage) -> list[Exchange]:
    """The exchanges of measures that were played."""
    played = {exchange for round, exchange in stage.entered if round == SETUP}
    return [one for measure in stage.algorithm.measures for one in measure.exchanges if one.name in played]


def _of_server(stage: Stage, bench: Bench, scene: Scene, exchange: Exchange) -> Iterator[Condition]:
    name, now = exchange.name, scene.now
    sides = _answering(stage, exchange, scene)
    if not sides:
        return
    clear = stage.in_clear(exchange)
    if clear and not single(stage, exchange):
        one = min(sides, key=lambda side: side.unknowns)
        numbers = sum(sizes(stage, exchange, one.client))
        yield _condition(
            stage, bench, exchange, now.index, "server", "each client's answer", [one], [one.client], numbers,
            about=f"client {one.client}",
        )  # fmt: skip
    elif isinstance(exchange, ToServer) or clear:
        numbers = heard_numbers(stage, exchange, [side.client for side in sides])
        yield _condition(
            stage, bench, exchange, now.index, "server", sum_of(stage, exchange, len(sides)), sides,
            [side.client for side in sides], numbers, about="all who answered",
        )  # fmt: skip
    else:
        rows, unknowns = rows_of(stage, sides), sum(side.unknowns for side in sides)
        yield Condition(
            name, now.index, "server", NOTHING, "all who answered", rows, unknowns, 0, 0, False, pool_of(stage, sides)
        )


def _answering(stage: Stage, exchange: Exchange, scene: Scene, hidden_model: bool = False) -> list[Side]:
    """Of those who answer an exchange of this round."""
    here = scene.now.back if exchange.returning else scene.now
    there = answering(exchange, here)
    return [side for side in sides_of(stage, exchange, scene.now.index, hidden_model) if there[side.client]]


def _of_client(stage: Stage, bench: Bench, scene: Scene, exchange: Exchange, client: int) -> Iterator[Condition]:
    """What a client learns of the others."""
    now = scene.now
    if isinstance(exchange, ToServer):
        yield from _of_next_question(stage, scene, exchange, client)
        return
    if exchange.hearer is not None:
        client = exchange.hearer
    others = [side for side in _answering(stage, exchange, scene, hidden_model=True) if side.client != client]
    numbers = heard_numbers(stage, exchange, [side.client for side in others], client) if others else 0
    if not numbers:
        return
    if any(field.rows is not None for field in bare_leaves(exchange.fields)):
        others = [side for side in others if heard_numbers(stage, exchange, [side.client], client)]
    senders = {leaf.sender for leaf in bare_leaves(exchange.fields)}
    about = f"all but client {client}"
    if client in senders:
        return  # it knows what it tells
    whom = f"what client {min(senders)} tells" if None not in senders else sum_of(stage, exchange, len(others) + 1)
    yield _condition(
        stage, bench, exchange, now.index, f"client {client}", whom, others, [side.client for side in others],
        numbers, about=about,
    )  # fmt: skip


def _of_next_question(stage: Stage, scene: Scene, exchange: Exchange, client: int) -> Iterator[Condition]:
    """A client is not told a sum for the server; the next question may show it, as a model shows its last step."""
    others = [side for side in sides_of(stage, exchange, scene.now.index) if side.client != client]
    if not others or exchange.name != stage.exchanges[-1].name:
        return
    first = next(one for one in stage.exchanges if leaves(one.ask(stage.server, scene.now.at(0))))
    question = first.ask(stage.server, scene.now.at(0))
    columns = stage.cells.columns
    others_too = columns.held_by(np.arange(len(columns.groups)) != client)[columns.of(client)] > 0
    told = sum(  # columns that it alone holds follow from what it knows of its own rows
        np.size(leaf) if name not in first.told_by_columns else np.size(leaf[0]) * int(others_too.sum())
        for name, leaf in leaves(question)
        if np.asarray(leaf).dtype.kind == "f" and np.ndim(leaf)
    )
    rows, unknowns = rows_of(stage, others), sum(side.unknowns for side in others)
    numbers = min(told, heard_numbers(stage, exchange, [side.client for side in others]))
    yield Condition(
        exchange.name, scene.now.index, f"client {client}", "the next question", f"all but client {client}", rows,
        unknowns, numbers, min(numbers, unknowns), True, pool_of(stage, others),
    )  # fmt: skip


def _condition(
    stage: Stage, bench: Bench, exchange: Exchange, round: int, party: str, hears: str, sides: list[Side],
    heard_from: list[int], numbers: int, about: str,
) -> Condition:  # fmt: skip
    """The rank of what is heard, where it can be had in a moment; else a count."""
    unknowns = sum(side.unknowns for side in sides)
    counted = unknowns > MOST or numbers < unknowns // 4 or any(one.stale for one in stage.exchanges)
    equations = min(numbers, unknowns)
    if not counted:
        equations = bench.rank(exchange.name, [side.private for side in sides], heard_from).equations
    rows = rows_of(stage, sides)
    paper = paper_count(stage, exchange, party, rows, sides)
    return Condition(
        exchange.name, round, party, hears, about, rows, unknowns, numbers, equations, counted, pool_of(stage, sides),
        paper,
    )  # fmt: skip


def _counted(stage: Stage, exchange: Exchange) -> Iterator[Condition]:
    """For the server, by counting alone: an exchange beside the rounds."""
    sides = sides_of(stage, exchange, SETUP)
    if not sides:
        return
    clear = stage.in_clear(exchange)
    plain = clear and not single(stage, exchange)
    if plain:
        sides = [min(sides, key=lambda side: side.unknowns)]
    numbers = sum(sizes(stage, exchange, sides[0].client)) if plain else 0
    if not plain and (isinstance(exchange, ToServer) or clear):
        numbers = heard_numbers(stage, exchange, [side.client for side in sides])
    rows, unknowns = rows_of(stage, sides), sum(side.unknowns for side in sides)
    hears = "each client's answer" if plain else sum_of(stage, exchange, len(sides)) if numbers else NOTHING
    about = f"client {sides[0].client}" if plain else "all who answered"
    yield Condition(
        exchange.name, SETUP, "server", hears, about, rows, unknowns, numbers, min(numbers, unknowns), True,
        pool_of(stage, sides),
    )  # fmt: skip
