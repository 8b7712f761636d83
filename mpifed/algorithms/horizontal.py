"""What algorithms for horizontally split data share: checks, the weighted sum, the training loss."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mpifed.core.block import Block
from mpifed.core.exchange import Algorithm, Field, Measure, Problem, fields_like
from mpifed.core.record import Array, Record, map_leaves
from mpifed.core.round import SETUP, Round
from mpifed.maths.objectives import Parameters, penalty

CHUNK = 2048  # rows scored at a time; fixed, because it decides the bits of a client's sum


class Weighted(NamedTuple):
    """What a client adds to a mean over samples: sums and weights travel, means never do."""

    value: Record  # [n, ...] times the weight
    weight: Array  # [n] its number of rows relative to the mean client


def weighted_fields(problem: Problem, like: Record, scale: float = 2.0**-40, bound: float = 2.0**10) -> Weighted:
    """Fields of a `Weighted` whose unweighted values lie within `bound`."""
    heaviest = _power_of_two(float(problem.weights.max()))
    return Weighted(fields_like(like, scale * heaviest, bound * heaviest), Field((), 2.0**-40, heaviest))


def mean(total: Weighted) -> Record:
    """The mean over the samples of those who answered."""
    return map_leaves(lambda leaf: leaf / leaf.dtype.type(total.weight), total.value)


def start_model(problem: Problem, now: Round) -> Parameters:
    """The objective's initial model, a function of the job's seed."""
    model: Parameters = problem.objective.start(problem.features, problem.outputs, now.rng("model"), problem.dtype)
    return model


def model_template(problem: Problem) -> Parameters:
    """A model in the right shapes, for the fields of an exchange."""
    return start_model(problem, Round(SETUP, 0, np.ones(problem.clients, dtype=bool)))


def check_rows(problem: Problem, batch: int) -> list[str]:
    """What horizontal algorithms ask of the data, one message for each thing that does not fit."""
    wrong: list[str] = []
    if problem.split != "rows":
        wrong.append(
            f"[algorithm] name: needs data split by rows, and the folder is split by {problem.split}; "
            "make another with `mpifed data ... --split rows`"
        )
    smallest = int(np.argmin(problem.counts))
    if batch > problem.counts[smallest]:
        wrong.append(
            f"[algorithm] batch = {batch}: the smallest shard (client {smallest}) has "
            f"{problem.counts[smallest]} samples; lower batch, or make shards for fewer clients"
        )
    return wrong


class LossSum(NamedTuple):
    """What one client sends to be measured."""

    loss: Any  # [n] sum over its rows
    samples: Any  # [n]


def train_loss(algorithm: Algorithm) -> Measure:
    """The mean loss F over all rows of all clients, and the objective F + penalty."""
    problem = algorithm.problem
    most = _power_of_two(float(problem.counts.max()))
    return Measure(
        name="train-loss",
        fields=LossSum(loss=Field((), 2.0**-30, most * 2**10), samples=Field((), 1.0, most)),
        ask=lambda server, now: algorithm.model(server),
        answer=partial(_loss_sums, problem),
        report=lambda server, total: _report_loss(problem, algorithm.model(server), total),
    )


def _loss_sums(
    problem: Problem, clients: Record, model: Parameters, block: Block, now: Round
) -> tuple[Record, LossSum]:
    sums = np.zeros(len(block.clients))
    for i, batch in block.everything(CHUNK):
        loss = problem.objective.loss(model.head, problem.objective.scores(model.first, batch.X), batch.y)
        sums[i] += float(loss.sum(dtype=np.float64))
    return clients, LossSum(sums, block.counts)


def _report_loss(problem: Problem, model: Parameters, total: LossSum) -> dict[str, float]:
    loss = float(total.loss / total.samples)
    return {"train_loss": loss, "objective": loss + penalty(problem.objective, model)}


def _power_of_two(value: float) -> float:
    """The smallest power of two that is at least `value` and at least 1."""
    return float(2.0 ** max(0, int(np.ceil(np.log2(value)))))
