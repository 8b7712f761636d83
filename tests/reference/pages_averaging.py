"""Methods whose broadcast or server's step is not FedAvg's, in the generic loop."""

from __future__ import annotations

from typing import Any

from pages import Page


class Alone(Page):
    name = "alone"

    def begin(self) -> None:
        self.own = self.zeros + self.x

    def start(self, i: int) -> Any:
        return self.own[i]

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        self.own[list(ends)] = list(ends.values())
        super().server(ends, taken, step)


class FedCM(Page):
    name = "fedcm"
    m: Any = 0.0

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        a = self.settings.get("alpha", 0.1)
        return a * self.gradient(i, at, batch) + (1 - a) * self.m

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        self.m = self.mean({i: (self.x - y) / (step * taken[i]) for i, y in ends.items()})
        self.x = self.mean(ends)


class MimeLite(FedCM):
    name = "mime-lite"

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        a = self.settings.get("alpha", 0.1)
        self.m = a * self.mean({i: self.gradient(i, self.x) for i in ends}) + (1 - a) * self.m
        self.x = self.mean(ends)


class FedExP(Page):
    name = "fedexp"
    last: Any = 0.0

    def factor(self, squares: float, square: float) -> float:
        return max(1.0, squares / (2 * (square + self.settings.get("eps", 1e-3))))

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        moved = {i: y - self.x for i, y in ends.items()}
        D = self.mean(moved)
        squares = self.mean({i: u @ u for i, u in moved.items()})
        self.last = self.factor(squares, D @ D) * D
        self.x = self.x + self.last

    def judged(self) -> Any:
        return (self.x + (self.x - self.last)) / 2


class FedExProx(FedExP):
    name = "fedexprox"

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) + self.settings["mu"] * (at - self.x)

    def factor(self, squares: float, square: float) -> float:
        return squares / square

    def judged(self) -> Any:
        return self.x


class FedBuff(Page):
    """Where all answer in one instant."""

    name, uniform = "fedbuff", True


class FedAsync(Page):
    """Where all answer in one instant."""

    name, uniform = "fedasync", True

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) + self.settings.get("rho", 0.005) * (at - self.x)

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        self.x = self.x + self.settings.get("alpha", 0.6) * (self.mean(ends) - self.x)


class FedVARP(Page):
    """As the paper has it: the server keeps all M_i."""

    name = "fedvarp"

    def begin(self) -> None:
        self.M = dict(enumerate(self.zeros))

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        moved = {i: y - self.x for i, y in ends.items()}
        self.x = self.x + self.mean(self.M) + self.mean({i: D - self.M[i] for i, D in moved.items()})
        self.M |= moved


class FedACG(Page):
    name = "fedacg"
    m: Any = 0.0

    def start(self, i: int) -> Any:
        return self.x + self.settings.get("lam", 0.85) * self.m

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) + 2 * self.settings.get("beta", 1e-3) * (at - self.start(i))

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        self.m, self.x = self.mean(ends) - self.x, self.mean(ends)
