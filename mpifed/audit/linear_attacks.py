"""Attacks by linear equations between messages of a client: rows from inner products, or from dual variables.

T. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning" (AAAI 2024, arXiv:2210.08106),
section 3.2, encrypts dual variables and inner products, since a party that sees either and the model can solve for the
rows. The same holds for partial scores, and for derivatives by them, where data are split by columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from mpifed.audit.attack_result import LINEAR, PRODUCTS, AttackResult, Floats, not_applicable, pictures
from mpifed.audit.attacks.linear import Solved, rows_from_duals, rows_from_scores, rows_from_slopes
from mpifed.audit.attacks.matching import match
from mpifed.audit.dual_changes import dual_change_attacks
from mpifed.audit.received import EACH, HIDDEN, SEALED, Reader
from mpifed.audit.recording import dense_rows
from mpifed.core.exchange import Exchange
from mpifed.core.record import Array
from mpifed.core.reveals import DualSum, DualVariables, InnerProducts, MeanGradient, ScoreDerivatives

FEW = 4  # most clients that are attacked
LARGEST = 2**24  # most numbers in the rows of a client that are solved for
UPLOADS = "each client's uploads"


def linear_attacks(reader: Reader) -> Iterator[AttackResult]:
    """Attacks that solve the linear equations which the server collects over the recorded rounds."""
    yield _products(reader)
    yield _linear(reader)
    yield from dual_change_attacks(reader)


def _seen(reader: Reader, exchanges: Iterable[Exchange]) -> str:
    return SEALED if any(reader.seen(exchange) != EACH for exchange in exchanges) else UPLOADS


def _hidden(reader: Reader) -> bool:
    """Whether uploads of a round are encrypted."""
    return any(not reader.readable(exchange) for exchange in reader.rounds)


# --- inner products --------------------------------------------------------------------------------------------------


class _Products(NamedTuple):
    """Inner products of one client's rows, by occurrence."""

    rows: list[Array]  # T arrays [b]
    products: list[Array]  # T arrays [b, h]
    weights: list[Array]  # T arrays [p_i, h]

    def add(self, products: InnerProducts) -> None:
        self.rows.append(np.asarray(products.rows))
        self.products.append(products.products)
        self.weights.append(products.weights)


def _products(reader: Reader) -> AttackResult:
    """A client's rows, in its columns, from their inner products with weights that the server has broadcast."""
    used, collected = list[Exchange](), defaultdict[int, _Products](lambda: _Products([], [], []))
    for exchange in reader.exchanges.values():
        for _, by_client in reader.revealed_by_client(InnerProducts, exchange, FEW):
            used += [exchange] if by_client else []
            for client, items in by_client.items():
                for products in items:
                    collected[client].add(products)
    if collected:
        return _from_products(reader, used, collected)
    if _hidden(reader):
        return not_applicable(PRODUCTS, HIDDEN, seen="encrypted uploads")
    return not_applicable(
        PRODUCTS, f"no client sends inner products of its rows with weights that the server knows{reader.attribution}"
    )


def _from_products(reader: Reader, used: list[Exchange], collected: dict[int, _Products]) -> AttackResult:
    recovery = _Recovery(reader, used)
    for client, products in sorted(collected.items())[:FEW]:
        shard = reader.replay.shards[client]
        needed, equations = shard.features, sum(weights.shape[1] for weights in products.weights)
        there = np.unique(np.concatenate(products.rows))
        if equations < needed or len(there) * needed > LARGEST:
            recovery.nothing(len(there), equations, needed)
            continue
        numbers, solved = rows_from_scores(products.rows, products.products, products.weights)
        at = np.asarray(np.searchsorted(shard.rows, numbers), dtype=np.int64)
        recovery.add(solved, dense_rows(shard, at), len(numbers))
    return recovery.result(PRODUCTS, "equations per row")


# --- weighted sums of rows -------------------------------------------------------------------------------------------


def _linear(reader: Reader) -> AttackResult:
    """A client's rows, in its columns, from weighted sums over them and the weights."""
    result = _from_derivatives(reader) or _from_duals(reader)
    if result is not None:
        return result
    if _hidden(reader):
        return not_applicable(LINEAR, HIDDEN, seen="encrypted uploads")
    why = "no client sends dual variables, or derivatives by scores, together with sums of rows weighted by them"
    return not_applicable(LINEAR, why + reader.attribution)


