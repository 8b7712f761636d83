"""Attacks by linear equations between what the server has collected of each client: rows from products, or from duals.

T. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning" (AAAI 2024, arXiv:2210.08106),
section 3.2, has dual variables and inner products encrypted, since whoever sees either beside the model solves for the
rows. The same holds of partial scores, and of derivatives by them, where data are split by columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mpifed.audit.attacks.linear import Solved, rows_from_duals, rows_from_scores, rows_from_slopes
from mpifed.audit.attacks.matching import match
from mpifed.audit.attempt import LINEAR, PRODUCTS, Attempt, Floats, none
from mpifed.audit.changes import from_changes
from mpifed.audit.reader import EACH, HIDDEN, SEALED, Reader, pictures
from mpifed.audit.stage import dense_rows
from mpifed.audit.undeclared import as_products
from mpifed.core.exchange import Exchange
from mpifed.core.reveals import DualSum, DualVariables, InnerProducts, MeanGradient, ScoreDerivatives

FEW = 4  # clients that are attacked
LARGEST = 2**24  # numbers in the rows of a client that are solved for
UPLOADS = "each client's uploads"


def systems(reader: Reader) -> Iterator[Attempt]:
    """Systems of linear equations that the server has collected over the recorded rounds."""
    yield _products(reader)
    yield _linear(reader)
    yield from from_changes(reader)


def _seen(reader: Reader, exchanges: Iterable[Exchange]) -> str:
    return SEALED if any(reader.seen(one) != EACH for one in exchanges) else UPLOADS


def _hidden(reader: Reader) -> bool:
    """Whether answers travel that nobody can read."""
    return any(not reader.readable(one) for one in reader.rounds)


# --- inner products --------------------------------------------------------------------------------------------------


class _Products(NamedTuple):
    """What was collected of one client, exchange by exchange."""

    rows: list[Any]  # T arrays [b]
    products: list[Any]  # T arrays [b, h]
    weights: list[Any]  # T arrays [p_i, h]

    def add(self, one: InnerProducts) -> None:
        """Those of one answer."""
        self.rows.append(np.asarray(one.rows))
        self.products.append(one.products)
        self.weights.append(one.weights)


def _products(reader: Reader) -> Attempt:
    """A client's columns of its rows, from their inner products with weights that the server has sent."""
    used, found = list[Exchange](), defaultdict[int, _Products](lambda: _Products([], [], []))
    for exchange in reader.exchanges.values():
        for _, each in reader.told(InnerProducts, exchange, FEW):
            used += [exchange] if each else []
            for client, several in each.items():
                for one in several:
                    found[client].add(one)
    tried = [_from_products(reader, used, found)] if found else []
    tried += list(_guessed(reader, reader.guessed))
    if tried:
        return next((one for one in tried if one.success), tried[0])
    if _hidden(reader):
        return none(PRODUCTS, HIDDEN, seen="sealed uploads")
    return none(PRODUCTS, f"no client sends inner products of its rows with what the server knows{reader.by_word}")


def unsaid_products(reader: Reader, explained: set[str]) -> Iterator[Attempt]:
    """Guesses that succeed, where what the algorithm says of an exchange has led to nothing; and beside the rounds."""
    known = explained | {one.name for one in reader.guessed}
    others = [one for name, one in reader.exchanges.items() if name not in known and reader.readable(one)]
    clear = [one for one in others if reader.seen(one) == EACH]  # of what is sealed nothing is left
    yield from (one for one in _guessed(reader, clear) if one.success)


def _guessed(reader: Reader, exchanges: Iterable[Exchange]) -> Iterator[Attempt]:
    """The same, of answers of which the algorithm says nothing: each guess by itself."""
    for exchange in exchanges:
        found: dict[str, dict[int, _Products]] = {}
        for play in reader.plays(exchange):
            for client in sorted(play.uploads)[:FEW]:
                received = reader.of_client(exchange, play, client)
                for guess, one in [] if received is None else as_products(reader, received):
                    of_client = found.setdefault(guess, {}).setdefault(client, _Products([], [], []))
                    of_client.add(one)
        for guess, each in found.items():
            one_ = _from_products(reader, [exchange], each)
            yield one_._replace(text=f"{one_.text}; taken for {guess}")


def _from_products(reader: Reader, used: list[Exchange], collected: dict[int, _Products]) -> Attempt:
    found = _Found(reader, used)
    for client, one in sorted(collected.items())[:FEW]:
        shard = reader.stage.shards[client]
        needed, equations = shard.features, sum(weights.shape[1] for weights in one.weights)
        there = np.unique(np.concatenate(one.rows))
        if equations < needed or len(there) * needed > LARGEST:
            found.nothing(len(there), equations, needed)
            continue
        numbers, solved = rows_from_scores(one.rows, one.products, one.weights)
        at = np.asarray(np.searchsorted(shard.rows, numbers), dtype=np.int64)
        found.add(solved, dense_rows(shard, at), len(numbers))
    return found.attempt(PRODUCTS, "equations a row")


# --- what rows were multiplied with ----------------------------------------------------------------------------------


def _linear(reader: Reader) -> Attempt:
    """A client's columns of its rows, from sums over them and what each was multiplied with."""
    found = _from_derivatives(reader) or _from_duals(reader)
    if found is not None:
        return found
    if _hidden(reader):
        return none(LINEAR, HIDDEN, seen="sealed uploads")
    why = "no client sends dual variables, or derivatives by scores, beside what follows from them"
    return none(LINEAR, why + reader.by_word)


