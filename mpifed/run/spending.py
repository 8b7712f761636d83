"""What each client has released so far, and the epsilons that it comes to; no files, no ranks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.maths.privacy import accounting, paper
from mpifed.maths.privacy.release import Release
from mpifed.maths.privacy.settings import Privacy

Spent = dict[tuple[float, float], int]  # how many mechanisms of a (multiplier, rate)
Floats = NDArray[np.float64]
_LEVELS = 256  # of multipliers that are told apart where clients are compared
_STEP = 1.05  # of roundings
_PARTS_OF_DELTA = (1e-9, 1e-3, 0.5)  # set aside for how integers are drawn; nearly always the first is enough
_STEEPEST = 100.0  # epsilon above which nothing is enough
DRAWN = 1e12 * 1e-37  # total variation of as many numbers as a run draws at most, see `discrete.closeness`
_STEEP = 50.0  # of 1 / multiplier^2, above which order no longer matters


class Costs(NamedTuple):
    """Epsilons at the job's delta; infinite where there is no noise."""

    epsilon: float  # of the client who has spent most
    epsilon_median: float
    epsilon_least: float
    epsilon_unamplified: float  # the most, if who and what was drawn had been public
    epsilon_paper: float  # the most by the paper's formula; NaN where it says nothing
    epsilon_if_secret: float = math.nan  # the most if the noise were secret and whole; NaN where it is


def without_epsilon(algorithm: Any) -> bool:
    """Whether a private algorithm's noise is so little that not even one round has an epsilon."""
    if algorithm.problem.privacy is None:
        return False
    once = Spending.of_a_round(algorithm)
    groups = once.groups()
    return math.isinf(max(once.unamplified_of(group.spent) for group in groups)) and math.isinf(once.worst(groups))


class Group(NamedTuple):
    """Clients who have released alike."""

    row: Floats  # [kinds, 5] mechanisms of each kind, multiplier and rate, and the paper's
    clients: NDArray[np.int64]

    @property
    def spent(self) -> Spent:
        """What each of them has released, as the accountants take it."""
        return self._summed(1)

    @property
    def paper(self) -> Spent:
        """The same as the paper states it; NaN where it says nothing."""
        return self._summed(3)

    def _summed(self, start: int) -> Spent:
        found: Spent = {}
        for count, *kind in self.row[self.row[:, 0] > 0][:, [0, start, start + 1]].tolist():
            found[kind[0], kind[1]] = found.get((kind[0], kind[1]), 0) + int(count)
        return found

    @property
    def weight(self) -> float:
        """Orders clients, roughly as their epsilons do: of many mechanisms q^2 (exp(1 / multiplier^2) - 1) adds up."""
        count, _, rate = self.row[:, :3].T
        return float((count * rate**2 * np.expm1(np.minimum(self._inverse, _STEEP))).sum())

    @property
    def plain_weight(self) -> float:
        """Orders clients as their epsilons without amplification do."""
        return float((self.row[:, 0] * self._inverse).sum())

    @property
    def _inverse(self) -> Floats:
        """[kinds] 1 / multiplier^2; infinite without noise, 0 where nothing was done."""
        with np.errstate(divide="ignore"):
            return np.where(self.row[:, 0] > 0, self.row[:, 1] ** -2.0, 0.0)


class _Kind(NamedTuple):
    """A release and how often each client was in it."""

    release: Release
    rounds: NDArray[np.int64]  # [N]


