"""An image of MNIST, seen from the server: from a minibatch of one it is read in plain, and not from a masked sum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mpifed.audit.command import audited
from mpifed.cli import main

CLIENTS = 40  # so many rows are more unknowns than the sum has numbers, and nothing that is known finds one in it


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """jobs(images): the job on a folder of images."""
    folder = tmp_path_factory.mktemp("mnist")

    def jobs(images: Path, write_job: Any) -> Path:
        if not (folder / "data").exists():
            split = f"--split rows --clients {CLIENTS} --scale unit --out".split()
            ended = CliRunner().invoke(main, ["data", "mnist", str(images), *split, str(folder / "data")])
            assert ended.exit_code == 0, ended.output
        table = {
            "name": "mnist", "rounds": 2, "data": {"path": str(folder / "data")}, "record": {"evaluate_every": 0},
            "model": {"name": "mlp", "bias": False, "hidden": 32},
            "algorithm": {"name": "ssca", "batch_size": 1, "rho": [0.9, 0.3], "gamma": [0.9, 0.35]},
        }  # fmt: skip
        found: Path = write_job(folder / "job.toml", table)
        return found

    return jobs


@pytest.mark.long
@pytest.mark.parametrize("channel", ["plain", "masked", "encrypted"])
def test_a_digit(jobs: Callable[..., Path], real_data: Path, write_job: Any, channel: str) -> None:
    found = audited(jobs(real_data / "mnist", write_job), (f"aggregation.security={channel}",), 1, ("server",))
    tried = {(one.attack, one.seen): one for one in found.attacks}
    assert not tried["reconstruction", "the decoded sum"].success
    if channel == "plain":
        each = tried["reconstruction", "each client's upload"]
        assert each.success
        assert each.truth.shape == each.rows.shape == (16, 784)
        errors = np.linalg.norm(each.rows - each.truth, axis=1) / np.linalg.norm(each.truth, axis=1)
        assert (errors < 1e-3).sum() >= 12  # the others begin in a corner where all slopes are nearly zero
        assert {"answers", "reconstruction"} <= {one.name for one in found.leaks}
    else:
        assert not any(one.success for one in found.attacks)
        assert found.uniform.uniform
        assert found.leaks == []
