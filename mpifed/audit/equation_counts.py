"""Counts of private numbers that enter an exchange, and of numbers that a party receives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.replay import Replay
from mpifed.comm.sums import Message
from mpifed.core.exchange import Exchange, fields_of
from mpifed.core.record import leaves, of_columns


class PrivateNumbers(NamedTuple):
    """A client's private numbers that entered an exchange."""

    client: int
    rows: NDArray[np.int64]  # [b]
    unknowns: int
    model: int = 0  # numbers of its part of the model, if others do not receive them


def private_numbers(replay: Replay, exchange: Exchange, round: int, hidden_model: bool = False) -> list[PrivateNumbers]:
    """Private numbers of the clients whose rows entered this exchange, or an earlier one of the same round."""
    owners = []
    names = [other.name for other in replay.exchanges]
    before = names[: names.index(exchange.name) + 1] if exchange.name in names else [exchange.name]
    # elsewhere others hold the same columns
    hidden_model = hidden_model and replay.algorithm.problem.split == "columns"
    for client, shard in replay.shards.items():
        rows = np.unique(np.concatenate([replay.rows(round, name, client) for name in before]))
        if len(rows):
            real = np.asarray(shard.y).dtype.kind == "f"
            model = _told_numbers(replay, client) if hidden_model else 0
            owners.append(PrivateNumbers(client, rows, len(rows) * (len(shard.columns) + real) + model, model))
    return owners


def _told_numbers(replay: Replay, client: int) -> int:
    """Numbers of the model that only this client receives."""
    question = replay.exchanges[0].ask(replay.last.server, replay.last.now.at(0))
    width = len(replay.shards[client].columns)
    return sum(leaf[0].size * width for name, leaf in leaves(question) if name in of_columns(question))


def rows_of(replay: Replay, owners: list[PrivateNumbers]) -> int:
    """Number of samples that entered, in whole or in part."""
    return len(np.unique(np.concatenate([replay.shards[owner.client].rows[owner.rows] for owner in owners])))


def pool_of(replay: Replay, owners: list[PrivateNumbers]) -> int:
    """Private numbers of all rows of these clients; 0 if parts of the model are unknown as well."""
    if any(owner.model for owner in owners):
        return 0
    shards = [replay.shards[owner.client] for owner in owners]
    return sum(shard.samples * len(shard.columns) for shard in shards)


def of_single_clients(replay: Replay, exchange: Exchange) -> bool:
    """Whether every value of an exchange is of a single client."""

    clients = replay.algorithm.problem.clients
    held = [field.holdings(clients) for field in fields_of(exchange).values()]
    return all(holdings is not None and bool((holdings.holders <= 1).all()) for holdings in held)


def sum_of(replay: Replay, exchange: Exchange, clients: int) -> str:
    """Description of what the receiver of a sum of uploads learns."""
    return "each client's own values" if of_single_clients(replay, exchange) else f"the sum of {clients} uploads"


def sizes(replay: Replay, exchange: Exchange, client: int) -> list[int]:
    """Numbers that a client sends, by field."""
    return [int(place.sizes[client]) for place in Message(exchange, replay.algorithm.problem.clients).places]


def received_numbers(replay: Replay, exchange: Exchange, clients: list[int], hearer: int | None = None) -> int:
    """Numbers in the sum of these clients' uploads; of what is sent to its holders alone, those of this one."""
    total = 0
    for field in fields_of(exchange).values():
        held = field.holdings(replay.algorithm.problem.clients)
        if held is None:
            total += field.size
            continue
        filled = held.held_by(np.isin(np.arange(len(held.groups)), clients)) > 0
        if field.to_holders and hearer is not None:
            filled &= held.held_by(np.arange(len(held.groups)) == hearer) > 0
        total += field.size // held.length * int(filled.sum())
    return total


def paper_count(replay: Replay, exchange: Exchange, party: str, rows: int, owners: list[PrivateNumbers]) -> str:
    """The count of arXiv:2104.06011 in its letters, for its own algorithms and network."""
    problem, name = replay.algorithm.problem, replay.job.algorithm["name"]
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