class Spending:
    """Counts releases, by client."""

    def __init__(self, privacy: Privacy, clients: int) -> None:
        self.privacy, self.clients = privacy, clients
        self.rounds = np.zeros(clients, np.int64)  # [N] in which a client counted
        self._kinds: dict[tuple[object, ...], _Kind] = {}  # by what a release says
        self._known: dict[tuple[str, frozenset[tuple[tuple[float, float], int]]], float] = {}  # epsilons

    @classmethod
    def of_a_round(cls, algorithm: Any) -> Spending:
        """The first round of a private algorithm, with everybody in it."""
        once = cls(algorithm.problem.privacy, algorithm.problem.clients)
        once.add(algorithm.released(0), np.ones(once.clients, dtype=bool))
        return once

    def add(self, release: Release, present: NDArray[np.bool_], times: int = 1) -> None:
        """A round is played `times` times over with these clients [N] present."""
        key = (release.mechanisms, release.by_chance, *(np.asarray(one).tobytes() for one in release[1:5]))
        if key not in self._kinds:
            self._kinds[key] = _Kind(release, np.zeros(self.clients, np.int64))
        counts = times * (np.ones(self.clients, np.int64) if release.by_chance else present)
        self._kinds[key].rounds[...] += counts
        self.rounds += counts

    def copy(self) -> Spending:
        """The same, to be added to on its own; what was computed once is shared."""
        other = copy.copy(self)
        other.rounds = self.rounds.copy()
        other._kinds = {key: _Kind(kind.release, kind.rounds.copy()) for key, kind in self._kinds.items()}
        return other

    def groups(self) -> list[Group]:
        """The clients, by what they have released."""
        if not self._kinds:
            return [Group(np.zeros((0, 5)), np.arange(self.clients))]
        table = self._table()
        flat = np.nan_to_num(table.reshape(self.clients, -1), nan=-1.0, posinf=np.inf)
        _, first, which = np.unique(flat, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(which.reshape(-1), kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(which.reshape(-1)))[:-1])
        return [Group(table[i], part) for i, part in zip(first, parts, strict=True)]

    def _table(self) -> Floats:
        """[N, kinds, 5] mechanisms of each kind, multiplier and rate, and the paper's; zeros where nothing was done."""
        table = np.zeros((self.clients, len(self._kinds), 5))
        for column, (release, rounds) in zip(table.swapaxes(0, 1), self._kinds.values(), strict=True):
            column[:, 0] = release.mechanisms * rounds
            column[:, 1:] = np.stack(release[1:5], axis=1)
            column[(column[:, 0] == 0) | np.isinf(column[:, 1])] = 0.0
        return table

    def epsilon_of(self, spent: Spent, accountant: str | None = None) -> float:
        """Of one client, at the job's delta, by the job's accountant or another; 0 where nothing was released."""
        if not spent:
            return 0.0
        name, privacy = accountant or self.privacy.accountant, self.privacy
        key = name, frozenset(spent.items())
        if key not in self._known:
            self._known[key] = self._of_numbers(lambda delta: accounting.epsilon(
                spent, delta, adjacency=privacy.adjacency, sampling=privacy.sampling, accountant=name
            ))  # fmt: skip
        return self._known[key]

    def _of_numbers(self, epsilon: Callable[[float], float]) -> float:
        """An epsilon as a function of delta, of noise that is drawn as integers.

        Numbers within a total variation of t of those accounted for are (epsilon, delta + (1 + exp(epsilon)) t)-private
        where those are (epsilon, delta)-private. Above an epsilon of about 45 that leaves nothing to be said.
        """
        delta = self.privacy.delta
        if self.privacy.distribution == "float":
            return epsilon(delta)
        for part in _PARTS_OF_DELTA:
            found = epsilon(delta * (1 - part))
            if found == math.inf or (found < _STEEPEST and (1 + math.exp(found)) * DRAWN <= part * delta):
                return found
        return math.inf

    def worst(self, groups: Iterable[Group] | None = None) -> float:
        """The epsilon of the client who has spent most: one of those whom nobody outdoes."""
        return max(self.epsilon_of(group.spent) for group in undone(self.groups() if groups is None else groups))

    def worst_with(self, part: float) -> float:
        """The same if only so much of the noise's variance were unknown to whoever looks."""
        root, found = math.sqrt(part), [0.0]
        for group in undone(self.groups()):
            known = {(multiplier * root, rate): count for (multiplier, rate), count in group.spent.items()}
            found.append(self.epsilon_of(known))
        return max(found)

    def costs(self) -> Costs:
        """All the epsilons so far; those of a job that protects nobody under a name that says so."""
        if not self.privacy.protects:
            return Costs(math.nan, math.nan, math.nan, math.nan, self.worst_paper(), self.worst())
        groups = sorted(self.groups(), key=lambda group: group.weight)
        upto = np.cumsum([len(group.clients) for group in groups])
        median = groups[int(np.searchsorted(upto, self.clients // 2, side="right"))]
        barest = max(groups, key=lambda group: group.plain_weight)
        middle = self.epsilon_of(median.spent)
        return Costs(
            self.worst(groups),
            middle,
            min(middle, self.epsilon_of(groups[0].spent)),  # bounds, of which a larger one may be of a lesser client
            self.unamplified_of(barest.spent),
            self.worst_paper(groups),
        )

    def unamplified_of(self, spent: Spent) -> float:
        """The epsilon of one client if what was drawn had been public."""
        return self._of_numbers(lambda delta: accounting.unamplified(spent, delta))

    def worst_paper(self, groups: Iterable[Group] | None = None) -> float:
        """The most by the paper's formula; NaN where it says nothing about somebody."""
        found = self.groups() if groups is None else groups
        return float(np.max([paper.composed(group.paper, self.privacy.delta) for group in found]))


def sayable(privacy: Privacy, epsilon: float) -> bool:
    """Whether an epsilon can be said at the job's delta of noise that is drawn as integers."""
    if privacy.distribution == "float":
        return True
    return epsilon < _STEEPEST and (1 + math.exp(epsilon)) * DRAWN <= max(_PARTS_OF_DELTA) * privacy.delta


def undone(groups: Iterable[Group]) -> list[Group]:
    """Those whom no other outdoes, the heaviest first: each client of the rest has spent no more than one of them.

    One outdoes another whose rates are no higher than its lowest, and who has, up to any multiplier, no more mechanisms
    with that multiplier or less: then each mechanism of the other can be paired with one that tells as much or more.
    """
    order = sorted(groups, key=lambda group: -group.weight)
    count, multiplier, rate = np.moveaxis(np.stack([group.row for group in order])[..., :3], -1, 0)  # [groups, kinds]
    done = count > 0
    lowest = np.where(done, rate, 1.0).min(axis=1, initial=1.0)
    highest = np.where(done, rate, 0.0).max(axis=1, initial=0.0)
    least, most = _upto(count, multiplier, done)
    kept: list[int] = []
    for i in range(len(order)):
        outdone = (least[kept] >= most[i]).all(axis=1) & (lowest[kept] >= highest[i])
        if not outdone.any():
            kept.append(i)
    return [order[i] for i in kept]


def _upto(count: Floats, multiplier: Floats, done: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """[groups, levels] how many mechanisms have at most certain multipliers, from below and from above.

    The levels are all the multipliers that there are; of very many, some, between which one cannot tell.
    """
    levels = np.unique(multiplier[done])
    if len(levels) > _LEVELS:
        levels = np.quantile(levels, np.linspace(0, 1, _LEVELS), method="closest_observation")
    least, most = np.zeros((2, len(count), len(levels)))
    each = np.nonzero(done)
    np.add.at(least, (each[0], np.searchsorted(levels, multiplier[each], side="left")), count[each])
    np.add.at(most, (each[0], np.searchsorted(levels, multiplier[each], side="right") - 1), count[each])
    return np.cumsum(least, axis=1), np.cumsum(most, axis=1)


def rounded(spent: Spent) -> Spent:
    """Fewer kinds, which tell as much or more: multipliers rounded down and rates up, by 5 % at most."""
    found: Spent = {}
    for (multiplier, rate), count in spent.items():
        less = min(_STEP ** math.floor(math.log(multiplier, _STEP)), multiplier) if multiplier else 0.0
        more = max(min(_STEP ** math.ceil(math.log(rate, _STEP)), 1.0), rate)
        found[less, more] = found.get((less, more), 0) + count
    return found
