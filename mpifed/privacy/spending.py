"""What each client has released so far, and the epsilons that follow; uses neither files nor MPI."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.algorithm import Algorithm
from mpifed.maths.privacy import accounting, paper
from mpifed.maths.privacy.release import Floats, Release
from mpifed.maths.privacy.settings import Privacy

_PARTS_OF_DELTA = (1e-9, 1e-3, 0.5)  # set aside for how integers are drawn; nearly always the first is enough
_STEEPEST = 100.0  # epsilon above which no part of delta is enough
DRAWN = 1e12 * 1e-37  # total variation of as many numbers as a run draws at most, see tests/unit/maths/test_discrete.py


class Costs(NamedTuple):
    """Epsilons at the job's delta, each of the client who has spent most; infinite without noise."""

    epsilon: float
    epsilon_unamplified: float  # if the drawn clients and records were public
    epsilon_paper: float  # by the paper's formula; NaN where that does not apply
    epsilon_if_secret: float = math.nan  # if the noise were secret and integer; NaN where it is


@dataclass(frozen=True)
class Spending:
    """In how many rounds each client has released the same."""

    privacy: Privacy
    release: Release
    rounds: NDArray[np.int64]  # [N]

    @classmethod
    def of(cls, algorithm: Algorithm) -> Spending:
        """Nothing yet, of a private algorithm with its noise multiplier."""
        return cls(algorithm.problem.private, algorithm.released(), np.zeros(algorithm.problem.clients, np.int64))

    def after(self, present: NDArray[np.bool_] | bool, times: int = 1) -> Spending:
        """The spending after a round that is run `times` times, with the participating clients [N] `present`."""
        return replace(self, rounds=self.rounds + times * (present | np.bool_(self.release.by_chance)))

    def with_noise(self, algorithm: Algorithm) -> Spending:
        """The same rounds, of an algorithm that differs in its noise multiplier."""
        return replace(self, privacy=algorithm.problem.private, release=algorithm.released())

    def worst(self, part: float = 1.0) -> float:
        """Epsilon, if the share `part` of the noise's variance were unknown to the attacker."""

        def of(multiplier: float, rate: float, count: float) -> float:
            kind, sampling = (multiplier * math.sqrt(part), rate, int(count)), self.privacy.sampling
            return self._of_integers(lambda delta: accounting.epsilon(*kind, delta, sampling=sampling))

        return max(of(*kind) for kind in self._kinds())

    def costs(self) -> Costs:
        """All the epsilons so far; without protection only those whose names say that they are conditional."""
        if self.privacy.noise != "secure":
            return Costs(math.nan, math.nan, self.worst_paper(), self.worst())
        return Costs(self.worst(), self.unamplified(), self.worst_paper())

    def unamplified(self) -> float:
        """Epsilon, if the drawn clients and records were public."""

        def of(multiplier: float, rate: float, count: float) -> float:
            return self._of_integers(lambda delta: accounting.unamplified(multiplier, count, delta))

        return max(of(*kind) for kind in self._kinds())

    def worst_paper(self) -> float:
        """Epsilon by the paper's formula; NaN where it does not apply."""
        z, rates = self.privacy.multiplier, self.release.paper_rate
        if rates is None:
            return math.nan
        kinds = _undominated(rates, self.rounds * self.release.mechanisms)
        return max(paper.composed(z, rate, count, self.privacy.delta) for rate, count in kinds)

    def _kinds(self) -> list[tuple[float, float, float]]:
        """(multiplier, rate, number of mechanisms) of clients than whom nobody releases more."""
        release = self.release
        kinds = _undominated(-release.multiplier, release.rate, self.rounds * release.mechanisms)
        return [(-low, rate, count) for low, rate, count in kinds]

    def _of_integers(self, epsilon: Callable[[float], float]) -> float:
        """Epsilon at the job's delta, given as a function of delta, for noise that is drawn as integers.

        Numbers within a total variation of t of those accounted for are (epsilon, delta + (1 + exp(epsilon)) t)-private
        where those are (epsilon, delta)-private. Above an epsilon of about 45 no delta is left.
        """
        for part in _PARTS_OF_DELTA:
            value = epsilon(self.privacy.delta * (1 - part))
            if value == math.inf:
                break
            if value < _STEEPEST and (1 + math.exp(value)) * DRAWN <= part * self.privacy.delta:
                return value
        return math.inf


def without_epsilon(algorithm: Algorithm) -> bool:
    """Whether a private algorithm has so little noise that not even a single round has a finite epsilon."""
    return algorithm.problem.privacy is not None and math.isinf(Spending.of(algorithm).after(True).worst())


def _undominated(*columns: Floats | NDArray[np.int64]) -> list[list[float]]:
    """The rows that no other row exceeds or equals in all columns."""
    rows, found = np.unique(np.stack(columns, axis=1).astype(float), axis=0), []
    while len(rows):
        found.append(rows[-1].tolist())
        rows = rows[(rows > rows[-1]).any(axis=1)]
    return found
