"""Shared by algorithms for horizontally split data: checks, the weighted sum, shares, losses and certificates."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from mpifed.algorithms.certificate import STEP, certificate_columns, first_iterate, report_certificate
from mpifed.algorithms.functions import CHUNK, Tally, report_levels, sampled, slope_of_each, stacked, tally, terms
from mpifed.core.algorithm import Algorithm
from mpifed.core.errors import DataError
from mpifed.core.exchange import (
    Columns,
    Exchange,
    Field,
    FirstNumbers,
    Measure,
    Problem,
    fields_like,
    of_each,
    power_of_two,
)
from mpifed.core.protocols import Features
from mpifed.core.record import ABSENT, AnyRecord, Array, Record, map_leaves
from mpifed.core.refusals import Refusal, messages
from mpifed.core.round import SETUP, Round
from mpifed.core.vector import Layout
from mpifed.data.block import Batch, Block
from mpifed.maths.objectives import Parameters, layout_of


class Rows(Algorithm):
    """The base of algorithms for data split by rows: measures losses, constraints and certificates.

    Its `check` may begin with `check_rows(self.problem, batch_size)`.
    """

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Training loss, objective and constraints; the certificate."""
        return measures_of_rows(self)


def start_model(problem: Problem, now: Round) -> Parameters:
    """The model of round 0: that of `[model] start`, or the objective's own, a function of the job's seed."""
    if problem.start is not None:
        return map_leaves(np.copy, problem.start)
    return problem.objective.start(problem.features, problem.outputs, now.rng("model"), problem.dtype)


@lru_cache(maxsize=8)  # every block of clients asks for it
def model_template(problem: Problem) -> Parameters:
    """A model in the right shapes, for the fields of an exchange: zeros that take no memory."""
    model = start_model(problem, Round(SETUP, 0, np.ones(problem.clients, dtype=bool)))
    return map_leaves(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), model)


@lru_cache(maxsize=8)  # every block of clients asks for it
def model_layout(problem: Problem) -> Layout:
    """Where the parts of the problem's model stand in a vector."""
    return layout_of(problem.objective, model_template(problem))


def check_rows(problem: Problem, batch: int) -> list[str]:
    """Errors of data and batch size for algorithms on rows, one message each."""
    key, client = f"[algorithm] batch_size = {batch}", int(np.argmin(problem.counts))
    least = problem.counts[client]
    return messages(
        (
            Refusal(
                problem.split != "rows",
                "[algorithm] name",
                f"needs data split by rows, and the folder is split by {problem.split}",
                "make another with `mpifed data ... --split rows`",
            ),
            Refusal(batch < 1, key, "expected at least 1", "raise it"),
            Refusal(
                problem.privacy is not None and batch > least,
                key,
                f"the smallest shard (client {client}) has {least} samples, and with [privacy] all clients draw as "
                "many",
                "lower batch_size, or make larger shards: fewer clients, or `mpifed data ... --min-samples`",
            ),
        )
    )


def minibatches(problem: Problem, block: Block, now: Round, size: int) -> Iterator[tuple[Block, Batch]]:
    """(clients, their minibatches), a few at a time: `size` rows of each client, or all rows of one that has fewer."""
    for part in block.parts(size):
        for _, clients, rows in part.by_batch_size(size):
            yield clients, clients.take(clients.draw(now, "minibatch", rows))


# --- set-up: how many samples each function counts ------------------------------------------------------------------


class Counts(NamedTuple):
    """A client's upload in the set-up."""

    counted: Array  # [n, K]


def count_samples(
    problem: Problem, absorb: Callable[[AnyRecord, Array], AnyRecord], sender: int | None = None
) -> Exchange:
    """The set-up exchange by which the server learns the shares of the functions' samples.

    Parameters
    ----------
    absorb : (server, shares [K]) -> server
    sender : the one client who counts, where all hold the same rows
    """
    functions, most = sampled(problem), power_of_two(float(problem.counts.max()))

    def answer(clients: Record, broadcast: Record, block: Block, now: Round) -> tuple[Record, Counts]:
        counts = np.empty((len(block.clients), len(functions)))
        for shard, row in zip(block.shards, counts, strict=True):
            masks = [function.term.counted(shard.y) for function in functions]
            row[:] = [shard.samples if mask is None else int(mask.sum()) for mask in masks]
        return clients, Counts(counts)

    def shares(server: AnyRecord, total: Counts, now: Round) -> AnyRecord:
        empty = [function.term for function, count in zip(functions, total.counted, strict=True) if not count]
        if empty:
            raise DataError(f"{empty[0]}: none of the {problem.samples} samples counts; choose classes that are there")
        return absorb(server, total.counted.astype(np.float64) / problem.samples)

    field = Field((len(functions),), 1.0, most, sender=sender, degree=0)
    return Exchange("shares", Counts(field), lambda server, now: (), answer, shares)


# --- measuring ------------------------------------------------------------------------------------------------------


