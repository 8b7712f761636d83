"""Step sizes of new jobs: no method that takes rows diverges on raw pixels; scaled tables keep the usual ones."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from lengths import long_unless

import mpifed as mf
from mpifed.core.record import Array
from mpifed.explain.new_job import new_job
from mpifed.explain.step_sizes import curvature, learning_rate, tau
from mpifed.shards.store import open_federation

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
    long_unless(
        lambda algorithm, name: algorithm == "ssca" or name == "raw pixels",
        itertools.product(["ssca", "fedavg", "fedprox", "scaffold", "fedpdm"], SETS),
    ),
)
def test_a_new_job_decreases_the_loss(algorithm: str, name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    job = new_job("t", algorithm, str(folders[name]))
    (tmp_path / "job.toml").write_text(job.replace("rounds = 100", "rounds = 4"))
    loss = mf.run(tmp_path / "job.toml", progress=False).columns["train_loss"]
    assert loss[-1] < loss[0] and np.isfinite(loss).all()


def made_of(X: Array, path: Path, **how: object) -> Path:
    y = np.arange(len(X)) % 2
    return mf.FederatedDataset.from_arrays(X, y, out=path, **{"clients": 2, **how}).path  # type: ignore[arg-type]


def test_the_curvature_of_rows(tmp_path: Path) -> None:
    """Largest over the clients; exact where a minibatch is all rows that a client has."""
    X = RNG.normal(size=(24, 5))
    X[::2] *= 7
    data = open_federation(made_of(X, tmp_path / "a", clients=np.arange(24) % 2))
    shards = [np.float32(X[n::2]) for n in range(2)]
    values = [np.linalg.eigvalsh(rows.T @ rows / 12)[-1] for rows in shards]
    assert curvature(data, 12) == pytest.approx(1 + max(values), rel=1e-6)
    whole = open_federation(made_of(X, tmp_path / "b", clients=1))
    by_columns = open_federation(made_of(X, tmp_path / "c", clients=3, split="columns"))
    assert curvature(by_columns, 24) >= curvature(whole, 24)
    many = open_federation(made_of(np.full((80, 2), 3.0), tmp_path / "d", clients=np.arange(80)))
    assert curvature(many, 1) == pytest.approx(1 + 18)


def test_values_and_their_reasons(tmp_path: Path, folders: dict[str, Path]) -> None:
    assert learning_rate(3.0) == "0.1" and tau(3.0, 2) == "" == tau(19.0, 2) == tau(0.4, 0)
    assert learning_rate(12.0) == "0.08  # 1 / 12, the curvature on a minibatch: more may diverge"
    assert tau(19.0, 0) == "4  # 1/4 of 19, the curvature on a minibatch: less may diverge"
    assert tau(4e7, 10).startswith("1e+07  # 1/4 of 4e+07, the curvature on a minibatch: less may diverge; `mpifed")
    for of in (1.0, 9.99, 10.01, 3e4, 1e77):
        rate = tomllib.loads(f"rate = {learning_rate(of)}")["rate"]
        assert 0.49 * min(0.1, 1 / of) < rate <= min(0.1, 1 / of)
    text = new_job("t", "fedavg", str(folders["raw pixels"]))
    (line,) = [line for line in text.splitlines() if line.startswith("learning_rate")]
    assert len(line) <= 120 and line.endswith("more may diverge; `mpifed data --scale` lowers it")
    assert tomllib.loads(new_job("t", "fedavg", str(folders["standard table"])))["client_optimizer"] == {
        "learning_rate": 0.1
    }
    assert "tau" not in tomllib.loads(new_job("t", "ssca", str(folders["standard table"])))["algorithm"]
    assert tomllib.loads(new_job("t", "fedavg", str(tmp_path / "none")))["client_optimizer"]["learning_rate"] == 0.1
