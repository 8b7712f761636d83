"""SGD on data split by columns, against a plain loop."""

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


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("holder", [{}, {"label_holder": 3}], ids=str)
def test_vertical_sgd(shared_path: Path, tmp_path: Path, bias: bool, holder: dict[str, int]) -> None:
    """w - step (mean gradient of the rows drawn + 2 l2 w), the latter of the weights alone."""
    folder = all_digits(shared_path, "columns", 5)
    rule = {"name": "vertical-sgd", "batch_size": 16, "server_optimizer": {"learning_rate": STEP}, **holder}
    network = {"name": "mlp", "bias": bias, "hidden": 4, "l2": PENALTY}
    task, data = job(folder, rule, network, ROUNDS), read(folder)
    w = omega(first_model(task))
    for t in range(1, ROUNDS + 1):
        step = step_size(STEP, t)
        slopes = estimate(w, data, draw(task, data, t)).slopes
        w = combine((1.0, w), (-2 * step * PENALTY, without_biases(w)), (-step, slopes))
    close(play(task, tmp_path / "run").model, w)
