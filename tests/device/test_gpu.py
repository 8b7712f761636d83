"""The same comparisons on a real device: `make test-gpu`; without one they fail. MPIFED_TEST_DEVICE=cpu rehearses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both import assert_alike, job_of, outcome
from jobs_in_python import checked
from registry import CASES, NAMES, Case
from shipped import UNMET
from written_files import read_json

from mpifed.core.device import Device
from mpifed.core.record import on_host
from mpifed.files.run_folder import summary
from mpifed.maths import arrays
from mpifed.maths.device import open_device
from mpifed.maths.duals import HingeDual, LeastSquaresDual, LogisticDual, SquaredHingeDual
from mpifed.maths.fixedpoint import Encoder, grid
from mpifed.maths.objectives import mlp

pytestmark = pytest.mark.gpu
WHERE = os.environ.get("MPIFED_TEST_DEVICE", "cuda")
TOLERANCE = 2e-4  # products in another order, two rounds in single precision
CHANGE = 0.02  # of networks, relative to what two rounds have changed: convolutions in other orders, for many layers
NETWORKS: dict[str, dict[str, Any]] = {
    "2nn": {"model": {"build": "mpifed.models:mlp"}},
    "cnn": {"model": {"build": "mpifed.models:cnn"}},
    "cnn, private": {"model": {"build": "mpifed.models:cnn"}, "privacy": {"clip": 0.5, "noise_multiplier": 0.01,
                     "delta": 1e-5, "noise": "test", "public_preparation": True}},
    "resnet18": {"model": {"build": "mpifed.models:resnet18"}},
    "lstm": {"model": {"build": "mpifed.models:ByteLSTM", "shape": [64]}},
    "adapters": {"model": {"build": "jobs.examples.adapters:adapted", "shape": [64]}},
}  # fmt: skip


@pytest.fixture(scope="session")
def device() -> Any:
    """A CUDA device; a UsageError, and so a failure, without one."""
    return Device() if WHERE == "cpu" else open_device(WHERE, 0)


@pytest.fixture
def folder(case: Case, skewed: Path, sides: Path, halves: Path, patches: Path) -> Path:
    return {"rows": skewed, "columns": sides, "halves": halves, "cells": patches}[case.split]


every_algorithm = pytest.mark.parametrize("case", CASES, ids=NAMES)


@every_algorithm
def test_every_algorithm(device: Any, case: Case, folder: Path) -> None:
    there, here = (outcome(job_of(folder, case, where)) for where in (WHERE, "cpu"))
    assert_alike(there, here, TOLERANCE)


@every_algorithm
def test_the_same_bits_every_time(device: Any, case: Case, folder: Path) -> None:
    first, again = (outcome(job_of(folder, case, WHERE), certify=False) for _ in range(2))
    assert first.bits == again.bits


def network(name: str, folder: Path, device: str) -> Any:
    """FedAvg with a network of PyTorch, which sees the digits as images or as bytes."""
    job = {
        "name": name, "rounds": 2, "data": {"path": str(folder), "block": 3}, "compute": {"device": device},
        "algorithm": {"name": "fedavg", "batch_size": 5, "local_steps": 1 if "private" in name else 2},
        "client_optimizer": {"learning_rate": 0.02}, "participation": {"clients_per_round": 3},
        "record": {"evaluate_every": 2, "evaluate_rows": 20},
    }  # fmt: skip
    return checked(job | NETWORKS[name] | {"model": {"name": "torch"} | NETWORKS[name]["model"]})


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network(device: Any, name: str, digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rounds, and the same bits again."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # where `jobs` is
    start = outcome(network(name, digits, "cpu"), rounds=0, certify=False).model
    there, again, here = (outcome(network(name, digits, where), certify=False) for where in (WHERE, WHERE, "cpu"))
    assert there.bits == again.bits
    change = np.linalg.norm(here.model - start)
    assert change > 0 and np.linalg.norm(there.model - here.model) <= CHANGE * change


def test_the_same_bits_on_any_number_of_ranks(
    device: Any, skewed: Path, patches: Path, tmp_path: Path, write_job: Any, launch: Callable[..., Any]
) -> None:
    """They share the device."""
    methods = {"ssca-horizontal-3": skewed, "fedpdm-1": skewed, "hyfdca-3": patches}
    jobs = {name: job_of(folder, CASES[NAMES.index(name)], "cpu") for name, folder in methods.items()}
    for name, checked_job in {**jobs, "cnn": network("cnn", skewed, "cpu")}.items():
        job = checked_job.table()
        job |= {"rounds": 3, "record": {"evaluate_every": 3, "checkpoint_every": 0}, "data": job["data"] | {"block": 2}}
        job["compute"]["device"] = WHERE
        path, found = write_job(tmp_path / f"{name}.toml", job), set()
        for ranks in (1, 2, 4):
            out = tmp_path / f"{name}-{ranks}"
            ended = launch(ranks, "run", path, "--out", out)
            assert ended.code in (0, UNMET), ended.text
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

    for there, here in zip(found(getattr(device, "xp", np).array), found(lambda array: array), strict=True):
        np.testing.assert_allclose(on_host(there), here, rtol=30 * close, atol=30 * close)


@pytest.mark.parametrize(("scale", "bound"), [(2.0**-40, 2.0**10), (2.0**-12, 2.0**9), (2.0**-60, 2.0**20)])
def test_encoded_sums_are_the_same_integers(device: Any, scale: float, bound: float) -> None:
    form, rng = grid(scale, bound, 10), np.random.default_rng(4)
    values = (rng.uniform(-bound, bound, (5, 999)) * 2.0 ** rng.integers(-50, 1, (5, 999))).astype("f4")
    values[0, :3] = [0.5 * scale, 1.5 * scale, -2.5 * scale]
    here, there = (np.arange(form.limbs * 999) for _ in range(2))
    for anew in (True, False):
        assert Encoder(form).add(values, here, anew)
        assert Encoder(form).add(getattr(device, "xp", np).asarray(values), there, anew)
        assert here.tolist() == there.tolist()
    for wrong in (np.nan, 1.01 * bound, -np.inf):
        values[3, 7] = wrong
        assert not Encoder(form).add(getattr(device, "xp", np).asarray(values), there)
