"""SGD on data split by columns, against a plain loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from paper import all_digits, close, heavy_ball, job, play, read, step_size

ROUNDS = 6
STEP = {"initial": 0.4, "exponent": 0.25}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("holder", [{}, {"label_holder": 3}], ids=str)
def test_vertical_sgd(shared_path: Path, tmp_path: Path, bias: bool, holder: dict[str, int]) -> None:
    """w - step (mean gradient of the rows drawn + 2 l2 w), the latter of the weights alone."""
    folder = all_digits(shared_path, "columns", 5)
    rule = {"name": "vertical-sgd", "batch_size": 16, "server_optimizer": {"learning_rate": STEP}, **holder}
    network = {"name": "mlp", "bias": bias, "hidden": 4, "l2": 3e-3}
    task = job(folder, rule, network, ROUNDS)
    close(play(task, tmp_path / "run").model, heavy_ball(task, read(folder), lambda t: step_size(STEP, t)))
