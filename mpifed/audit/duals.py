"""Attacks on algorithms that work on dual variables, HyFDCA, bundles and CoCoA+: rows from what the server hears.

T. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning" (AAAI 2024, arXiv:2210.08106),
section 3.2, has dual variables and inner products encrypted, since whoever sees either beside the model solves for the
rows. X'alpha of every client travels in the clear there, see `mpifed.audit.changes`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from mpifed.algorithms.bundle import Bundle
from mpifed.algorithms.cocoa import CoCoA
from mpifed.algorithms.hyfdca import HyFDCA
from mpifed.audit.attacks.linear import rows_from_duals, rows_from_products
from mpifed.audit.attacks.matching import match
from mpifed.audit.attempt import LINEAR, PRODUCTS, Attempt, Floats, none
from mpifed.audit.changes import from_changes
from mpifed.audit.heard import HIDDEN, Heard, pictures
from mpifed.audit.stage import Stage, dense_rows
from mpifed.run.transcript import Message

FEW = 4  # clients whose rows are solved for
LARGEST = 2**24  # numbers in the rows of a client that are solved for

# what clients answer with inner products: the names of the weights in the question, and of the products in the answer
_PRODUCTS = {"products": ("w", "value"), "power-products": ("value", "value"), "all-products": ("first", "scores")}


def works_on_duals(stage: Stage) -> bool:
    """Whether clients send sums over their dual variables."""
    return isinstance(stage.algorithm, (HyFDCA, Bundle, CoCoA))


def on_duals(stage: Stage, messages: tuple[Message, ...]) -> Iterator[Attempt]:
    """Rows from inner products, from dual variables, and from changes of sums over them."""
    exchanges = Heard(stage, messages)
    yield _from_products(stage, exchanges)
    yield _from_duals(stage, exchanges)
    yield from from_changes(stage, exchanges)


def trust(stage: Stage) -> Iterator[str]:
    """What of HyFDCA's trust model holds in this job, in words."""
    algorithm: Any = stage.algorithm
    if not isinstance(algorithm, (HyFDCA, Bundle)):
        return
    plain, sums = stage.transcript.channel == "plain", "X'alpha" if isinstance(algorithm, HyFDCA) else "X'u of planes"
    whose = "of every client" if plain or algorithm.primal == "clear" else "summed over the holders of each column"
    never = "; in the plain channel it sees dual variables and inner products, too" if plain else ""
    yield (
        f"HyFDCA's trust model: the server knows w, and {sums}, {whose}; dual variables and inner products are for "
        f"the clients who hold the samples alone{never}"
    )
    holders = stage.cells.rows.holders
    if (holders == 2).any():
        yield (
            f"{int((holders == 2).sum())} samples have two holders: each of them learns what the other one told of "
            "them, as the sum less its own"
        )


# --- inner products, and dual variables ------------------------------------------------------------------------------


def _from_products(stage: Stage, exchanges: Heard) -> Attempt:
    """A client's columns of its rows, from their inner products with weights that the server has sent."""
    names = [name for name in _PRODUCTS if name in exchanges and exchanges.plays(name)]
    if not names:
        return none(PRODUCTS, "no client sends inner products")
    if not exchanges.readable(names[0]):
        return none(PRODUCTS, HIDDEN, seen="sealed uploads")
    weights, products = defaultdict[int, list[Floats]](list), defaultdict[int, list[Floats]](list)
    for name in names:
        asked, leaf = _PRODUCTS[name]
        for play, answers in exchanges.answers(name, leaf):
            for client in sorted(answers)[:FEW] if asked in play.question else ():
                shard = stage.shards[client]
                weights[client].append(np.asarray(play.question[asked], dtype=np.float64).reshape(-1)[shard.columns])
                products[client].append(answers[client].reshape(-1)[shard.rows])
    found = _Solved(exchanges.seen(names[0]))
    for client, shard in _few(stage, weights):
        count, needed = len(weights[client]), shard.features
        if count < needed or shard.samples * needed > LARGEST:
            found.add(shard.samples, count, needed, np.zeros((0, needed)), np.zeros((0, needed)))
            continue
        solved = rows_from_products(np.array(weights[client]), np.array(products[client]))
        at = np.flatnonzero(solved.determined.all(axis=1))
        rank = int(solved.rank.max(initial=0))
        found.add(shard.samples, rank, needed, solved.rows[at], dense_rows(shard, at))
    return found.attempt(PRODUCTS, "equations a row")