def _from_derivatives(reader: Reader) -> AttackResult | None:
    """From gradients of columns, and the derivatives of the loss by the scores that were sent in the same round."""
    derivatives: dict[int, ScoreDerivatives] = {}
    used = list[Exchange]()
    for exchange in reader.rounds:
        for play, by_client in reader.revealed_by_client(ScoreDerivatives, exchange):
            for items in by_client.values():
                derivatives[play.round] = items[0]
            used += [exchange] if by_client else []
    if not derivatives:
        return None
    gradients = list[tuple[int, int, Array]]()
    for exchange in reader.rounds:
        for play, parts in reader.revealed_by_client(MeanGradient, exchange, FEW):
            if play.round in derivatives:
                firsts = [
                    (client, gradient.gradient.first)
                    for client in parts
                    for gradient in parts[client]
                    if gradient.parts
                ]
                gradients += [(play.round, client, first) for client, first in firsts]
                used += [exchange] if firsts else []
    recovery = _Recovery(reader, used)
    for round, client, first in gradients:
        shard, derivative = reader.replay.shards[client], derivatives[round]
        solved = rows_from_slopes(first, derivative.derivatives)
        recovery.add(
            solved, dense_rows(shard, np.searchsorted(shard.rows, np.asarray(derivative.rows))), len(derivative.rows)
        )
    return recovery.result(LINEAR, "independent derivatives")


def _from_duals(reader: Reader) -> AttackResult | None:
    """From X'alpha and the dual variables themselves."""
    weights, used = _weights_of_rows(reader)
    if not weights:
        return None
    sums, moved = defaultdict[int, list[Floats]](list), defaultdict[int, list[Floats]](list)
    for exchange in reader.rounds:
        for play, by_client in reader.revealed_by_client(DualSum, exchange):
            number, weight = weights.get(play.round, (0, np.zeros(0)))
            if not len(weight) or reader.position(exchange) < number:  # sent before the steps of this round
                continue
            used += [exchange]
            for client, items in by_client.items():
                sums[client] += [np.asarray(dual_sum.values) for dual_sum in items]
                moved[client] += [weight[reader.replay.shards[client].rows] for _ in items]
    recovery = _Recovery(reader, used)
    for client in sorted(sums)[:FEW]:
        shard, steps = reader.replay.shards[client], np.array(moved[client])
        at = np.flatnonzero(steps.any(axis=0))  # rows that are in an equation
        if len(at) * shard.features > LARGEST:
            recovery.nothing(shard.samples, len(steps), len(at))
            continue
        solved = rows_from_duals(steps[:, at], np.array(sums[client]), 1.0)
        recovery.add(solved, dense_rows(shard, at), shard.samples)
    return recovery.result(LINEAR, "equations for the rows whose dual variables changed")


def _weights_of_rows(reader: Reader) -> tuple[dict[int, tuple[int, Floats]], list[Exchange]]:
    """({round: (index of the exchange, [N] weights of rows)}, exchanges) from all steps since the first round."""
    weights, used = dict[int, tuple[int, Floats]](), list[Exchange]()
    samples = reader.replay.algorithm.problem.samples
    for exchange in reader.rounds:
        now = before = np.zeros(samples)
        last = dict[int, Floats]()
        for play, by_client in reader.revealed_by_client(DualVariables, exchange):
            if not by_client:
                continue
            variables = [variable for of_client in by_client.values() for variable in of_client]
            sent = {
                client: np.sum([_placed(variable, samples) for variable in of_client], axis=0)
                for client, of_client in by_client.items()
            }
            last = last | sent if variables[0].lasting else sent
            by, by_last = variables[0].before
            now, before = np.sum(list(last.values()), axis=0) + by * now + by_last * before, now
            weights[play.round] = reader.position(exchange), now
            used += [exchange]
    return weights, used


def _placed(variables: DualVariables, samples: int) -> Floats:
    values = np.zeros(samples)
    values[np.asarray(variables.rows)] = variables.values
    return values


class _Recovery:
    """Rows recovered from systems of equations, compared with the true rows."""

    def __init__(self, reader: Reader, used: Iterable[Exchange]) -> None:
        self._seen = _seen(reader, used)
        self._there = self._good = self._got = self._needed = 0
        self._worst = 0.0  # relative error of a recovered row
        self._pairs: list[tuple[Floats, Floats]] = []

    def nothing(self, there: int, got: int, needed: int) -> None:
        """Count a client of whose rows none can be solved for: too few equations, or too many numbers."""
        self._there, self._got, self._needed = self._there + there, max(self._got, got), max(self._needed, needed)

    def add(self, solved: Solved, truth: Floats, there: int) -> None:
        """Count the rows that equations determine and that match the true ones, of `there` rows of a client."""
        self.nothing(there, int(solved.rank.max(initial=0)), solved.needed)
        for at in np.flatnonzero(solved.determined.all(axis=1)):
            matched = match(solved.rows[at], truth[at : at + 1])
            if matched.verdict == "row":
                self._good, self._worst = self._good + 1, max(self._worst, matched.relative_error)
                self._pairs.append((solved.rows[at], truth[at]))

    def result(self, attack: str, what: str) -> AttackResult:
        text = f"{self._good} of {self._there} rows recovered in a client's columns"
        text += f" with a relative error of at most {self._worst:.1g}" if self._good else ""
        text += f"; {self._got} {what}, {self._needed} needed for all of them"
        return AttackResult(
            attack, "server", self._seen, True, self._good > 0, text, self._good, self._there,
            *pictures(self._pairs),
        )  # fmt: skip
