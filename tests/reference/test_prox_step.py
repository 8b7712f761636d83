"""Where FedAvg and FedProx with a regularizer rest: at the optimum of loss plus regularizer, whatever moves clients.

The server's prox must have as its step how far a constant gradient moves the model in a round, with the momentum of the
clients, FedProx's pull and the server's own step; otherwise the model rests at the optimum of another weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lengths import covering

import mpifed as mf
from mpifed.core.record import map_leaves

ROWS, FEATURES = (5, 9, 16), 8  # of clients who hold different numbers of rows
CLIENTS = {"plain": (0.0, False), "momentum": (0.9, False), "nesterov": (0.9, True)}
SERVERS = {
    "plain": mf.ServerSGD(),
    "slow": mf.ServerSGD(0.5),
    "momentum": mf.ServerSGD(0.8, momentum=0.5),
    "nesterov": mf.ServerSGD(momentum=0.5, nesterov=True),
    "cosine": mf.ServerSGD(mf.CosineDecay(1.0, rounds=40, final=0.4), momentum=0.5, nesterov=True),
}
RATES = {"constant": 0.05, "power": mf.PowerDecay(0.05, exponent=0.5), "step": mf.StepDecay(0.03, factor=0.5, every=40)}


def some_rows() -> tuple[Any, np.random.Generator]:
    """Numbers that single precision, in which folders hold them, has exactly; and a generator for labels."""
    rng = np.random.default_rng(4)
    return rng.integers(-32, 33, (sum(ROWS), FEATURES)) / 16, rng


def trained(
    folder: Path, rows: Any, labels: Any, rounds: int, mu: float, model: Any, regularizer: Any, **how: Any
) -> Any:
    """[p] the model after these rounds; every client takes all of its rows in every step."""
    owner = np.repeat(np.arange(len(ROWS)), ROWS)
    data = mf.FederatedDataset.from_arrays(rows, labels, clients=owner, out=folder / "data")
    settings = {"batch_size": max(ROWS), **how}
    method = mf.FedProx(mu=mu, **settings) if mu else mf.FedAvg(**settings)
    run = mf.run(
        method, data, model, rounds=rounds, regularizer=regularizer, evaluate_every=0, progress="none",
        out=folder / "run", compute=mf.Compute(dtype="float64"),
    )  # fmt: skip
    return run.model["first"][:, 0]


@dataclass(frozen=True)
class Curved(mf.L1):
    """With square_weight * ||w||^2 in the prox too."""

    square_weight: float = 0.0

    def value(self, model: Any) -> float:
        return super().value(model) + self.square_weight * float((model.first**2).sum())

    def prox(self, model: Any, step: float) -> Any:
        return map_leaves(lambda leaf: leaf / (1 + 2 * self.square_weight * step), super().prox(model, step))


@covering(
    {
        "mu, steps, rate": [(0.0, 1, "constant"), (0.0, 6, "power"), (3.0, 1, "constant"), (3.0, 6, "step")],
        "client": CLIENTS,
        "server": SERVERS,
    },
    1,
)
def test_gradients_that_are_constant(
    tmp_path: Path, mu: float, steps: int, rate: str, client: str, server: str
) -> None:
    """The hinge loss while no margin is met: the optimum is soft(mean of y x, weight) / (2 square_weight)."""
    X, rng = some_rows()
    y = rng.integers(0, 2, sum(ROWS))
    signs, weight, square = 2 * y - 1, 0.15, 8.0
    mean = signs @ X / len(y)  # less the gradient
    optimum = np.sign(mean) * np.maximum(np.abs(mean) - weight, 0) / (2 * square)
    assert (signs * (X @ optimum)).max() < 0.9 and 2 <= np.count_nonzero(optimum) < FEATURES
    momentum, nesterov = CLIENTS[client]
    found = trained(
        tmp_path, X, y, 120, mu, mf.Hinge(bias=False, l2=0.0), Curved(weight, square_weight=square),
        local_steps=steps, server_optimizer=SERVERS[server],
        client_optimizer=mf.SGD(RATES[rate], momentum=momentum, nesterov=nesterov),
    )  # fmt: skip
    np.testing.assert_allclose(found, optimum, rtol=0, atol=1e-9)


def test_a_rate_that_ends_at_zero(tmp_path: Path) -> None:
    """The model stays where it is, whatever velocity its server has."""
    X, _ = some_rows()
    found = [
        trained(
            tmp_path / str(rounds), X, X[:, 0] > 0, rounds, 0.0,
            mf.Logistic(bias=False), mf.L1(0.01), client_optimizer=mf.SGD(0.05),
            server_optimizer=mf.ServerSGD(mf.CosineDecay(1.0, rounds=3), momentum=0.5),
        )
        for rounds in (3, 6)
    ]  # fmt: skip
    assert found[0].any() and (found[0] == found[1]).all()
