"""`[aggregation] arithmetic = "exact-blocks"` beside exact sums; resumed elsewhere; what is refused.

That its bits are the same on any number of ranks is in test_same_bits.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import run
from jobs_in_python import checked
from registry import table

from mpifed.files.history import read_history
from mpifed.files.model_file import read_model
from mpifed.files.run_folder import summary
from mpifed.testing import Solo

AVG = {"name": "fedavg", "batch_size": 5, "client_optimizer": {"learning_rate": 0.3}, "local_steps": 1}
SSCA = {"name": "ssca", "batch_size": 5, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "start": "paper"}


def made(data: Path, algorithm: dict[str, Any], numbers: str = "exact-blocks", **changes: Any) -> dict[str, Any]:
    """9 of 11 clients a round, in blocks of 3."""
    found = table(
        data, algorithm, participation={"clients_per_round": 9}, **({"aggregation": {"arithmetic": numbers}} | changes)
    )
    return found | {"data": {"path": str(data), "block": 3}}


@pytest.mark.parametrize("algorithm", [AVG, SSCA], ids=["fedavg", "ssca-horizontal"])
def test_close_to_exact_sums(algorithm: dict[str, Any], skewed: Path, tmp_path: Path) -> None:
    for numbers in ("exact", "exact-blocks"):
        run(checked(made(skewed, algorithm, numbers)), Solo(), tmp_path / numbers)
    exact, blocks = (read_model(tmp_path / one / "model.safetensors") for one in ("exact", "exact-blocks"))
    for name, leaf in exact.items():
        np.testing.assert_allclose(blocks[name], leaf, rtol=1e-4, atol=1e-5)
    assert any((blocks[name] != leaf).any() for name, leaf in exact.items())  # or nothing was fused
    sent = [read_history(tmp_path / one)["up_bytes"].tolist() for one in ("exact", "exact-blocks")]
    assert sent[0] == sent[1]


def test_algorithms_without_sums_of_blocks_have_the_bits_of_exact_ones(skewed: Path, tmp_path: Path) -> None:
    for numbers in ("exact", "exact-blocks"):
        run(checked(made(skewed, AVG | {"local_steps": 2}, numbers)), Solo(), tmp_path / numbers)
    assert summary(tmp_path / "exact")["model_sha256"] == summary(tmp_path / "exact-blocks")["model_sha256"]


@pytest.mark.launch
def test_killed_on_three_ranks_and_resumed_on_two(
    skewed: Path, launch: Callable[..., Any], write_job: Any, tmp_path: Path
) -> None:
    own = {"name": "own_algorithms:Troubled"} | {key: value for key, value in AVG.items() if key != "name"}
    given = made(skewed, own, rounds=8, seed=4, record={"evaluate_every": 4, "checkpoint_every": 2})
    job, out = write_job(tmp_path / "job.toml", given), tmp_path / "run"
    run(checked(given), Solo(), tmp_path / "whole")
    ended = launch(3, "run", job, "--out", out, env={"MPIFED_TEST_TROUBLE": "SIGTERM"})
    assert ended.code == 75, ended.text
    ended = launch(2, "run", job, "--out", out, "--resume")
    assert ended.code == 0, ended.text
    assert summary(out)["model_sha256"] == summary(tmp_path / "whole")["model_sha256"]