def _from_duals(stage: Stage, exchanges: Heard) -> Attempt:
    """A client's columns of its rows, from its X'alpha and the dual variables themselves."""
    algorithm = stage.algorithm
    if not isinstance(algorithm, HyFDCA) or "duals" not in exchanges:
        return none(LINEAR, "no client sends dual variables")
    if not (exchanges.readable("duals") and exchanges.readable("primal")):
        return none(LINEAR, HIDDEN, seen="sealed uploads")
    moved, pulled = _weights_of_rows(algorithm, exchanges), defaultdict[int, list[Floats]](list)
    rounds = defaultdict[int, list[Floats]](list)
    for play, answers in exchanges.answers("primal", "pulled"):
        for client in sorted(answers) if play.round in moved else ():
            pulled[client].append(answers[client][stage.shards[client].columns])
            rounds[client].append(moved[play.round][stage.shards[client].rows])
    found = _Solved(exchanges.seen("duals"))
    for client, shard in _few(stage, pulled):
        left = np.array(rounds[client])
        at = np.flatnonzero(left.any(axis=0))  # others are in no equation
        if len(at) * shard.features > LARGEST:
            found.add(shard.samples, len(left), len(at), np.zeros((0, 1)), np.zeros((0, 1)))
            continue
        solved = rows_from_duals(left[:, at], np.array(pulled[client]), 1.0)
        fixed = np.flatnonzero(solved.determined.all(axis=1))
        rank = int(solved.rank.max(initial=0))
        found.add(shard.samples, rank, len(at), solved.rows[fixed], dense_rows(shard, at[fixed]))
    return found.attempt(LINEAR, "equations for the rows that moved")


def _weights_of_rows(algorithm: HyFDCA, exchanges: Heard) -> dict[int, Floats]:
    """[N] by round: with which weights rows enter X'alpha, by whoever hears the steps from the first round on."""
    alpha = before = np.zeros(algorithm.problem.samples)
    last, found = dict[int, Floats](), dict[int, Floats]()
    stale = any(one.name == "duals" and one.stale for one in algorithm.exchanges)
    first = "products" if "products" in exchanges else "duals"
    asked = {play.round: play.question for play in exchanges.plays(first)}
    for play, answers in exchanges.answers("duals", "value"):
        if stale:
            last |= answers
            found[play.round] = np.sum(list(last.values()), axis=0)
            continue
        step = np.sum(list(answers.values()), axis=0)
        if algorithm.rule == "accelerated":
            ahead = alpha + float(asked[play.round].get("number", 0.0)) * (alpha - before)
            alpha, before = ahead + step, alpha
        else:
            alpha = alpha + step
        found[play.round] = step if algorithm.rule == "line-search" else alpha
    return found


def _few(stage: Stage, known: Any) -> list[tuple[int, Any]]:
    return [(client, stage.shards[client]) for client in sorted(known)[:FEW]]


class _Solved:
    """What systems of equations were solved for, beside the truth."""

    def __init__(self, seen: str) -> None:
        self._seen = seen
        self._there = self._good = self._got = self._needed = 0
        self._worst = 0.0  # relative error of those recovered
        self._pairs: list[tuple[Floats, Floats]] = []

    def add(self, there: int, got: int, needed: int, rows: Floats, truth: Floats) -> None:
        """Of a client with `there` rows: the equations, and the rows that they determine, beside the truth."""
        self._there, self._got, self._needed = self._there + there, max(self._got, got), max(self._needed, needed)
        for row, one in zip(rows, truth, strict=True):
            found = match(row, one[None])
            if found.verdict == "row":
                self._good, self._worst = self._good + 1, max(self._worst, found.relative_error)
                self._pairs.append((row, one))

    def attempt(self, attack: str, what: str) -> Attempt:
        """How far it came."""
        text = f"{self._good} of {self._there} rows of a client's columns recovered"
        text += f", to a relative error of {self._worst:.1g}" if self._good else ""
        text += f"; {self._got} {what}, {self._needed} needed"
        return Attempt(
            attack, "server", self._seen, True, self._good > 0, text, self._good, self._there, *pictures(self._pairs)
        )  # fmt: skip
