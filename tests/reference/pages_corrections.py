"""Pages of methods that change local steps by what a client keeps, or by more than one gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
from pages import Page


def at_the_top(page: Page, i: int, at: Any, batch: Any) -> Any:
    """The gradient at y + rho g / ||g||."""
    g = page.gradient(i, at, batch)
    return page.gradient(i, at + page.settings["rho"] * g / np.linalg.norm(g), batch)


class FedSAM(Page):
    """2206.02618, Algorithm 1."""

    name = "fedsam"

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return at_the_top(self, i, at, batch)


class FedDyn(Page):
    """2111.04263, Algorithm 1."""

    name, uniform = "feddyn", True

    def begin(self) -> None:
        self.uniform = self.settings.get("weights") != "rows"
        self.h, self.alpha = self.zeros.copy(), self.settings["alpha"]

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) - self.h[i] + self.alpha * (at - self.x)

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        for i, y in ends.items():
            self.h[i] -= self.alpha * (y - self.x)
        self.mean_of_ends = self.mean(ends)
        self.x = self.mean_of_ends - self.mean(dict(enumerate(self.h))) / self.alpha

    def judged(self) -> Any:
        return self.mean_of_ends


class FedSpeed(FedDyn):
    """2302.10429, with lambda = 1 / alpha."""

    name = "fedspeed"

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        mix = self.settings.get("mix", 1.0)
        quasi = (1 - mix) * self.gradient(i, at, batch) + mix * at_the_top(self, i, at, batch)
        return quasi - self.h[i] + self.alpha * (at - self.x)


class FedADMM(Page):
    """2204.03529, Algorithm 1."""

    name, uniform = "fedadmm", True

    def begin(self) -> None:
        self.uniform = self.settings.get("weights") != "rows"
        self.rho = self.settings["rho"]
        self.y, self.dual = self.zeros + self.x, self.zeros.copy()

    def start(self, i: int) -> Any:
        return self.y[i] if self.settings.get("start") == "own" else self.x

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) + self.dual[i] + self.rho * (at - self.x)

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        for i, y in ends.items():
            self.dual[i] += self.rho * (y - self.x)
            self.y[i] = y
        self.x = self.mean(dict(enumerate(self.y + self.dual / self.rho)))


class FedSplit(Page):
    """2005.05238, Algorithm 1."""

    name, uniform = "fedsplit", True

    def begin(self) -> None:
        self.uniform = self.settings.get("weights") != "rows"
        self.y, self.z = self.zeros + self.x, self.zeros + self.x

    def start(self, i: int) -> Any:
        starts = {"own": self.y[i], "paper": 2 * self.x - self.z[i]}
        return starts.get(self.settings.get("start", "server"), self.x)

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) + (at - (2 * self.x - self.z[i])) / self.settings["s"]

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        for i, y in ends.items():
            self.y[i], self.z[i] = y, self.z[i] + 2 * (y - self.x)
        self.x = self.mean(dict(enumerate(self.z)))


class DeltaSGD(Page):
    """2306.11201, Algorithm 1."""

    name = "delta-sgd"

    def walk(self, i: int, step: float, batches: list[Any]) -> Any:
        at, last, eta, theta = self.x, None, step, 1.0
        gamma, delta = self.settings.get("gamma", 2.0), self.settings.get("delta", 0.1)
        for batch in batches:
            g = self.gradient(i, at, batch)
            if last is not None:
                turned = g - self.gradient(i, last, batch)
                bound = gamma * np.linalg.norm(at - last) / (2 * np.linalg.norm(turned))
                before, eta = eta, min(bound, np.sqrt(1 + delta * theta) * eta)
                theta = eta / before
            last, at = at, at - eta * g
        return at
