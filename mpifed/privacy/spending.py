"""What each client has released so far, and the epsilons that follow; uses neither files nor MPI."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.algorithm import Algorithm
from mpifed.core.tables import Table
from mpifed.maths.privacy import accounting, paper
from mpifed.maths.privacy.release import Floats, Release
from mpifed.maths.privacy.settings import Privacy

_PARTS_OF_DELTA = (1e-9, 1e-3, 0.5)  # set aside for how integers are drawn; nearly always the first is enough
DRAWN = 1e12 * 1e-37  # total variation of as many numbers as a run draws at most, see tests/unit/maths/test_discrete.py


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

    def after(self, present: NDArray[np.bool_] | bool) -> Spending:
        """The spending after another round, with the participating clients [N] `present`."""
        return replace(self, rounds=self.rounds + (present | np.bool_(self.release.by_chance)))

    def worst(self, part: float = 1.0, *, amplified: bool = True) -> float:
        """Epsilon of the client who has spent most; infinite without noise.

        Numbers within a total variation of t of those accounted for are (epsilon, delta + (1 + exp(epsilon)) t)-private
        where those are (epsilon, delta)-private; integers are drawn so. Above an epsilon of about 45 no delta is left.

        Parameters
        ----------
        part : the share of the noise's variance that the attacker does not know
        amplified : whether it does not know either which clients and records were drawn
        """
        delta, sampling, release = self.privacy.delta, self.privacy.sampling, self.release

        def of_integers(multiplier: float, rate: float, count: int) -> float:
            for aside in _PARTS_OF_DELTA:
                left = delta * (1 - aside)
                epsilon = accounting.epsilon(multiplier * math.sqrt(part), rate, count, left, sampling=sampling)
                if (1 + math.exp(min(epsilon, 700.0))) * DRAWN <= aside * delta:
                    return epsilon
            return math.inf

        rate = release.rate if amplified else np.ones_like(release.rate)
        return _largest(of_integers, release.multiplier, rate, self._mechanisms)

    def worst_paper(self) -> float:
        """Epsilon by the paper's formula; NaN where it does not apply."""
        privacy, rate = self.privacy, self.release.paper_rate
        if rate is None:
            return math.nan
        return _largest(
            partial(paper.composed, delta=privacy.delta), np.full_like(rate, privacy.multiplier), rate, self._mechanisms
        )

    @property
    def _mechanisms(self) -> NDArray[np.int64]:
        return self.rounds * self.release.mechanisms

    def epsilons(self, shares: int = 0) -> Table:
        """The epsilons at the job's delta, by key of run.json; None where infinite or not defined.

        Where anybody can compute the noise, only those whose names say that they are conditional. Of noise that as many
        clients as `shares` share in a round, also those against another client, who knows its own share, and against a
        server that colludes with a third of these clients, at least one: the other shares are left.
        """
        worst = self.worst()
        found = {"epsilon": math.nan, "epsilon_unamplified": math.nan, "epsilon_paper": self.worst_paper()}
        found["epsilon_if_secret"] = worst
        told = {}
        if self.privacy.noise == "secure":
            found |= {
                "epsilon": worst,
                "epsilon_unamplified": self.worst(amplified=False),
                "epsilon_if_secret": math.nan,
            }
            for name, who in (
                (("epsilon_other_client", 1), ("epsilon_colluding", max(1, shares // 3))) if shares else ()
            ):
                found[name], told["colluding"] = self.worst((shares - who) / shares), [who, shares]
        return {name: value if math.isfinite(value) else None for name, value in found.items()} | told


def without_epsilon(algorithm: Algorithm) -> bool:
    """Whether a private algorithm has so little noise that not even a single round has a finite epsilon."""
    return algorithm.problem.privacy is not None and math.isinf(Spending.of(algorithm).after(True).worst())


def _largest(
    cost: Callable[[float, float, int], float], multiplier: Floats, rate: Floats, count: NDArray[np.int64]
) -> float:
    """The largest cost of any client, asked of those whom no other exceeds or equals in all three."""
    rows, costs = np.unique(np.stack([-multiplier, rate, count], axis=1), axis=0), list[float]()
    while len(rows):
        less, most, times = rows[-1].tolist()
        costs.append(cost(-less, most, int(times)))
        rows = rows[(rows > rows[-1]).any(axis=1)]
    return max(costs)
