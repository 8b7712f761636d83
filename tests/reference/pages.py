"""The generic loop of methods with local steps: a page says what a client and the server do, as its paper prints it.

A page shares no code with the package: of that it has the rows, the rows drawn, who takes part and the first model,
as `loops` gives them. `PAGES` has a page for every method of `tests/methods.py` that has local steps.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from loops import Gradient, gradient_of, minibatches, present, rows_of, start_of
from paper import step_size

from mpifed.testing import Job

PAGES: dict[str, type[Page]] = {}


class Page:
    """FedAvg, and what a page may say otherwise. Models are vectors [d]; what clients keep, [N, d], is here too."""

    name: ClassVar[str]
    steps: ClassVar[dict[str, Any]] = {"local_steps": 3}  # of [algorithm], how many local steps a round has
    uniform: ClassVar[bool] = False  # whether clients count alike in the mean, or by rows

    def __init_subclass__(cls) -> None:
        PAGES[cls.name] = cls

    def __init__(self, task: Job) -> None:
        self.task, self.data = task, rows_of(task.data.path)
        self.settings = task.algorithm
        self.N, self.x = len(self.data), start_of(task)
        self.zeros = np.zeros((self.N, len(self.x)))
        self.rows = np.array([len(y) for _, y in self.data], float)
        self._gradient: Gradient = gradient_of(task, 10)
        self.begin()

    # --- what a page says -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """States before round 1."""

    def before(self, who: list[int], step: float) -> None:
        """What is exchanged before local steps."""

    def start(self, i: int) -> Any:
        """Where client i's steps begin."""
        return self.x

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        """Along whose negative client i steps."""
        return self.gradient(i, at, batch)

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        """Moves x, and all states, from where the clients of the round have ended, y_i, after so many steps."""
        self.x = self.mean(ends)

    def judged(self) -> Any:
        """The model that is measured."""
        return self.x

    # --- hands ------------------------------------------------------------------------------------------------------

    def gradient(self, i: int, at: Any, batch: Any = slice(None)) -> Any:
        """Of client i's mean loss over a minibatch, or all its rows."""
        X, y = self.data[i]
        return self._gradient(at, X[batch], y[batch])

    def mean(self, each: dict[int, Any]) -> Any:
        """Over some clients."""
        weight = np.ones(self.N) if self.uniform else self.rows
        return sum(weight[i] * u for i, u in each.items()) / sum(weight[i] for i in each)

    def walk(self, i: int, step: float, batches: list[Any]) -> Any:
        """Where client i's steps end."""
        at, velocity = self.start(i), 0.0
        for batch in batches:
            velocity = self.task.client_optimizer.get("momentum", 0.0) * velocity + self.direction(i, at, batch)
            at = at - step * velocity
        return at

    def play(self) -> Page:
        """All rounds."""
        for t in range(1, self.task.rounds + 1):
            self.t = t
            who, step = present(self.task, self.N, t), step_size(self.task.client_optimizer["learning_rate"], t)
            batches = {i: minibatches(self.task, i, len(self.data[i][1]), t) for i in who}
            self.before(who, step)
            ends = {i: self.walk(i, step, batches[i]) for i in who}
            self.server(ends, {i: len(batches[i]) for i in who}, step)
        return self


class FedAvg(Page):
    """The base."""

    name = "fedavg"
