"""The example of a network of JAX: derivatives, clipping, and one SHA-256 on any number of ranks."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import flat

from jobs.examples.own_jax import Tanh
from mpifed import laws
from mpifed.core.record import map_leaves
from mpifed.files.run_folder import summary
from mpifed.maths.clipping import clipped_gradient
from mpifed.maths.problem import Problem

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "jobs" / "examples" / "own_jax.toml"


def test_laws() -> None:
    problem = Problem(Tanh(hidden_units=7), "rows", np.array([8]), 8, 6, 4, "float32")
    laws.check_function(laws.ModelFunction(problem.objective), problem, np.random.default_rng(5))


def test_pieces_add_up() -> None:
    """More rows than pass at a time; a library's arrays may not be written to."""
    objective, rng = Tanh(hidden_units=7), np.random.default_rng(8)
    model = map_leaves(lambda leaf: leaf[None], objective.start(6, 4, rng, "float64"))
    X, y, weights = rng.standard_normal((1, 600, 6)), rng.integers(0, 4, (1, 600)), rng.uniform(size=(1, 600))
    for compute in (objective.gradient, lambda *data: clipped_gradient(objective, *data, 0.5)):
        parts = [compute(model, *(part[:, at] for part in (X, y, weights))) for at in (slice(200), slice(200, 600))]
        whole = flat(compute(model, X, y, weights))
        np.testing.assert_allclose(whole, flat(parts[0]) + flat(parts[1]), rtol=1e-9, atol=1e-12)


@pytest.mark.launch
def test_one_hash_on_any_number_of_ranks(digits: Path, launch: Any, tmp_path: Path) -> None:
    """With XLA's threads and without."""
    settings = (f"data.path={digits}", "rounds=20", "record.evaluate_every=10")
    changes = [word for setting in settings for word in ("--set", setting)]
    assert launch(None, "check", JOB, *changes, cwd=ROOT).code == 0  # a right class
    found = []
    threads = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=true"}
    for name, ranks, env in (("1", None, {}), ("3", 3, {}), ("threads", 1, threads)):
        ended = launch(ranks, "run", JOB, *changes, "--out", tmp_path / name, cwd=ROOT, env=env)
        assert ended.code == 0, ended.text
        found.append(summary(tmp_path / name))
    assert len({run["model_sha256"] for run in found}) == 1
    assert found[0]["train_loss"] < 0.9  # of ln 10 = 2.3
    about = json.loads((tmp_path / "1" / "run.json").read_text())
    assert {name: about["distributions"][name] for name in ("jax", "jaxlib")} == {
        name: version(name) for name in ("jax", "jaxlib")
    }  # it is jaxlib that computes
