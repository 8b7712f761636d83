"""The same comparisons on a real device: `make test-gpu`. Without one they fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both import assert_alike, job_of, outcome
from registry import CASES, NAMES, Case
from written_files import read_json

from mpifed.files.run_folder import summary
from mpifed.maths import arrays
from mpifed.maths.device import open_device
from mpifed.maths.duals import HingeDual, LeastSquaresDual, LogisticDual, SquaredHingeDual
from mpifed.maths.fixedpoint import Encoder, grid
from mpifed.maths.objectives import mlp

pytestmark = pytest.mark.gpu
TOLERANCE = 2e-4  # products in another order, two rounds in single precision


@pytest.fixture(scope="session")
def device() -> Any:
    """A CUDA device; a UsageError, and so a failure, without one."""
    return open_device("gpu", 0)


@pytest.fixture
def folder(case: Case, skewed: Path, sides: Path, halves: Path, patches: Path) -> Path:
    return {"rows": skewed, "columns": sides, "halves": halves, "cells": patches}[case.split]


every_algorithm = pytest.mark.parametrize("case", CASES, ids=NAMES)


@every_algorithm
def test_every_algorithm(device: Any, case: Case, folder: Path) -> None:
    there, here = (outcome(job_of(folder, case, where)) for where in ("gpu", "cpu"))
    assert_alike(there, here, TOLERANCE)


@every_algorithm
def test_the_same_bits_every_time(device: Any, case: Case, folder: Path) -> None:
    first, again = (outcome(job_of(folder, case, "gpu"), certify=False) for _ in range(2))
    assert first.bits == again.bits


def test_the_same_bits_on_any_number_of_ranks(
    device: Any, skewed: Path, patches: Path, tmp_path: Path, write_job: Any, launch: Callable[..., Any]
) -> None:
    for name, folder in (("ssca-horizontal-3", skewed), ("fedpdm-1", skewed), ("hyfdca-3", patches)):
        job = job_of(folder, CASES[NAMES.index(name)], "cpu").table()
        job |= {"rounds": 3, "record": {"evaluate_every": 3, "checkpoint_every": 0}, "data": job["data"] | {"block": 2}}
        job["compute"]["device"] = "gpu"
        path, found = write_job(tmp_path / f"{name}.toml", job), set()
        for ranks in (0, 2, 3):
            out = tmp_path / f"{name}-{ranks}"
            ended = launch(ranks, "run", path, "--out", out)
            assert ended.code == 0, ended.text
            found.add(summary(out)["model_sha256"])
            assert read_json(out / "run.json")["device"] == device.name
        assert len(found) == 1


@pytest.mark.parametrize(("dtype", "close"), [("float32", 4e-6), ("float64", 1e-13)])
def test_functions(device: Any, dtype: str, close: float) -> None:
    """NumPy's functions on arrays there, as on those in memory, which some of them overwrite."""
    rng, y = np.random.default_rng(3), np.arange(40) % 2
    z, back = rng.standard_normal((2, 40, 30)).astype(dtype)
    X, w, slopes = (rng.standard_normal(shape).astype(dtype) for shape in ((3, 40, 5), (5, 2), (3, 40, 2)))
    alpha, scores, curvature = rng.standard_normal((3, 40)).astype(dtype)
    curvature *= curvature

    def found(move: Any) -> list[Any]:
        gate, active = mlp.swish(move(z))
        values = [gate, active.copy(), mlp.swish_slope(move(z), gate, active, move(back.copy()))]
        values.append(arrays.square_norms(move(z)))
        values += [arrays.product(move(X), move(w)), arrays.transposed_product(move(X), move(slopes))]
        for dual in (HingeDual(), SquaredHingeDual(), LogisticDual(), LeastSquaresDual()):
            at = dual.feasible(move(alpha), move(y))
            values.append(dual.step(at, move(scores), move(y), move(curvature)))
            values.append(dual.conjugate(at, move(y)))
        return values

    for there, here in zip(found(device.xp.asarray), found(lambda array: array), strict=True):
        np.testing.assert_allclose(there.get(), here, rtol=30 * close, atol=30 * close)


@pytest.mark.parametrize(("scale", "bound"), [(2.0**-40, 2.0**10), (2.0**-12, 2.0**9), (2.0**-60, 2.0**20)])
def test_encoded_sums_are_the_same_integers(device: Any, scale: float, bound: float) -> None:
    form, rng = grid(scale, bound, 10), np.random.default_rng(4)
    values = (rng.uniform(-bound, bound, (5, 999)) * 2.0 ** rng.integers(-50, 1, (5, 999))).astype("f4")
    values[0, :3] = [0.5 * scale, 1.5 * scale, -2.5 * scale]
    here, there = (np.arange(form.limbs * 999) for _ in range(2))
    for anew in (True, False):
        assert Encoder(form).add(values, here, anew)
        assert Encoder(form).add(device.xp.asarray(values), there, anew)
        assert here.tolist() == there.tolist()
    for wrong in (np.nan, 1.01 * bound, -np.inf):
        values[3, 7] = wrong
        assert not Encoder(form).add(device.xp.asarray(values), there)
