"""Pages of methods whose clients hear the outcome of a round, or send a vector before it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from loops import present
from pages import Page

from mpifed.core.round import Round


class ProxSkip(Page):
    """arXiv:2202.09357, Algorithm 2: h_i moves after the coin, with x of its own round."""

    name = "proxskip"
    steps: ClassVar[dict[str, Any]] = {}  # until the coin

    def begin(self) -> None:
        self.h = self.zeros.copy()

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) - self.h[i]

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        assert len(set(taken.values())) == 1
        super().server(ends, taken, step)
        for i, y in ends.items():
            self.h[i] += self.settings["p"] / step * (self.x - y)


class TAMUNA(ProxSkip):
    """arXiv:2302.09832, Algorithm 1: coordinate k is sent by the clients whose columns are s k, ..., s k + s - 1."""

    name = "tamuna"
    uniform = True

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        who, s, d = present(self.task, self.N, self.t), self.settings["senders"], len(self.x)
        assert who == list(ends)
        columns = Round(self.t - 1, self.task.seed, np.ones(self.N, bool)).rng("masks").permutation(len(who))
        senders = [[i for i, at in zip(who, columns, strict=True) if at in slots] for slots in (
            [(s * k + j) % len(who) for j in range(s)] for k in range(d)
        )]  # fmt: skip
        x = np.array([sum(ends[i][k] for i in senders[k]) / s for k in range(d)])
        chi = self.N * (s - 1) / (s * (self.N - 1))
        for k in range(d):
            for i in senders[k]:
                self.h[i, k] += chi * self.settings["p"] / step * (x[k] - ends[i][k])
        self.x = x


class FedLin(Page):
    """arXiv:2102.07053, Algorithm 1, without compression."""

    name = "fedlin"

    def before(self, who: list[int], step: float) -> None:
        self.own = {i: self.gradient(i, self.x) for i in who}
        self.g = self.mean(self.own)

    def walk(self, i: int, step: float, batches: list[Any]) -> Any:
        return super().walk(i, step / len(batches), batches)

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) - self.own[i] + self.g


class MIME(FedLin):
    """arXiv:2008.03606, Algorithm 1, with SGD and momentum as the base optimizer."""

    name = "mime"
    m: Any = 0.0
    walk = Page.walk

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        a = self.settings.get("alpha", 0.1)
        return a * (self.gradient(i, at, batch) - self.gradient(i, self.x, batch) + self.g) + (1 - a) * self.m

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        super().server(ends, taken, step)
        a = self.settings.get("alpha", 0.1)
        self.m = a * self.g + (1 - a) * self.m
