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
from mpifed.maths import arrays, kernels, kernels_sums
from mpifed.maths.device import open_device
from mpifed.maths.fixedpoint import Encoder, grid
from mpifed.maths.sparse import DeviceRows

pytestmark = pytest.mark.gpu
TOLERANCE = 2e-4  # products in another order, two rounds in single precision


@pytest.fixture(scope="session")
def device() -> Any:
    """A CUDA device; a UsageError, and so a failure, without one."""
    return open_device("gpu", 0, 1)


@pytest.fixture
def folder(case: Case, skewed: Path, sides: Path, halves: Path, patches: Path) -> Path:
    return {"rows": skewed, "columns": sides, "halves": halves, "cells": patches}[case.split]


every_algorithm = pytest.mark.parametrize("case", CASES, ids=NAMES)


@every_algorithm
def test_every_algorithm(device: Any, case: Case, folder: Path) -> None:
    there, here = (outcome(job_of(folder, case, where)) for where in ("gpu", "cpu"))
    assert_alike(there, here, TOLERANCE)


@every_algorithm
def test_the_same_bits_every_time_and_wherever_rows_are(device: Any, case: Case, folder: Path) -> None:
    first, again = (outcome(job_of(folder, case, "gpu"), certify=False) for _ in range(2))
    sent = job_of(folder, case, "gpu", compute={"device": "gpu", "memory_gib": 1e-9})
    assert first.bits == again.bits == outcome(sent, certify=False).bits


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


def test_kernels(device: Any) -> None:
    cupy, rng = device.xp, np.random.default_rng(3)
    for dtype, close in (("float32", 4e-6), ("float64", 1e-13)):
        z, back = rng.standard_normal((2, 40, 30)).astype(dtype)
        gate, active = kernels.swish(cupy.asarray(z))
        np.testing.assert_allclose(active.get(), kernels.swish(z)[1], rtol=close, atol=close)
        down = kernels.swish_slope(cupy.asarray(z), gate, active, cupy.asarray(back)).get()
        assert down.tobytes() == kernels.swish_slope(z, gate.get(), active.get(), back).tobytes()
        squares = arrays.square_norms(cupy.asarray(z)).get()
        np.testing.assert_allclose(squares, (z.astype("f8") ** 2).sum(-1), rtol=1e-13)


@pytest.mark.parametrize(("scale", "bound"), [(2.0**-40, 2.0**10), (2.0**-12, 2.0**9), (2.0**-60, 2.0**20)])
def test_encoded_sums_are_the_same_integers(device: Any, scale: float, bound: float) -> None:
    cupy, form, rng = device.xp, grid(scale, bound, 10, "float32"), np.random.default_rng(4)
    values = (rng.uniform(-bound, bound, (5, 999)) * 2.0 ** rng.integers(-50, 1, (5, 999))).astype("f4")
    values[0, :3] = [0.5 * scale, 1.5 * scale, -2.5 * scale]
    expected = np.zeros(form.limbs * 999, dtype=f"int{form.bits}")
    Encoder(form, 999).add(values, expected)
    totals = [cupy.zeros(999, f"int{form.bits}") for _ in range(form.limbs)]
    kernels_sums.add_encoded(cupy.asarray(values), form, totals)
    assert np.concatenate([one.get() for one in totals]).tolist() == expected.tolist()


def test_sparse_rows(device: Any) -> None:
    from scipy.sparse import random

    host, rng = random(130, 90, 0.3, format="csr", dtype="f8", random_state=3), np.random.default_rng(5)
    there, at = DeviceRows.of(host, device.xp), np.array([4, 4, 0, 120])
    for some, ours in ((host, there), (host[at], there[at]), (host[3:70], there[3:70]), (host.T.tocsr(), there.T)):
        W = rng.standard_normal((some.shape[1], 3))
        np.testing.assert_allclose((ours @ device.xp.asarray(W)).get(), some @ W, rtol=1e-12, atol=1e-12)
