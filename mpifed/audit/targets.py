"""What an attack on a gradient is pointed at: what the server heard of single clients, or of their sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.bundle import Bundle
from mpifed.algorithms.cocoa import CoCoA
from mpifed.algorithms.fedavg import FedAvg
from mpifed.algorithms.fedpdm import FedPDM
from mpifed.algorithms.hybrid_fedavg import HybridFedAvg
from mpifed.algorithms.hyfdca import HyFDCA
from mpifed.algorithms.hyfem import HyFEM
from mpifed.algorithms.scaffold import Scaffold
from mpifed.algorithms.ssca_horizontal import SSCAHorizontal
from mpifed.algorithms.ssca_vertical import SSCAVertical
from mpifed.algorithms.vertical_sgd import VerticalSGD
from mpifed.audit.attacks.uploads import fedpdm_moved, of_statistics, of_step
from mpifed.audit.plays import Decoder, Play, complete, filled, plays
from mpifed.audit.stage import Stage
from mpifed.core.record import Record, map_leaves, zeros
from mpifed.maths.objectives import Parameters
from mpifed.run.transcript import Message

EACH, SUM, SEALED = "each client's upload", "the opened sum", "sealed uploads, read as if they were plain"


class Target(NamedTuple):
    """A gradient that an attacker has, and what the auditor knows of it."""

    seen: str  # EACH, SUM or SEALED
    round: int
    client: int  # -1: of all
    model: Parameters  # where it was taken
    gradient: Parameters  # mean over `batch` rows
    batch: int
    rows: NDArray[np.float64]  # [b, p] the rows that entered, or may have; nothing an attacker has
    whom: tuple[int, ...] = ()  # of which clients they are, where not of the one or all


def no_targets(stage: Stage) -> str:
    """Why there is no gradient to attack; "" where there are some."""
    algorithm: Any = stage.algorithm
    if by_columns(stage) or isinstance(algorithm, (HybridFedAvg, HyFEM)):
        return ""
    if isinstance(algorithm, (Bundle, CoCoA, HyFDCA)):
        return "clients send sums over their dual variables, and no gradients"
    if not isinstance(algorithm, (FedAvg, FedPDM, Scaffold, SSCAHorizontal)):
        return f"how uploads of {type(algorithm).__name__} follow from gradients is not known here"
    if isinstance(algorithm, SSCAHorizontal) and algorithm.local_steps > 1:
        return "with local steps, clients of SSCA send surrogates, and no gradient of one minibatch"
    return ""


def by_columns(stage: Stage) -> bool:
    """Whether clients hold columns, and the server puts the gradient of whole rows together from theirs."""
    return isinstance(stage.algorithm, (SSCAVertical, VerticalSGD))


def targets(stage: Stage, messages: tuple[Message, ...], clients: int) -> Iterator[Target]:
    """Gradients in the transcript, of at most so many clients: of the first round and, of some algorithms, the last.

    Clients of SCAFFOLD and FedPDM keep states, which are known to all in their first round.
    """
    if by_columns(stage):
        yield from _put_together(stage, messages)
        return
    if isinstance(stage.algorithm, (HybridFedAvg, HyFEM)):
        yield from _of_own_columns(stage, messages, clients)
        return
    exchange = stage.exchanges[0]
    decoder = Decoder(stage, exchange)
    plain = stage.transcript.channel == "plain"
    asked = exchange.ask(stage.scenes[0].server, stage.scenes[0].now.at(0))
    found = [play for play in plays(messages, exchange.name) if complete(asked, play.question) and play.uploads]
    stateless = not isinstance(stage.algorithm, (FedPDM, Scaffold))
    for play in found[:1] + (found[-1:] if stateless and len(found) > 1 else []):
        question = filled(asked, play.question)
        for client, upload in list(play.uploads.items())[:clients]:
            answer = decoder(upload)
            if answer is not None:
                yield _of(stage, play, question, answer, EACH if plain else SEALED, client)
        if play.opened_for == "server" and complete(exchange.fields, play.opened):
            yield _of(stage, play, question, filled(exchange.fields, play.opened), SUM, -1)


def _put_together(stage: Stage, messages: tuple[Message, ...]) -> Iterator[Target]:
    """The gradient of a first minibatch of whole rows, which the server hears in every channel."""
    first, last = stage.exchanges[0], stage.exchanges[-1]
    asked = first.ask(stage.scenes[0].server, stage.scenes[0].now)
    for begun, ended in list(zip(plays(messages, first.name), plays(messages, last.name), strict=False))[:1]:
        if not (complete(asked, begun.question) and complete(last.fields, ended.opened)):
            continue
        question, heard = filled(asked, begun.question), filled(last.fields, ended.opened)
        gradient = of_statistics(heard.statistics.gradient, 1.0)
        rows = np.asarray(question.rows)
        yield Target(SUM, begun.round, -1, question.model, gradient, len(rows), stage.whole(rows))


def _of_own_columns(stage: Stage, messages: tuple[Message, ...], clients: int) -> Iterator[Target]:
    """First gradients of clients who fit labels with their own columns alone: of each, and of all with the same ones.

    Of sums those in the first client's columns are looked at, where all who hold any of these hold the same.
    """
    exchange = stage.exchanges[0]
    decoder = Decoder(stage, exchange)
    asked = exchange.ask(stage.scenes[0].server, stage.scenes[0].now.at(0))
    found = [play for play in plays(messages, exchange.name) if complete(asked, play.question) and play.uploads]
    seen = EACH if stage.in_clear(exchange) else SEALED
    for play in found[:1]:
        question: Any = filled(asked, play.question)
        for client, upload in list(play.uploads.items())[:clients]:
            answer: Any = decoder(upload)
            if answer is not None:
                yield _of_columns(stage, play, question, answer.first, [client], seen)
        holders = _same_columns(stage, sorted(play.uploads))
        if holders and play.opened_for == "server" and complete(exchange.fields, play.opened):
            heard: Any = filled(exchange.fields, play.opened)
            yield _of_columns(stage, play, question, heard.first, holders, SUM)


def _same_columns(stage: Stage, present: list[int]) -> list[int]:
    """Those present who hold the columns of the first of them; nobody where others hold some of these."""
    columns = stage.cells.columns
    own = [client for client in present if columns.groups[client] == columns.groups[present[0]]]
    who = np.isin(np.arange(len(columns.groups)), present)
    alone = bool((columns.held_by(who)[columns.of(present[0])] == len(own)).all())
    return own if alone else []


def _of_columns(stage: Stage, play: Play, question: Any, value: Any, whom: list[int], seen: str) -> Target:
    """From the sum of what some clients with the same columns have sent in their first round."""
    algorithm: Any = stage.algorithm
    columns, problem = stage.shards[whom[0]].columns, algorithm.problem
    own = Parameters(np.asarray(question.model.first, dtype=np.float64)[columns], ())
    moved = np.asarray(value, dtype=np.float64)[columns]
    if isinstance(algorithm, HyFEM):  # its clients send where they have come to, from the common start
        moved = moved / len(whom) - own.first
    else:
        moved = moved / float(problem.weights[whom].sum())
    steps = algorithm.local.count
    found: Parameters = map_leaves(
        lambda g: g / steps, of_step(problem.objective, own, Parameters(moved, ()), float(question.step))
    )
    rows = np.concatenate([stage.features(one, stage.rows(play.round, stage.exchanges[0].name, one)) for one in whom])
    client = whom[0] if seen != SUM else -1
    return Target(seen, play.round, client, own, found, len(rows), rows, tuple(whom))


def _of(stage: Stage, play: Play, question: Any, answer: Any, seen: str, client: int) -> Target:
    problem, exchange = stage.algorithm.problem, stage.exchanges[0].name
    weight = float(problem.weights[client]) if seen == SEALED else float(answer.weight)
    whom = sorted(play.uploads) if client < 0 else [client]
    entered = {one: stage.rows(play.round, exchange, one) for one in whom}
    batch = sum(len(rows) for rows in entered.values())
    if not stage.replayed:  # with secret draws nobody can say which
        entered = {one: np.arange(stage.shards[one].samples) for one in whom}
        batch = algorithm_batch(stage) * len(whom)
    together = np.concatenate([stage.features(one, rows) for one, rows in entered.items()])
    gradient = mean_gradient(stage.algorithm, question, answer.value, weight)
    return Target(seen, play.round, client, question.model, gradient, batch, together)


def algorithm_batch(stage: Stage) -> int:
    """How many rows a client takes in a round."""
    algorithm: Any = stage.algorithm
    return int(algorithm.batch) * (1 if isinstance(algorithm, SSCAHorizontal) else int(algorithm.local.count))


def mean_gradient(algorithm: Any, question: Any, value: Record, weight: float) -> Parameters:
    """What an upload tells of the mean gradient of its rows; a first step of algorithms whose clients keep states."""
    objective = algorithm.problem.objective
    if isinstance(algorithm, SSCAHorizontal):
        return of_statistics(value.gradient, weight)
    moved: Any = map_leaves(lambda leaf: np.asarray(leaf, dtype=np.float64) / weight, value)
    if isinstance(algorithm, FedPDM):
        moved = fedpdm_moved(moved, zeros(moved), algorithm.rho)
    steps = algorithm.local.count  # the sum of their gradients, at models that hardly differ
    found: Parameters = map_leaves(lambda g: g / steps, of_step(objective, question.model, moved, float(question.step)))
    return found
