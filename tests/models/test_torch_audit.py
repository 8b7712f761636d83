"""What an audit finds of networks of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nets
import pytest


def job(data: Path, model: dict[str, Any], batch: int) -> dict[str, Any]:
    return {
        "name": "audited", "rounds": 2, "data": {"path": str(data)}, "model": model,
        "algorithm": {"name": "fedavg", "batch_size": batch, "client_optimizer": {"learning_rate": 0.1}},
        "record": {"evaluate_every": 1},
    }  # fmt: skip


MLP = {"name": "torch", "build": "mpifed.models:mlp"}


@pytest.mark.parametrize(("model", "batch", "says"), [
    (MLP, 1, "with each client's upload SUCCEEDS: 2 of 2 rows recovered"),
    (MLP, 2, "inversion, with each client's upload SUCCEEDS: "),
    (nets.IMAGE, 20, "does not apply: gradients of 20 rows, for which it is not made"),
])  # fmt: skip
def test_rows_of_single_gradients(
    digits: Path, launch: Any, write_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    model: dict[str, Any], batch: int, says: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(Path(__file__).parent)
    path, out = write_job(tmp_path / "job.toml", job(digits, model, batch)), tmp_path / "run"
    assert launch(None, "run", path, "--out", out).code == 0
    audited = launch(None, "audit", out)
    assert audited.code == 71 and says in " ".join(audited.out.split()), audited.text
