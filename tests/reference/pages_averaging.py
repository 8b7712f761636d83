"""Methods whose broadcast or server's step is not FedAvg's, in the generic loop."""

from __future__ import annotations

from typing import Any

from pages import Page


class FedCM(Page):
    name = "fedcm"
    m: Any = 0.0

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        a = self.settings.get("alpha", 0.1)
        return a * self.gradient(i, at, batch) + (1 - a) * self.m

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        last, self.x = self.x, self.mean(ends)
        self.m = (last - self.x) / (step * max(taken.values()))


class MimeLite(FedCM):
    name = "mime-lite"

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        a = self.settings.get("alpha", 0.1)
        self.m = a * self.mean({i: self.gradient(i, self.x) for i in ends}) + (1 - a) * self.m
        self.x = self.mean(ends)