def _from_derivatives(reader: Reader) -> Attempt | None:
    """From gradients of columns, and the derivatives of the loss by the scores that somebody told in their round."""
    told: dict[int, ScoreDerivatives] = {}
    used = list[Exchange]()
    for exchange in reader.rounds:
        for play, each in reader.told(ScoreDerivatives, exchange):
            for several in each.values():
                told[play.round] = several[0]
            used += [exchange] if each else []
    if not told:
        return None
    gradients = list[tuple[int, int, Any]]()
    for exchange in reader.rounds:
        for play, parts in reader.told(MeanGradient, exchange, FEW):
            if play.round in told:
                firsts = [(client, one.gradient.first) for client in parts for one in parts[client] if one.parts]
                gradients += [(play.round, client, first) for client, first in firsts]
                used += [exchange] if firsts else []
    found = _Found(reader, used)
    for round, client, first in gradients:
        shard, one = reader.stage.shards[client], told[round]
        solved = rows_from_slopes(first, one.derivatives)
        found.add(solved, dense_rows(shard, np.searchsorted(shard.rows, np.asarray(one.rows))), len(one.rows))
    return found.attempt(LINEAR, "independent derivatives")


def _from_duals(reader: Reader) -> Attempt | None:
    """From its X'alpha and the dual variables themselves."""
    weights, used = _weights_of_rows(reader)
    if not weights:
        return None
    sums, moved = defaultdict[int, list[Floats]](list), defaultdict[int, list[Floats]](list)
    for exchange in reader.rounds:
        for play, each in reader.told(DualSum, exchange):
            number, weight = weights.get(play.round, (0, np.zeros(0)))
            if not len(weight) or reader.position(exchange) < number:  # of before this round's steps
                continue
            used += [exchange]
            for client, several in each.items():
                sums[client] += [np.asarray(one.values) for one in several]
                moved[client] += [weight[reader.stage.shards[client].rows] for _ in several]
    found = _Found(reader, used)
    for client in sorted(sums)[:FEW]:
        shard, left = reader.stage.shards[client], np.array(moved[client])
        at = np.flatnonzero(left.any(axis=0))  # others are in no equation
        if len(at) * shard.features > LARGEST:
            found.nothing(shard.samples, len(left), len(at))
            continue
        solved = rows_from_duals(left[:, at], np.array(sums[client]), 1.0)
        found.add(solved, dense_rows(shard, at), shard.samples)
    return found.attempt(LINEAR, "equations for the rows that moved")


def _weights_of_rows(reader: Reader) -> tuple[dict[int, tuple[int, Floats]], list[Exchange]]:
    """({round: (exchange's number, [N] weights of rows)}, exchanges) by whoever hears all steps from the first on."""
    found, used = dict[int, tuple[int, Floats]](), list[Exchange]()
    samples = reader.stage.algorithm.problem.samples
    for exchange in reader.rounds:
        now = before = np.zeros(samples)
        last = dict[int, Floats]()
        for play, each in reader.told(DualVariables, exchange):
            if not each:
                continue
            several = [one for items in each.values() for one in items]
            sent = {client: np.sum([_placed(one, samples) for one in items], axis=0) for client, items in each.items()}
            last = last | sent if several[0].lasting else sent
            by, by_last = several[0].before
            now, before = np.sum(list(last.values()), axis=0) + by * now + by_last * before, now
            found[play.round] = reader.position(exchange), now
            used += [exchange]
    return found, used


def _placed(one: DualVariables, samples: int) -> Floats:
    """[N]"""
    found = np.zeros(samples)
    found[np.asarray(one.rows)] = one.values
    return found


class _Found:
    """What systems of equations were solved for, beside the truth."""

    def __init__(self, reader: Reader, used: Iterable[Exchange]) -> None:
        self._seen, self._exchanges = _seen(reader, used), tuple({one.name: None for one in used})
        self._there = self._good = self._got = self._needed = 0
        self._worst = 0.0  # relative error of those recovered
        self._pairs: list[tuple[Floats, Floats]] = []

    def nothing(self, there: int, got: int, needed: int) -> None:
        """Of a client with so many rows there are too few equations, or too many numbers."""
        self._there, self._got, self._needed = self._there + there, max(self._got, got), max(self._needed, needed)

    def add(self, solved: Solved, truth: Floats, there: int) -> None:
        """The rows that equations determine, beside the truth, of so many that are there."""
        self.nothing(there, int(solved.rank.max(initial=0)), solved.needed)
        for at in np.flatnonzero(solved.determined.all(axis=1)):
            found = match(solved.rows[at], truth[at : at + 1])
            if found.verdict == "row":
                self._good, self._worst = self._good + 1, max(self._worst, found.relative_error)
                self._pairs.append((solved.rows[at], truth[at]))

    def attempt(self, attack: str, what: str) -> Attempt:
        """How far it came."""
        text = f"{self._good} of {self._there} rows of a client's columns recovered"
        text += f", to a relative error of {self._worst:.1g}" if self._good else ""
        text += f"; {self._got} {what}, {self._needed} needed for all of them"
        return Attempt(
            attack, "server", self._seen, True, self._good > 0, text, self._good, self._there,
            *pictures(self._pairs), self._exchanges,
        )  # fmt: skip
