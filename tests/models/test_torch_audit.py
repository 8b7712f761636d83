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


@pytest.mark.parametrize(("model", "batch", "says"), [
    ({"name": "torch", "build": "mpifed.models:mlp"}, 1, "16 of 16 rows recovered from the first layer"),
    (nets.IMAGE, 1, "does not apply: the network has no layer of all features"),
    (nets.IMAGE, 4, "does not apply: the network has no layer of all features"),
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
