"""A private round beside the same round that is not private, and the noise alone; in turn, in one process.

10 clients, batch 100, exact sums, noise on every local step's gradient. What a round may take is 1.5 times the round
that is not private, and the bare draws.
"""

from __future__ import annotations

import time
from statistics import median
from typing import NamedTuple

import numpy as np
from prepared import HERE, prepared
from threadpoolctl import threadpool_limits

from mpifed.comm.mpi import Solo
from mpifed.comm.rounds import play
from mpifed.core.round import Round
from mpifed.job.job import Job
from mpifed.job.participation import next_round
from mpifed.maths.arrays import flat
from mpifed.maths.privacy.discrete import draw, levels_of
from mpifed.run.environment import keep_freed_memory
from mpifed.run.setup import prepare

CLIENTS, WARM_UP, ROUNDS = 10, 5, 30
MODELS = {"mlp": '{name="mlp",bias=false,hidden=128,l2=1e-5}', "softmax": '{name="softmax",bias=false,l2=1e-5}'}
PRIVATE = ("privacy.delta=1e-5", "privacy.clip=1.0", "privacy.noise_multiplier=1.0")


class PrivateRound(NamedTuple):
    """CPU seconds, medians over rounds."""

    plain: float
    private: float
    noise: float  # the draws alone
    times_as_long: float  # the median of (private - noise) / plain


class Rounds:
    """A job whose rounds are played one by one."""

    def __init__(self, *changes: str) -> None:
        data = f"data.path={prepared(CLIENTS, 'rows')}"
        self.job = Job.read(HERE / "case1-fedsgd.toml", [data, "rounds=1000000", *changes])
        ready = prepare(self.job, Solo())
        self.algorithm, self.ranks, self.index, self.key = ready.algorithm, ready.ranks, 0, ready.key
        self.exchanges = self.algorithm.exchanges
        self.states = play(self.algorithm.setup, ready.server, ready.clients, ready.everybody, self.ranks)

    def now(self) -> Round:
        return next_round(self.job, CLIENTS, self.exchanges, self.index, 0, self.key)

    def play(self) -> float:
        """The CPU seconds of the next round."""
        now, start = self.now(), time.process_time()
        self.states = play(self.exchanges, *self.states, now, self.ranks)
        self.index += 1
        return time.process_time() - start

    def draw(self, steps: int) -> float:
        """The CPU seconds of the noise alone of a round with so many local steps."""
        now, size = self.now(), flat(self.algorithm.model(self.states[0])).size
        sigma = self.algorithm.guard.how.sigma
        start = time.process_time()
        for _ in range(steps):
            for client in range(CLIENTS):
                draw(levels_of(sigma), now.words("gradient", client), np.empty(size, np.int64))
        return time.process_time() - start


def private_rounds(rounds: int = ROUNDS) -> dict[tuple[str, int], PrivateRound]:
    """By model and local steps."""
    keep_freed_memory()
    found = {}
    with threadpool_limits(1):
        for name, model in MODELS.items():
            for steps in (1, 5):
                changes = f"model={model}", f"algorithm.local_steps={steps}"
                plain, private = Rounds(*changes), Rounds(*changes, *PRIVATE)
                turns = [(plain.play(), private.play(), private.draw(steps)) for _ in range(WARM_UP + rounds)]
                seconds = np.array(turns[WARM_UP:])
                times = median((seconds[:, 1] - seconds[:, 2]) / seconds[:, 0])
                found[name, steps] = PrivateRound(*np.median(seconds, axis=0).tolist(), times)
    return found


def shown(found: dict[tuple[str, int], PrivateRound]) -> list[str]:
    """One line for each."""
    return [
        f"private round of {name}, {steps} local step{'s' * (steps > 1)}: {1e3 * one.private:.2f} ms, exact "
        f"{1e3 * one.plain:.2f}, its noise alone {1e3 * one.noise:.2f}: without it {one.times_as_long:.2f} times as "
        "long; at most 1.5"
        for (name, steps), one in found.items()
    ]


if __name__ == "__main__":
    print(*shown(private_rounds()), sep="\n")
