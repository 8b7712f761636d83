"""How much is private in what enters an exchange, and how many numbers of it somebody hears."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mpifed.audit.jacobian import Private
from mpifed.audit.stage import Stage
from mpifed.core.exchange import Exchange, Field, ToServer
from mpifed.core.record import bare_leaves, leaves


class Side(NamedTuple):
    """What of one client entered an exchange."""

    client: int
    rows: Any  # [b]
    unknowns: int
    model: int = 0  # numbers of its own part of the model, which others are not told

    @property
    def private(self) -> Private:
        """By which the bench differentiates."""
        return Private(self.client, self.rows, self.model > 0)


def sides_of(stage: Stage, exchange: Exchange, round: int, hidden_model: bool = False) -> list[Side]:
    """Of each client any of whose rows entered this exchange, or one before it in the same round."""
    found = []
    names = [one.name for one in stage.exchanges]
    before = names[: names.index(exchange.name) + 1] if exchange.name in names else [exchange.name]
    hidden_model = hidden_model and stage.algorithm.problem.split == "columns"  # elsewhere others hold the same columns
    for client, shard in stage.shards.items():
        rows = np.unique(np.concatenate([stage.rows(round, one, client) for one in before]))
        if len(rows):
            real = np.asarray(shard.y).dtype.kind == "f"
            model = _told_numbers(stage, client) if hidden_model else 0
            found.append(Side(client, rows, len(rows) * (len(shard.columns) + real) + model, model))
    return found


def _told_numbers(stage: Stage, client: int) -> int:
    """How many numbers of the model only this client is told."""
    told = stage.exchanges[0]
    if not told.told_by_columns:
        return 0
    question = told.ask(stage.scenes[-1].server, stage.scenes[-1].now.at(0))
    width = len(stage.shards[client].columns)
    return sum(leaf[0].size * width for name, leaf in leaves(question) if name in told.told_by_columns)


def rows_of(stage: Stage, sides: list[Side]) -> int:
    """How many samples entered, in whole or in part."""
    return len(np.unique(np.concatenate([stage.shards[side.client].rows[side.rows] for side in sides])))


def pool_of(stage: Stage, sides: list[Side]) -> int:
    """All private numbers of these clients' rows, where nothing else is unknown."""
    if any(side.model for side in sides):
        return 0
    shards = [stage.shards[side.client] for side in sides]
    return sum(shard.samples * len(shard.columns) for shard in shards)


def single(stage: Stage, exchange: Exchange) -> bool:
    """Whether every value that travels is one client's own."""

    def own(field: Field) -> bool:
        held = stage.cells.along(field)
        return field.sender is not None or (held is not None and bool((held.holders <= 1).all()))

    return all(own(field) for field in bare_leaves(exchange.fields))


def sum_of(stage: Stage, exchange: Exchange, clients: int) -> str:
    """What whoever hears a sum of so many answers hears, in words."""
    return "each client's own values" if single(stage, exchange) else f"the sum of {clients} answers"


def sizes(stage: Stage, exchange: Exchange, client: int) -> Iterator[int]:
    """How many numbers a client sends in each field."""
    for field in bare_leaves(exchange.fields):
        one: Field = field
        held = stage.cells.along(one)
        if held is not None:
            yield one.size // held.length * int(held.widths[client])
        else:
            yield one.size if one.sender in (None, client) else 0


def heard_numbers(stage: Stage, exchange: Exchange, clients: list[int], hearer: int | None = None) -> int:
    """How many numbers the sum of these clients' answers has; of rows, a client hears its own alone."""
    total = 0
    for field in bare_leaves(exchange.fields):
        held = stage.cells.along(field)
        if held is None:
            total += field.size
            continue
        filled = held.held_by(np.isin(np.arange(len(held.groups)), clients)) > 0
        if field.rows is not None and hearer is not None:
            filled &= held.held_by(np.arange(len(held.groups)) == hearer) > 0
        total += field.size // held.length * int(filled.sum())
    return total


def paper_count(stage: Stage, exchange: Exchange, party: str, rows: int, sides: list[Side]) -> str:
    """The count of arXiv:2104.06011 in its letters, for its own algorithms on its network."""
    problem, name = stage.algorithm.problem, stage.job.algorithm["name"]
    if name != "ssca" or problem.objective.hidden is None:
        return ""
    J, L, K, M = problem.objective.hidden, problem.outputs, problem.features, len(problem.constraints)
    d = J * (K + L)
    if party == "server" and problem.split == "rows":
        clients = f"{len(sides)} clients x " if len(sides) > 1 else ""
        return (
            f"unknowns {clients}B K = {rows} x {K} = {rows * K}; equations (M + 1) d, d = J (K + L) = "
            f"{J} x ({K} + {L}) = {d}: {(M + 1) * d}"
        )
    if party == "server" and isinstance(exchange, ToServer):
        return (
            f"unknowns B sum of K_i = {rows} x {K} = {rows * K}; equations of q_0 and all q_i (M + 1) (L J + sum of "
            f"J K_i) = {(M + 1) * d}"
        )
    if party == "server" or not exchange.told_by_columns:
        return ""
    others = sum(len(stage.shards[side.client].columns) for side in sides)
    return (
        f"unknowns theta_i and z_n,i of the others: sum of J K_i + B K_i = {J * others} + {rows * others}; equations "
        f"of their scores B J = {rows * J} (the paper: from each of them; here only the sum)"
    )
