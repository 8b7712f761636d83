"""Step sizes of new jobs: no method that takes rows diverges on raw pixels; scaled tables keep the usual ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mpifed as mf
from mpifed.explain.new_job import new_job

RNG = np.random.default_rng(6)
KINDS = RNG.integers(0, 3, 60)
BRIGHTNESS, TEMPLATES = RNG.uniform(0.5, 1.3, (60, 1)), 120 + 5 * RNG.normal(size=(3, 3072))
PIXELS = np.clip(TEMPLATES[KINDS] * BRIGHTNESS + RNG.normal(0, 40, (60, 3072)), 0, 255)
TABLE = RNG.normal(size=(60, 12)) * 10.0 ** RNG.uniform(-1, 4, 12) + 50
SETS = {
    "raw pixels": (PIXELS, KINDS, "none"),
    "unit pixels": (PIXELS, KINDS, "unit"),
    "standard table": (TABLE, (TABLE[:, 0] > np.median(TABLE[:, 0])).astype(int), "standard"),
    "raw table": (TABLE, (TABLE[:, 0] > np.median(TABLE[:, 0])).astype(int), "none"),
    "targets of raw pixels": (PIXELS[:, :200], PIXELS.mean(axis=1) + 0.25, "none"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, (X, y, scale) in SETS.items():
        made[name] = tmp_path_factory.mktemp("data") / name
        mf.FederatedDataset.from_arrays(X.astype(np.uint8 if "pixels" in name else float), y, clients=3, scale=scale,
                                        out=made[name])  # fmt: skip
    return made


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        *(("ssca", name) for name in SETS),
        *((algorithm, "raw pixels") for algorithm in ("fedprox", "scaffold", "fedpdm")),
        *(pytest.param("fedavg", name, marks=() if name == "raw pixels" else pytest.mark.long) for name in SETS),
    ],
)
def test_a_new_job_decreases_the_loss(algorithm: str, name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    job = new_job("t", algorithm, str(folders[name]))
    (tmp_path / "job.toml").write_text(job.replace("rounds = 100", "rounds = 4"))
    loss = mf.run(tmp_path / "job.toml", progress=False).columns["train_loss"]
    assert loss[-1] < loss[0] and np.isfinite(loss).all()
