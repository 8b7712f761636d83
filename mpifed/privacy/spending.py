"""What each client has released so far, and the epsilons that follow; uses neither files nor MPI."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.algorithm import Algorithm
from mpifed.maths.privacy import accounting, paper
from mpifed.maths.privacy.release import Release
from mpifed.maths.privacy.settings import Privacy

Spent = dict[tuple[float, float], int]  # how many mechanisms of a (multiplier, rate)
Floats = NDArray[np.float64]
_LEVELS = 256  # of multipliers that are distinguished where clients are compared
_PARTS_OF_DELTA = (1e-9, 1e-3, 0.5)  # set aside for how integers are drawn; nearly always the first is enough
_STEEPEST = 100.0  # epsilon above which no part of delta is enough
DRAWN = 1e12 * 1e-37  # total variation of as many numbers as a run draws at most, see tests/unit/maths/test_discrete.py
_STEEP = 50.0  # of 1 / multiplier^2, above which order no longer matters


class Costs(NamedTuple):
    """Epsilons at the job's delta; infinite without noise."""

    epsilon: float  # of the client who has spent most
    epsilon_unamplified: float  # the largest, if the drawn clients and records were public
    epsilon_paper: float  # the largest by the paper's formula; NaN where that does not apply
    epsilon_if_secret: float = math.nan  # the largest if the noise were secret and integer; NaN where it is


def without_epsilon(algorithm: Algorithm) -> bool:
    """Whether a private algorithm has so little noise that not even a single round has a finite epsilon."""
    if algorithm.problem.privacy is None:
        return False
    first_round = Spending.of_a_round(algorithm)
    groups = first_round.groups()
    return math.isinf(max(first_round.unamplified_of(group.spent) for group in groups)) and math.isinf(
        first_round.worst(groups)
    )


class Group(NamedTuple):
    """Clients who have released the same."""

    row: Floats  # [kinds, 5] mechanisms of each kind, multiplier and rate, and the paper's
    clients: NDArray[np.int64]

    @property
    def spent(self) -> Spent:
        """The mechanisms of each of these clients, in the form that the accountants take."""
        return self._summed(1)

    @property
    def paper(self) -> Spent:
        """The same mechanisms as the paper counts them; NaN where it does not apply."""
        return self._summed(3)

    def _summed(self, start: int) -> Spent:
        counts: Spent = {}
        for count, *kind in self.row[self.row[:, 0] > 0][:, [0, start, start + 1]].tolist():
            counts[kind[0], kind[1]] = counts.get((kind[0], kind[1]), 0) + int(count)
        return counts

    @property
    def weight(self) -> float:
        """Orders clients roughly by epsilon: for many mechanisms, the sum of q^2 (exp(1 / multiplier^2) - 1)."""
        count, _, rate = self.row[:, :3].T
        return float((count * rate**2 * np.expm1(np.minimum(self._inverse, _STEEP))).sum())

    @property
    def plain_weight(self) -> float:
        """Orders clients by epsilon without amplification."""
        return float((self.row[:, 0] * self._inverse).sum())

    @property
    def _inverse(self) -> Floats:
        """[kinds] 1 / multiplier^2; infinite without noise, 0 without mechanisms."""
        with np.errstate(divide="ignore"):
            return np.where(self.row[:, 0] > 0, self.row[:, 1] ** -2.0, 0.0)


class _Kind(NamedTuple):
    """A release, and how often each client took part in it."""

    release: Release
    rounds: NDArray[np.int64]  # [N]