def tally_fields(problem: Problem, rows: int, sender: int | None = None) -> Tally:
    """Fields of sums over up to `rows` rows of one client."""
    most, shape = power_of_two(float(rows)), (len(terms(problem)),)
    return Tally(
        total=Field(shape, STEP, most * 2**10, sender=sender, degree=2, wide=True),
        square=Field(shape, STEP, most * 2**20, sender=sender, degree=4, wide=True),
        count=Field(shape, 1.0, most, sender=sender, degree=0, wide=True),
    )


class Evaluation(NamedTuple):
    """A client's sums over all its evaluated rows."""

    tally: Tally  # [n, T]
    gradient: Parameters  # leaves [n, K, ...] over the counted rows; ABSENT without a certificate


def reported_levels(algorithm: Algorithm, server: Record, evaluation: Evaluation, first: FirstNumbers) -> Columns:
    """Columns of the history: losses, objective, constraints, and the algorithm's own."""
    measured = report_levels(algorithm.problem, algorithm.model(server), evaluation.tally)
    return {**measured, **algorithm.report(server), **measured}


def reported_certificate(algorithm: Algorithm, server: Record, evaluation: Evaluation, first: FirstNumbers) -> Columns:
    return report_certificate(algorithm.problem, algorithm.model(server), evaluation.tally, evaluation.gradient, first)


def numbers_of_first(algorithm: Algorithm, server: Record, evaluation: Evaluation) -> FirstNumbers:
    """Numbers of the first model that certificates need."""
    return first_iterate(algorithm.problem, algorithm.model(server), evaluation.tally, evaluation.gradient)


def measures_of_rows(algorithm: Algorithm) -> tuple[Measure, ...]:
    """The measures of algorithms on rows: losses and constraints; the certificate."""
    losses = _over_all_rows(algorithm.problem, "losses", gradients=False)
    certificate = _over_all_rows(algorithm.problem, "certificate", gradients=True)
    return (
        Measure((losses,), algorithm.model, partial(reported_levels, algorithm)),
        Measure(
            (certificate,), algorithm.model, partial(reported_certificate, algorithm),
            certificate=certificate_columns(algorithm.problem), first=partial(numbers_of_first, algorithm),
        ),
    )  # fmt: skip


def _over_all_rows(problem: Problem, name: str, gradients: bool) -> Exchange:
    rows = int(problem.counts.max())
    fields = Evaluation(tally_fields(problem, rows), ABSENT)
    if gradients:
        like, functions = model_template(problem), len(sampled(problem))
        stacked = map_leaves(lambda leaf: np.empty((functions, *leaf.shape)), like)
        fields = fields._replace(gradient=fields_like(stacked, STEP, power_of_two(float(rows)) * 2**10, wide=True))

    def answer(clients: Record, model: Any, block: Block, now: Round) -> tuple[Record, Any]:  # of any class
        evaluate = partial(_evaluated, problem, gradients, model)
        return clients, of_each(block, lambda who: evaluate(block.only(who))) if gradients else evaluate(block)

    return Exchange(name, fields, lambda model, now: model, answer, lambda model, total, now: total)


def _evaluated(problem: Problem, gradients: bool, model: Parameters, block: Block) -> Evaluation:
    """Sums over the evaluated rows of each client, chunk by chunk, in float64."""
    xp, functions, objective = block.xp, sampled(problem), problem.objective
    chosen = measured_rows(problem)

    def of_piece(model: Parameters, X: Features, y: Array, ones: Array) -> Evaluation:
        if not gradients:
            return Evaluation(tally(problem, model.head, objective.scores_of(model, X), y, ones), ABSENT)
        scores, backward = objective.forward(model, X)
        # of sums over the counted rows, as if all counted
        each, _ = slope_of_each(problem, functions, model.head, scores, y, ones, np.ones(len(functions)))
        gradient = map_leaves(lambda leaf: leaf.astype(np.float64), stacked([backward(slope) for slope in each], y))
        return Evaluation(tally(problem, model.head, scores, y, ones), gradient)

    sums = []
    for i, client in enumerate(block.clients):
        alone, count = block.only(np.array([i])), block.shards[i].samples
        rows = np.arange(count)
        if chosen is not None:
            start, stop = np.searchsorted(chosen, problem.offsets[client : client + 2])
            rows = chosen[start:stop] - problem.offsets[client]
        total: list[Evaluation] = []
        for start in range(0, max(len(rows), 1), CHUNK):
            batch = alone.take(rows[None, start : start + CHUNK])
            chunk = objective.in_pieces(of_piece, model, batch.X, batch.y, xp.ones(batch.y.shape))
            total = [chunk if not total else map_leaves(operator.add, total[0], chunk)]
        sums += total
    return map_leaves(lambda *parts: xp.concatenate(parts), sums[0], *sums[1:])


@lru_cache(maxsize=8)
def measured_rows(problem: Problem) -> Array | None:
    """Indices of the evaluated rows among those of all clients, ascending; None: all of them.

    They are a uniform draw without replacement, the same for the whole run and whatever its seed.
    """
    rows = int(problem.counts.sum()) if problem.split == "rows" else problem.samples
    if problem.measured_rows is None or problem.measured_rows >= rows:
        return None
    everybody = Round(SETUP, 0, np.ones(1, dtype=bool))
    return np.sort(everybody.draw("measured rows", np.array([0]), np.array([rows]), problem.measured_rows)[0])
