"""FedNova in the generic loop."""

from __future__ import annotations

from typing import Any

from pages import Page


class FedNova(Page):
    """2007.07481, (9), with the ||a_i||_1 of its three examples."""

    name = "fednova"

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) + self.settings.get("mu", 0.0) * (at - self.x)

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        r, pull = self.task.client_optimizer["momentum"], step * self.settings.get("mu", 0.0)

        def norm(K: int) -> float:
            if pull:
                return (1 - (1 - pull) ** K) / pull
            return (K - r * (1 - r**K) / (1 - r)) / (1 - r)

        a = {i: norm(K) for i, K in taken.items()}
        direction = self.mean({i: (y - self.x) / a[i] for i, y in ends.items()})
        self.x = self.x + self.mean(a) * direction
