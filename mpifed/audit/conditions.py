"""Security condition of the papers: what a party receives must leave the private numbers underdetermined.

Cui, Li and Ye (arXiv:2104.06011, "Security Analysis" of Algorithms 1 to 4) ask that the equations
q(w, z) = q(w, x) for the rows x that entered have infinitely many solutions z. That is so where they have more
unknowns than independent equations, and almost only there; the count of received numbers is an upper bound of these.

The condition is necessary for secrecy and not sufficient: an underdetermined system may still reveal most of a row, and
a party with prior knowledge of rows needs fewer equations. The attacks go further.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.replay import Replay
from mpifed.core.exchange import Exchange, answering, fields_of, hearing
from mpifed.core.record import bare_leaves, leaves, of_columns
from mpifed.core.round import SETUP

OPEN, UNDERDETERMINED = "not excluded", "underdetermined"
NOTHING, NEXT = "nothing", "the next broadcast"
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
    equations: int  # upper bound of the independent ones
    pool: int  # private numbers of all rows that may enter any round; 0 if every round has new unknowns
    paper: str = ""  # the count of the papers, for their own exchanges

    @property
    def rounds_until(self) -> int | None:
        """Rounds until there are as many equations as private numbers; None if never, or outside the rounds."""
        return -(-self.pool // self.equations) if self.pool and self.equations and self.round != SETUP else None

    @property
    def verdict(self) -> str:
        """Whether the equations determine the unknowns."""
        return UNDERDETERMINED if self.unknowns > self.equations else OPEN

    @property
    def missing(self) -> int:
        """Number of missing equations; a lower bound."""
        return max(0, self.unknowns - self.equations)

    @property
    def text(self) -> str:
        if not self.unknowns:
            return "no private rows enter"
        if self.verdict == UNDERDETERMINED:
            return f"underdetermined by at least {self.missing}"
        return "not shown to be underdetermined: as many equations as unknowns"


class _Owner(NamedTuple):
    """A client whose private numbers entered an exchange."""

    client: int
    rows: NDArray[np.int64]  # [b] positions
    unknowns: int
    model: int = 0  # numbers of its part of the model, if others do not receive them


def conditions(replay: Replay, client: int = 0) -> list[Condition]:
    """Conditions of every exchange with private rows, for the server and for a client, in the last round."""
    listed, now = list[Condition](), replay.last.now
    for exchange in replay.exchanges:
        there = answering(exchange, exchange.at(now, 0))
        owners = [
            [owner for owner in _owners(replay, exchange, now.index, hidden) if owner.client in there]
            for hidden in (False, True)
        ]
        listed += _of_server(replay, exchange, now.index, owners[0])
        listed += _of_client(replay, exchange, client, owners[1])
    measured = (exchange for measure in replay.algorithm.measures for exchange in measure.exchanges)
    played = {play.exchange.name for play in replay.transcript.plays if play.round == SETUP and play.rows}
    outside = (*replay.algorithm.setup, *(exchange for exchange in measured if exchange.name in played))
    for exchange in {exchange.name: exchange for exchange in outside}.values():
        listed += _of_server(replay, exchange, SETUP, _owners(replay, exchange, SETUP))
    return listed


def _owners(replay: Replay, exchange: Exchange, round: int, hidden_model: bool = False) -> list[_Owner]:
    """The clients whose rows entered this exchange, or an earlier one of the same round."""
    owners, names = [], [other.name for other in replay.exchanges]
    before = names[: names.index(exchange.name) + 1] if exchange.name in names else [exchange.name]
    # elsewhere others hold the same columns
    hidden_model = hidden_model and replay.problem.split == "columns"
    for client, shard in replay.shards.items():
        rows = np.unique(np.concatenate([replay.rows(round, name, client) for name in before]))
        if len(rows):
            real, model, width = np.asarray(shard.y).dtype.kind == "f", 0, len(shard.columns)
            if hidden_model:
                question = replay.exchanges[0].ask(replay.last.server, replay.last.now.at(0))
                model = sum(leaf[0].size * width for name, leaf in leaves(question) if name in of_columns(question))
            owners.append(_Owner(client, rows, len(rows) * (width + real) + model, model))
    return owners


def _of_server(replay: Replay, exchange: Exchange, round: int, owners: list[_Owner]) -> Iterator[Condition]:
    """What the server receives."""
    if not owners or not fields_of(exchange):
        return
    clear, about = replay.in_clear(exchange), "all participating clients"
    if clear and not _of_single_clients(replay, exchange):
        owners = [min(owners, key=lambda owner: owner.unknowns)]
        about, receives = f"client {owners[0].client}", "each client's upload"
    else:
        receives = _sum_of(replay, exchange, len(owners)) if exchange.hear is None or clear else NOTHING
    numbers = 0 if receives == NOTHING else _numbers(replay, exchange, owners)
    yield _condition(replay, exchange, round, "server", receives, owners, numbers, about)


def _of_client(replay: Replay, exchange: Exchange, client: int, owners: list[_Owner]) -> Iterator[Condition]:
    """What a client learns about the others."""
    now = replay.last.now
    if exchange.hear is None:
        yield from _of_next_question(replay, exchange, client)
        return
    if exchange.hears is not None:
        client = int(hearing(exchange, now)[0])
    others = [owner for owner in owners if owner.client != client]
    numbers = _numbers(replay, exchange, others, client) if others else 0
    fields = fields_of(exchange).values()
    senders = {field.sender for field in fields}
    if not numbers or client in senders:  # the client has sent it itself
        return
    if any(field.to_holders for field in fields):
        others = [owner for owner in others if _numbers(replay, exchange, [owner], client)]
    alone = [sender for sender in senders if sender is not None]
    all_alone = len(alone) == len(senders)
    whom = f"values of client {min(alone)}" if all_alone else _sum_of(replay, exchange, len(others) + 1)
    about = f"all but client {client}"
    yield _condition(replay, exchange, now.index, f"client {client}", whom, others, numbers, about)


def _of_next_question(replay: Replay, exchange: Exchange, client: int) -> Iterator[Condition]:
    """A sum for the server, of which clients may infer from the next broadcast, of this round or the next."""
    now, names = replay.last.now, [other.name for other in replay.exchanges]
    others = [owner for owner in _owners(replay, exchange, now.index) if owner.client != client]
    if not others or not _numbers(replay, exchange, others):
        return
    later = names[names.index(exchange.name) + 1 :]
    plays = [play for play in replay.transcript.plays if play.round == now.index and play.exchange.name in later]
    asked = [play.question for play in plays if bare_leaves(play.question)]
    question = asked[0] if asked else replay.exchanges[0].ask(replay.server, now.at(0))
    columns = replay.problem.columns
    others_too = columns.held_by(np.arange(len(columns.groups)) != client)[columns.of(client)] > 0
    broadcast_numbers = sum(  # columns that no other client holds follow from its own rows
        np.size(leaf) if name not in of_columns(question) else np.size(leaf[0]) * int(others_too.sum())
        for name, leaf in leaves(question)
        if np.asarray(leaf).dtype.kind == "f" and np.ndim(leaf)
    )
    numbers = min(broadcast_numbers, _numbers(replay, exchange, others))
    party, about = f"client {client}", f"all but client {client}"
    yield _condition(replay, exchange, now.index, party, NEXT, others, numbers, about)


def _condition(
    replay: Replay, exchange: Exchange, round: int, party: str, receives: str, owners: list[_Owner],
    numbers: int, about: str,
) -> Condition:  # fmt: skip
    unknowns, shards = sum(owner.unknowns for owner in owners), [replay.shards[owner.client] for owner in owners]
    rows = len(np.unique(np.concatenate([shard.rows[owner.rows] for shard, owner in zip(shards, owners, strict=True)])))
    hidden = any(owner.model for owner in owners)  # parts of the model are unknown as well
    pool = 0 if hidden else sum(shard.samples * len(shard.columns) for shard in shards)
    paper = "" if round == SETUP or receives == NEXT else _paper_count(replay, exchange, party, rows, owners)
    return Condition(
        exchange.name, round, party, receives, about, rows, unknowns, numbers, min(numbers, unknowns), pool, paper
    )


def _of_single_clients(replay: Replay, exchange: Exchange) -> bool:
    """Whether every value of an exchange is of a single client."""
    clients = replay.problem.clients
    held = [field.holdings(clients) for field in fields_of(exchange).values()]
    return all(holdings is not None and bool((holdings.holders <= 1).all()) for holdings in held)


def _sum_of(replay: Replay, exchange: Exchange, clients: int) -> str:
    """Description of what the receiver of a sum of uploads learns."""
    return "each client's own values" if _of_single_clients(replay, exchange) else f"the sum of {clients} uploads"


def _numbers(replay: Replay, exchange: Exchange, owners: list[_Owner], hearer: int | None = None) -> int:
    """Numbers in the sum of these clients' uploads; of what is sent to its holders alone, those of this one."""
    total, clients = 0, [owner.client for owner in owners]
    for field in fields_of(exchange).values():
        held = field.holdings(replay.problem.clients)
        if held is None:
            total += field.size
            continue
        filled = held.held_by(np.isin(np.arange(len(held.groups)), clients)) > 0
        if field.to_holders and hearer is not None:
            filled &= held.held_by(np.arange(len(held.groups)) == hearer) > 0
        total += field.size // held.length * int(filled.sum())
    return total


