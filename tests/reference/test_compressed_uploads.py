"""Compressed uploads against loops that share no code with the package: compressors, memories, and where they rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import local_job, played
from pages import Page

from mpifed.core.round import Round

ABSENT = {"participation": {"clients_per_round": 4}}
TOP, RAND, FINE = {"name": "top-k", "k": 40}, {"name": "rand-k", "fraction": 0.2}, {"name": "qsgd", "levels": 3}
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (TOP, ABSENT),
    (RAND, ABSENT),
    (FINE, ABSENT),
    ({"name": "natural"}, ABSENT),
    ({"name": "sign"}, ABSENT),
    (TOP | {"memory": "error-feedback"}, ABSENT),
    (RAND | {"memory": "error-feedback"}, ABSENT),
    (TOP | {"memory": "ef21"}, ABSENT),
    ({"name": "natural", "memory": "ef21"}, {}),
    ({"name": "sign", "memory": "ef21-sgdm", "alpha": 0.3}, ABSENT),
    (FINE | {"memory": "ef21-sgdm"}, {}),
    (RAND | {"memory": "diana"}, ABSENT),
    (FINE | {"memory": "diana", "alpha": 0.1}, {}),
]


def compressed(said: dict[str, Any], u: Any, now: Round, i: int) -> tuple[Any, float]:
    """C(u), and omega, or 0 where C is biased: number by number."""
    d, out = len(u), np.zeros(len(u))
    k = said.get("k") or max(1, round(said.get("fraction", 0) * d))
    if said["name"] == "top-k":
        for j in sorted(range(d), key=lambda j: (-abs(u[j]), j))[:k]:
            out[j] = u[j]
        return out, 0.0
    if said["name"] == "rand-k":
        for j in now.draw("compression", np.array([i]), np.array([d]), k)[0]:
            out[j] = d / k * u[j]
        return out, d / k - 1
    if said["name"] == "sign":
        return np.array([-1 if x < 0 else 1 for x in u]) * (sum(map(abs, u)) / d), 0.0
    level = now.rng("compression", i).random(d)
    if said["name"] == "natural":
        for j, x in enumerate(u):
            low = 2.0 ** np.floor(np.log2(abs(x))) if x else 0.0
            out[j] = np.sign(x) * low * (2 if x and level[j] < abs(x) / low - 1 else 1)
        return out, 1 / 8
    s, norm = said["levels"], sum(x * x for x in u) ** 0.5
    for j, x in enumerate(u):
        whole = int(abs(x) * s / norm)
        out[j] = norm / s * np.sign(x) * (whole + (level[j] >= 1 - (abs(x) * s / norm - whole)))
    return out, min(d / s**2, d**0.5 / s)


class Compressed(Page):
    """FedAvg, as each paper has its memory; the server's estimates are sums over all clients' own."""

    name = "compressed"

    def begin(self) -> None:
        self.said: dict[str, Any] = self.task.compression  # type: ignore[assignment]  # a table
        self.kept, self.mean_of, self.seen = self.zeros.copy(), self.zeros.copy(), set[int]()

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        memory, now = self.said["memory"], Round(self.t - 1, self.task.seed, np.zeros(self.N, bool))
        before, direction = self.kept.copy(), {}
        for i, y in ends.items():
            u = y - self.x
            if memory == "ef21-sgdm":
                a = self.said.get("alpha", 0.1) if i in self.seen else 1.0
                self.mean_of[i] = u = (1 - a) * self.mean_of[i] + a * u
            self.seen.add(i)
            told = {"none": u, "error-feedback": u + self.kept[i]}.get(memory, u - self.kept[i])
            sent, omega = compressed(self.said, told, now, i)
            sent = sent / (1 if memory in ("none", "diana") else 1 + omega)
            direction[i] = sent
            if memory == "error-feedback":
                self.kept[i] = told - sent
            elif memory.startswith("ef21"):
                self.kept[i] += sent
            elif memory == "diana":
                self.kept[i] += self.said.get("alpha", 1 / (1 + omega)) * sent
        everybody = self.mean(dict(enumerate(before if memory == "diana" else self.kept)))
        moved = {"none": 0.0, "error-feedback": 0.0, "diana": everybody}
        self.x = self.x + (moved[memory] + self.mean(direction) if memory in moved else everybody)


@pytest.mark.parametrize(("compression", "tables"), CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_uploads_travel_as_the_papers_say(skewed: Path, compression: dict[str, Any], tables: dict[str, Any]) -> None:
    hyper = {"name": "fedavg", "batch_size": 4, "local_steps": 2, "client_optimizer": {"learning_rate": 0.4}}
    more: dict[str, Any] = {"data": {"path": str(skewed), "block": 3}, "compression": compression, **tables}
    task = local_job(skewed, hyper, rounds=6, **more)
    np.testing.assert_allclose(played(task).model, Compressed(task).play().x, rtol=0, atol=1e-10)
