"""Runs of modules that draw in training: exact on any ranks, in any channel, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
from federations import held
from jobs_in_python import as_in_a_file
from safetensors.torch import load_file
from test_torch_bits import hashes
from torch.nn import functional

from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary

HERE = Path(__file__).parent
RATE = {"client_optimizer": {"learning_rate": 0.3}}
HEAVY = {"client_optimizer": {"learning_rate": 0.2, "momentum": 0.5}}
METHODS = [
    {"name": "fedavg", "batch_size": 8} | RATE,
    {"name": "fedavg", "batch_size": 50, "local_epochs": 2} | HEAVY,
    {"name": "fedprox", "mu": 0.1, "batch_size": 8, "local_steps": 3} | RATE,
    {"name": "scaffold", "batch_size": 8, "local_steps": 2} | RATE,
    {"name": "fedpdm", "rho": 1.0, "batch_size": 8, "local_steps": 2} | RATE,
    {"name": "ssca", "batch_size": 8, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2},
    {"name": "ssca", "batch_size": 8, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2,
     "variance_reduction": "recursive"},
]  # fmt: skip
PRIVATE = {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 0.7, "noise": "test", "public_preparation": True}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)


def job_of(data: Path, **tables: Any) -> dict[str, Any]:
    plain = {
        "name": "dropout", "rounds": 3, "data": {"path": str(data)},
        "model": {"name": "torch", "build": "nets:dropped", "shape": [1, 8, 8]},
        "algorithm": {"name": "scaffold", "batch_size": 8, "local_steps": 2} | RATE,
        "record": {"evaluate_every": 3, "checkpoint_every": 1},
    }  # fmt: skip
    return plain | tables


def sha(launch: Any, path: Path, out: Path, *more: str) -> str:
    ended = launch(None, "run", path, "--out", out, *more)
    assert ended.code == 0, ended.text
    return str(summary(out)["model_sha256"])


def test_one_hash_on_any_ranks_and_in_any_blocks(
    skewed: Path, launch: Any, write_job: Any, tmp_path: Path, here: None
) -> None:
    """Of every algorithm, of clients of different sizes, in one process and on three ranks."""
    methods = [as_in_a_file({"algorithm": method}) for method in METHODS]
    methods += [
        as_in_a_file({"algorithm": METHODS[2], "privacy": PRIVATE | more}) for more in ({}, {"level": "client"})
    ]
    path, found = write_job(tmp_path / "job.toml", job_of(skewed, rounds=2, sweep={"methods": methods})), []
    for ranks, block in ((None, 1), (3, 4)):
        out = tmp_path / f"blocks-of-{block}"
        ended = launch(ranks, "run", path, "--out", out, "--set", f"data.block={block}", cwd=ranks and HERE)
        assert ended.code == 0, ended.text
        found.append(hashes(out / "sweep.csv"))
    assert found[0] == found[1]
    assert len(set(found[0])) == len(found[0]) == 9 and all(len(one) == 64 for one in found[0])


def test_plain_masked_encrypted_and_resumed(
    digits: Path, launch: Any, write_job: Any, tmp_path: Path, here: None
) -> None:
    found = set()
    for security in ("plain", "masked", "encrypted"):
        path = write_job(tmp_path / f"{security}.toml", job_of(digits, aggregation={"security": security}))
        found.add(sha(launch, path, tmp_path / security))
    path, out = write_job(tmp_path / "job.toml", job_of(digits)), tmp_path / "resumed"
    for rounds in ("1", "2", "3"):
        resumed = sha(launch, path, out, "--set", f"rounds={rounds}", *(["--resume"] if out.exists() else []))
    assert found == {resumed}


def test_it_trains_and_the_plain_module_takes_its_model(
    digits: Path, launch: Any, write_job: Any, tmp_path: Path, here: None
) -> None:
    """Measured without dropout; the file loads in the user's own module, whose losses in eval() are those measured."""
    job = job_of(
        digits, rounds=20, record={"evaluate_every": 20},
        model={"name": "torch", "build": "nets:dropped_twice", "shape": [64]},
        algorithm={"name": "fedavg", "batch_size": 20, "local_steps": 8, "client_optimizer": {"learning_rate": 0.5}},
    )  # fmt: skip
    path, out = write_job(tmp_path / "job.toml", job), tmp_path / "run"
    sha(launch, path, out)
    assert summary(out)["test_accuracy"] > 0.85
    net = nets.dropped_twice(10)
    net.load_state_dict(load_file(out / "model.safetensors"))
    data = open_federation(digits)
    X, y = (
        np.concatenate([part(data, i) for i in range(data.clients)]) for part in (held, lambda *at: shard_of(*at).y)
    )
    with torch.no_grad():
        z = net.eval()(torch.from_numpy(X.astype("f4")))
    expected = float(functional.cross_entropy(z, torch.from_numpy(y).long()))
    assert expected < 0.7
    assert read_history(out)["train_loss"][-1] == pytest.approx(expected, rel=1e-5)  # of sums in float32
