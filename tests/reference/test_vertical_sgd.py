"""SGD on data split by columns, and federated averaging with server momentum, against plain loops."""

from __future__ import annotations

from pathlib import Path

import pytest
from paper import (
    all_digits,
    close,
    combine,
    draw,
    estimate,
    first_model,
    job,
    omega,
    play,
    read,
    step_size,
    without_biases,
)

ROUNDS, PENALTY = 6, 3e-3
STEP = {"initial": 0.4, "exponent": 0.25}
NETWORK = {"name": "mlp", "bias": False, "hidden": 4, "l2": PENALTY}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("holder", [{}, {"label_holder": 3}], ids=str)
def test_vertical_sgd(shared_path: Path, tmp_path: Path, bias: bool, holder: dict[str, int]) -> None:
    """w - step (mean gradient of the rows drawn + 2 l2 w), the latter of the weights alone."""
    folder = all_digits(shared_path, "columns", 5)
    rule = {"name": "vertical-sgd", "batch_size": 16, "server_optimizer": {"learning_rate": STEP}, **holder}
    task, data = job(folder, rule, {**NETWORK, "bias": bias}, ROUNDS), read(folder)
    w = omega(first_model(task))
    for t in range(1, ROUNDS + 1):
        step = step_size(STEP, t)
        slopes = estimate(w, data, draw(task, data, t)).slopes
        w = combine((1.0, w), (-2 * step * PENALTY, without_biases(w)), (-step, slopes))
    close(play(task, tmp_path / "run").model, w)


# --- server momentum ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_round", [None, 4])
@pytest.mark.parametrize("momentum", [0.0, 0.6, 0.9])
def test_momentum_with_one_step_is_heavy_ball(
    skewed: Path, tmp_path: Path, per_round: int | None, momentum: float
) -> None:
    """w_{t+1} = w_t - step_t gradient + momentum (w_t - w_{t-1})"""
    rule = {
        "name": "fedavg",
        "batch_size": 4,
        "client_optimizer": {"learning_rate": STEP},
        "server_optimizer": {"momentum": momentum},
        "local_steps": 1,
    }
    participation = {} if per_round is None else {"clients_per_round": per_round}
    task, data = job(skewed, rule, NETWORK, ROUNDS, participation=participation), read(skewed)
    w = before = omega(first_model(task))
    for t in range(1, ROUNDS + 1):
        step = step_size(STEP, t)
        gradient = combine((1.0, estimate(w, data, draw(task, data, t)).slopes), (2 * PENALTY, w))
        before, w = w, combine((1 + momentum, w), (-momentum, before), (-step, gradient))
    close(play(task, tmp_path / "run").model, w)
