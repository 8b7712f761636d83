"""Networks of PyTorch under constraints and privacy: limits met and certified, epsilon as of built-in models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch.nn import Flatten, GroupNorm, Linear, Sequential

import mpifed as mf
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)


def test_the_smallest_norm_within_a_limit_of_the_loss(
    digits: Path, launch: Any, write_job: Any, tmp_path: Path, here: None
) -> None:
    """Met, and a stationary point of the constrained problem, as the certificate over all rows says."""
    job = {
        "name": "constrained", "rounds": 600, "data": {"path": str(digits)},
        "model": {"name": "torch", "build": "nets:convolution"},
        "minimize": {"name": "norm"}, "constraint": [{"name": "loss", "limit": 0.6, "margin": 0.02}],
        "algorithm": {"name": "ssca", "batch_size": 40, "rho": [0.9, 0.51], "gamma": [0.9, 0.56], "tau": 0.3,
                      "slack_cost": 100.0},
        "record": {"evaluate_every": 300},
    }  # fmt: skip
    path, out = write_job(tmp_path / "job.toml", job), tmp_path / "run"
    ended = launch(2, "run", path, "--out", out, cwd=Path(__file__).parent)
    assert ended.code == 0, ended.text
    last = summary(out)
    assert last["constraint_values"][0] <= 0.6 and last["test_accuracy"] > 0.85
    history = read_history(out)
    assert history["feasibility"][-1] == 0 and history["multiplier_1"][-1] > 0
    assert history["kkt_residual"][-1] < 0.45 * history["kkt_residual"][0]


PRIVATE: dict[str, dict[str, Any]] = {
    "gradients": {"noise_multiplier": 0.8},
    "gradients, of an epsilon": {"epsilon": 4.0},
    "clients": {"noise_multiplier": 0.8, "level": "client", "trust": "central"},
    "shares": {"noise_multiplier": 0.8, "level": "client", "trust": "distributed"},
}


@pytest.mark.parametrize("private", PRIVATE)
def test_epsilon_is_that_of_the_built_in_model(
    digits: Path, launch: Any, write_job: Any, tmp_path: Path, here: None, private: str
) -> None:
    """A linear layer and softmax regression have the same parameters: the same is released, the same is spent.

    But for sums in float32, those of clipped gradients of the built-in model, whose error its epsilon counts.
    """
    spent = {}
    for name, model in (("own", {"name": "softmax"}), ("torch", {"name": "torch", "build": "nets:flat_linear"})):
        job = {
            "name": name, "rounds": 3, "data": {"path": str(digits)}, "model": model, "record": {"evaluate_every": 3},
            "algorithm": {"name": "fedavg", "batch_size": 20, "client_optimizer": {"learning_rate": 0.1}},
            "privacy": {"clip": 1.0, "delta": 1e-5} | PRIVATE[private],
        }  # fmt: skip
        path = write_job(tmp_path / f"{name}.toml", job)
        ended = launch(None, "run", path, "--out", tmp_path / name)
        assert ended.code == 0, ended.text
        checked = json.loads(launch(None, "check", path, "--json").out)["privacy"]
        spent[name] = {key: summary(tmp_path / name)[key] for key in ("epsilon", "delta")} | {"checked": checked}

    own, other = spent["own"], spent["torch"]
    if "level" in PRIVATE[private]:
        assert own == other and own["epsilon"] > 0
        return
    counted = "noise_multiplier" if "epsilon" in PRIVATE[private] else "epsilon"
    assert other["checked"][counted] < own["checked"][counted] < other["checked"][counted] * 1.001
    for where, there in ((own, other), (own["checked"], other["checked"])):
        one, same = ({key: v for key, v in each.items() if type(v) not in (float, dict)} for each in (where, there))
        assert one == same
        assert where["epsilon"] == pytest.approx(there["epsilon"], rel=1e-3) and where["epsilon"] > 0


def test_weights_that_a_network_brings_may_have_been_trained(digits: Path) -> None:
    """No matter whether they have been: the seed does not draw them; layers of ones, and of zeros, nobody has."""

    def net() -> Sequential:
        return Sequential(Flatten(), Linear(64, 8), GroupNorm(2, 8), Linear(8, 10))

    def check(build: Any, **changes: Any) -> str:
        privacy = mf.Privacy(delta=1e-5, clip=1.0, noise_multiplier=1.0, **changes)
        algorithm = mf.FedAvg(batch_size=20, client_optimizer=0.1)
        return " ".join(mf.check(algorithm, str(digits), mf.Torch(build), rounds=3, privacy=privacy).split())

    for level in ("sample", "client"):
        with pytest.raises(mf.UsageError, match=r'\[model\] build: "1.weight" is the same whatever the seed'):
            check(net(), level=level)
        assert "a network brings" not in check(net, level=level)
        assert "what weights that a network brings have learned" in check(net(), level=level, public_preparation=True)
