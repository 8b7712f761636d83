"""Counts of private numbers that enter an exchange, and of numbers that a party receives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mpifed.audit.jacobian import Private
from mpifed.audit.stage import Stage
from mpifed.core.exchange import Exchange, Field, ToServer, fields_of
from mpifed.core.record import leaves


class Side(NamedTuple):
    """A client's private numbers that entered an exchange."""

    client: int
    rows: Any  # [b]
    unknowns: int
    model: int = 0  # numbers of its part of the model, if others do not receive them

    @property
    def private(self) -> Private:
        """The unknowns by which `Bench` differentiates."""
        return Private(self.client, self.rows, self.model > 0)


def sides_of(stage: Stage, exchange: Exchange, round: int, hidden_model: bool = False) -> list[Side]:
    """Sides of the clients whose rows entered this exchange, or an earlier one of the same round."""
    sides = []
    names = [other.name for other in stage.exchanges]
    before = names[: names.index(exchange.name) + 1] if exchange.name in names else [exchange.name]
    hidden_model = hidden_model and stage.algorithm.problem.split == "columns"  # elsewhere others hold the same columns
    for client, shard in stage.shards.items():
        rows = np.unique(np.concatenate([stage.rows(round, name, client) for name in before]))
        if len(rows):
            real = np.asarray(shard.y).dtype.kind == "f"
            model = _told_numbers(stage, client) if hidden_model else 0
            sides.append(Side(client, rows, len(rows) * (len(shard.columns) + real) + model, model))
    return sides


def _told_numbers(stage: Stage, client: int) -> int:
    """Numbers of the model that only this client receives."""
    first = stage.exchanges[0]
    if not first.told_by_columns:
        return 0
    question = first.ask(stage.scenes[-1].server, stage.scenes[-1].now.at(0))
    width = len(stage.shards[client].columns)
    return sum(leaf[0].size * width for name, leaf in leaves(question) if name in first.told_by_columns)


def rows_of(stage: Stage, sides: list[Side]) -> int:
    """Number of samples that entered, in whole or in part."""
    return len(np.unique(np.concatenate([stage.shards[side.client].rows[side.rows] for side in sides])))


def pool_of(stage: Stage, sides: list[Side]) -> int:
    """Private numbers of all rows of these clients; 0 if parts of the model are unknown as well."""
    if any(side.model for side in sides):
        return 0
    shards = [stage.shards[side.client] for side in sides]
    return sum(shard.samples * len(shard.columns) for shard in shards)


def single(stage: Stage, exchange: Exchange) -> bool:
    """Whether every value of an exchange is of a single client."""

    def of_one_client(field: Field) -> bool:
        held = stage.cells.along(field)
        return field.sender is not None or (held is not None and bool((held.holders <= 1).all()))

    return all(of_one_client(field) for field in fields_of(exchange).values())


def sum_of(stage: Stage, exchange: Exchange, clients: int) -> str:
    """Description of what the receiver of a sum of uploads learns."""
    return "each client's own values" if single(stage, exchange) else f"the sum of {clients} uploads"


def sizes(stage: Stage, exchange: Exchange, client: int) -> Iterator[int]:
    """Numbers that a client sends, by field."""
    for field in fields_of(exchange).values():
        held = stage.cells.along(field)
        if held is not None:
            yield field.size // held.length * int(held.widths[client])
        else:
            yield field.size if field.sender in (None, client) else 0


def received_numbers(stage: Stage, exchange: Exchange, clients: list[int], hearer: int | None = None) -> int:
    """Numbers in the sum of these clients' uploads; in fields by rows, a client receives only its own rows."""
    total = 0
    for field in fields_of(exchange).values():
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
    """The count of arXiv:2104.06011 in its letters, for its own algorithms and network."""
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