class Spending:
    """Counts releases, by client."""

    def __init__(self, privacy: Privacy, clients: int) -> None:
        self.privacy, self.clients = privacy, clients
        self.rounds = np.zeros(clients, np.int64)  # [N] in which a client took part
        self._kinds: dict[tuple[object, ...], _Kind] = {}  # by the contents of a release
        self._known: dict[frozenset[tuple[tuple[float, float], int]], float] = {}  # epsilons

    @classmethod
    def of_a_round(cls, algorithm: Algorithm) -> Spending:
        """The spending of the first round of a private algorithm, with all clients participating."""
        privacy = algorithm.problem.privacy
        assert privacy is not None  # the algorithm is private
        spending = cls(privacy, algorithm.problem.clients)
        spending.add(algorithm.released(0), np.ones(spending.clients, dtype=bool))
        return spending

    def add(self, release: Release, present: NDArray[np.bool_], times: int = 1) -> None:
        """Count a round that is run `times` times, with the participating clients [N] `present`."""
        key = (release.mechanisms, release.by_chance, *(np.asarray(field).tobytes() for field in release[1:5]))
        if key not in self._kinds:
            self._kinds[key] = _Kind(release, np.zeros(self.clients, np.int64))
        counts = times * (np.ones(self.clients, np.int64) if release.by_chance else present)
        self._kinds[key].rounds[...] += counts
        self.rounds += counts

    def copy(self) -> Spending:
        """A copy with counts of its own; epsilons already computed are shared."""
        other = copy.copy(self)
        other.rounds = self.rounds.copy()
        other._kinds = {key: _Kind(kind.release, kind.rounds.copy()) for key, kind in self._kinds.items()}
        return other

    def groups(self) -> list[Group]:
        """The clients, grouped by what they have released."""
        if not self._kinds:
            return [Group(np.zeros((0, 5)), np.arange(self.clients))]
        table = self._table()
        flat = np.nan_to_num(table.reshape(self.clients, -1), nan=-1.0, posinf=np.inf)
        _, first, inverse = np.unique(flat, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(inverse.reshape(-1), kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(inverse.reshape(-1)))[:-1])
        return [Group(table[i], part) for i, part in zip(first, parts, strict=True)]

    def _table(self) -> Floats:
        """[N, kinds, 5] mechanisms of each kind, multiplier and rate, and the paper's; zeros without mechanisms."""
        table = np.zeros((self.clients, len(self._kinds), 5))
        for column, (release, rounds) in zip(table.swapaxes(0, 1), self._kinds.values(), strict=True):
            column[:, 0] = release.mechanisms * rounds
            column[:, 1:] = np.stack(release[1:5], axis=1)
            column[(column[:, 0] == 0) | np.isinf(column[:, 1])] = 0.0
        return table

    def epsilon_of(self, spent: Spent) -> float:
        """Epsilon of a client at the job's delta; 0 where nothing was released."""
        if not spent:
            return 0.0
        key, sampling = frozenset(spent.items()), self.privacy.sampling
        if key not in self._known:
            self._known[key] = self._of_numbers(lambda delta: accounting.epsilon(spent, delta, sampling=sampling))
        return self._known[key]

    def _of_numbers(self, epsilon: Callable[[float], float]) -> float:
        """Epsilon at the job's delta, given as a function of delta, for noise that is drawn as integers.

        Numbers within a total variation of t of those accounted for are (epsilon, delta + (1 + exp(epsilon)) t)-private
        where those are (epsilon, delta)-private. Above an epsilon of about 45 no delta is left.
        """
        delta = self.privacy.delta
        if self.privacy.distribution == "float":
            return epsilon(delta)
        for part in _PARTS_OF_DELTA:
            value = epsilon(delta * (1 - part))
            if value == math.inf or (value < _STEEPEST and (1 + math.exp(value)) * DRAWN <= part * delta):
                return value
        return math.inf

    def worst(self, groups: Iterable[Group] | None = None) -> float:
        """The epsilon of the client who has spent most; see `undone` for the clients that need be considered."""
        return max(self.epsilon_of(group.spent) for group in undone(self.groups() if groups is None else groups))

    def worst_with(self, part: float) -> float:
        """The same if only the share `part` of the noise's variance were unknown to the attacker."""
        root, epsilons = math.sqrt(part), [0.0]
        for group in undone(self.groups()):
            unknown_noise = {(multiplier * root, rate): count for (multiplier, rate), count in group.spent.items()}
            epsilons.append(self.epsilon_of(unknown_noise))
        return max(epsilons)

    def costs(self) -> Costs:
        """All the epsilons so far; without protection only those whose names say that they are conditional."""
        if not self.privacy.protects:
            return Costs(math.nan, math.nan, self.worst_paper(), self.worst())
        groups = self.groups()
        least_hidden = max(groups, key=lambda group: group.plain_weight)
        return Costs(self.worst(groups), self.unamplified_of(least_hidden.spent), self.worst_paper(groups))

    def unamplified_of(self, spent: Spent) -> float:
        """Epsilon of a client if the drawn clients and records were public."""
        return self._of_numbers(lambda delta: accounting.unamplified(spent, delta))

    def worst_paper(self, groups: Iterable[Group] | None = None) -> float:
        """The largest epsilon by the paper's formula; NaN where it does not apply to some client."""
        groups = self.groups() if groups is None else groups
        return float(np.max([paper.composed(group.paper, self.privacy.delta) for group in groups]))


def sayable(privacy: Privacy, epsilon: float) -> bool:
    """Whether noise that is drawn as integers can have this epsilon at the job's delta."""
    if privacy.distribution == "float":
        return True
    return epsilon < _STEEPEST and (1 + math.exp(epsilon)) * DRAWN <= max(_PARTS_OF_DELTA) * privacy.delta


def undone(groups: Iterable[Group]) -> list[Group]:
    """The groups that no other dominates, by descending weight: no client of the rest has a larger epsilon.

    A group dominates another whose rates are no higher than its lowest rate, and which has, for every multiplier, no
    more mechanisms with at most that multiplier: then each mechanism of the other can be paired with a mechanism of
    the first that reveals as much or more.
    """
    order = sorted(groups, key=lambda group: -group.weight)
    count, multiplier, rate = np.moveaxis(np.stack([group.row for group in order])[..., :3], -1, 0)  # [groups, kinds]
    occurs = count > 0
    lowest = np.where(occurs, rate, 1.0).min(axis=1, initial=1.0)
    highest = np.where(occurs, rate, 0.0).max(axis=1, initial=0.0)
    least, most = _counts_up_to(count, multiplier, occurs)
    undominated: list[int] = []
    for i in range(len(order)):
        dominating = (least[undominated] >= most[i]).all(axis=1) & (lowest[undominated] >= highest[i])
        if not dominating.any():
            undominated.append(i)
    return [order[i] for i in undominated]


def _counts_up_to(count: Floats, multiplier: Floats, occurs: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """[groups, levels] lower and upper bounds on how many mechanisms have at most the multiplier of a level.

    The levels are all multipliers that occur, and quantiles of them where there are very many.
    """
    levels = np.unique(multiplier[occurs])
    if len(levels) > _LEVELS:
        levels = np.quantile(levels, np.linspace(0, 1, _LEVELS), method="closest_observation")
    least, most = np.zeros((2, len(count), len(levels)))
    positions = np.nonzero(occurs)
    np.add.at(least, (positions[0], np.searchsorted(levels, multiplier[positions], side="left")), count[positions])
    np.add.at(most, (positions[0], np.searchsorted(levels, multiplier[positions], side="right") - 1), count[positions])
    return np.cumsum(least, axis=1), np.cumsum(most, axis=1)