def _paper_count(replay: Replay, exchange: Exchange, party: str, rows: int, owners: list[_Owner]) -> str:
    """The count of arXiv:2104.06011 in its letters, for its own algorithms and network."""
    problem, name = replay.problem, replay.job.algorithm["name"]
    hidden = problem.objective.hidden
    if name != "ssca" or hidden is None:
        return ""
    J, L, K, M = hidden, problem.outputs, problem.features, len(problem.constraints)
    d = J * (K + L)
    if party == "server" and problem.split == "rows":
        clients = f"{len(owners)} clients x " if len(owners) > 1 else ""
        return (
            f"unknowns {clients}B K = {rows} x {K} = {rows * K}; equations (M + 1) d, d = J (K + L) = "
            f"{J} x ({K} + {L}) = {d}: {(M + 1) * d}"
        )
    if party == "server" and exchange.hear is None:
        return (
            f"unknowns B sum of K_i = {rows} x {K} = {rows * K}; equations of q_0 and all q_i (M + 1) (L J + sum of "
            f"J K_i) = {(M + 1) * d}"
        )
    if party == "server" or not exchange.name.endswith("scores"):
        return ""
    others = sum(len(replay.shards[owner.client].columns) for owner in owners)
    return (
        f"unknowns theta_i and z_n,i of the others: sum of J K_i + B K_i = {J * others} + {rows * others}; equations "
        f"of their scores B J = {rows * J} (the paper: from each of them; here only the sum)"
    )
