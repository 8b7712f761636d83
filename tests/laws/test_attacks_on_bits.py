"""Attacks on the low bits of what is released: they decide every run with noise in floats, and none with integers.

One record alone has most of the sparse features. Where it is not there, nothing is added to the noise of these, and
whether that is so is asked of every run: of the models, of the uploads, and of the integers behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from float_bits import LEVEL, Hits, share
from jobs_in_python import checked
from lengths import long_unless
from scipy.stats import binom, chisquare
from small import sensitivity
from whole_runs import run

from mpifed.audit.recording import Replay, replay_job
from mpifed.core.record import leaves
from mpifed.files.model_file import read_model
from mpifed.files.run_folder import summary
from mpifed.maths.privacy.discrete import levels_of
from mpifed.testing import Job, Solo

P, COMMON, L, ROWS = 2000, 20, 10, 20  # features, those of everybody, classes, and rows of a client
FLOATS, RUNS = 8, 40  # runs with noise in floats, and with integers
EXACT = 2.0**22  # integers that float32 holds to their last digit, also after a division
DOUBT = 1e-5  # noise is secret, so that no seed makes sure of a test
# model, clients: noise of each, of the server, of one client for the sum, and of three
MODELS = {"local": ("local", 1), "central": ("central", 3), "one": ("distributed", 1), "three": ("distributed", 3)}


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory, make_data: Callable[..., Path]) -> Callable[..., Path]:
    """neighbours(there, clients): data with the record or without it."""
    root, made = tmp_path_factory.mktemp("neighbours"), dict[tuple[bool, int], Path]()

    def folder(there: bool, clients: int) -> Path:
        if (there, clients) not in made:
            rng, name = np.random.default_rng(0), f"{clients}-{int(there)}"
            lines = []
            for row in range(ROWS * clients):
                columns = rng.choice(COMMON, 5, replace=False) + 1
                own = dict(zip(columns.tolist(), rng.normal(size=5).tolist(), strict=True))
                rare = dict(enumerate(rng.normal(size=P - COMMON - 1).tolist(), COMMON + 1))
                own |= {0: rare, 1: {P: 1.0}}.get(row, {}) if there or row else {}
                lines.append(f"{row % L} " + " ".join(f"{c}:{v:.4f}" for c, v in sorted(own.items())) + "\n")
            (root / f"{name}.txt").write_text("".join(lines))
            made[there, clients] = make_data(
                root / name, "svmlight", str(root / f"{name}.txt"), "--sparse", "--split", "rows", "--clients",
                str(clients),
            )  # fmt: skip
        return made[there, clients]

    return folder


def job_of(folder: Path, model: str, **privacy: Any) -> Job:
    """One step of all on all rows, under a noise with which epsilon is 0.1."""
    settings = {
        "level": "client",
        "trust": model,
        "delta": 1e-5,
        "clip": 1.0,
        "noise_multiplier": 40.0,
        "public_preparation": True,
    }
    return checked({
        "name": "bits", "rounds": 1, "data": {"path": str(folder)}, "model": {"name": "softmax", "bias": False},
        "algorithm": {"name": "fedavg", "batch_size": ROWS}, "client_optimizer": {"learning_rate": 0.5},
        "record": {"evaluate_every": 0},
        "privacy": settings | privacy,
    })  # fmt: skip


def binomially(right: int, of: int) -> float:
    """The chance of a count at least as far from half."""
    return float(min(1.0, 2 * binom.cdf(min(right, of - right), of, 0.5)))


# --- noise in floats -------------------------------------------------------------------------------------------------


def image(replay: Replay) -> Hits:
    """How many values of the first model, which is zero before, float32 noise alone could give."""
    algorithm: Any = replay.algorithm
    problem, values = algorithm.problem, algorithm.model(replay.server).first.ravel()
    deviation, clients = np.float32(40 * sensitivity(algorithm)), np.float32(problem.clients)
    return share(values, lambda noise: noise * deviation / clients, np.random.default_rng(1))


FLOAT: dict[str, Any] = {"level": "sample", "noise": "paper"}


def test_every_run_with_noise_in_floats_is_decided(neighbours: Any) -> None:
    """By NumPy's normals; of those made from secret words this attack knows no table."""
    right = 0
    for number in range(FLOATS):
        there = number % 2 == 0
        replay = replay_job(replace(job_of(neighbours(there, 1), "local", **FLOAT), seed=number), 1)
        right += (image(replay).p < LEVEL) != there
    assert right == FLOATS


def test_the_model_file_alone_is_enough(neighbours: Any, tmp_path: Path) -> None:
    """Of a run whose epsilon would be 0.1; and the same file of a run with integers tells nothing."""
    for there in (True, False):
        for name, privacy in {"float": FLOAT, "integers": {"noise": "secure"}}.items():
            out = tmp_path / f"{there}" / name
            run(job_of(neighbours(there, 1), "local", **privacy), Solo(), out)
            values = read_model(out / "model.safetensors")["first"].ravel()
            deviation = np.float32(40 * (0.5 * 2 if name == "float" else 1))
            found = share(values, lambda noise: noise * deviation, np.random.default_rng(1))  # noqa: B023
            assert (found.p < LEVEL) == (name == "float" and not there)
    assert summary(tmp_path / "False" / "integers")["epsilon"] < 0.1
    assert summary(tmp_path / "False" / "float")["epsilon"] is None


# --- integers --------------------------------------------------------------------------------------------------------


def integers(replay: Replay) -> Any:
    """[m] behind the first model, at zero before; those that float32 holds exactly."""
    algorithm: Any = replay.algorithm
    clients = algorithm.problem.clients
    step = sensitivity(algorithm) * 2.0**-algorithm.guard.how.exponent / clients
    values = np.concatenate([leaf.ravel() for _, leaf in leaves(algorithm.model(replay.server))]).astype(np.float64)
    found = values / step
    near = np.abs(found) < EXACT
    assert near.mean() > 0.2
    assert np.abs(found - np.rint(found))[np.abs(found) < 2**16].max() < 2.0**-6  # else they are on no grid
    return np.rint(found[near]).astype(np.int64)


def by_image(replay: Replay) -> bool:
    """More values than by chance that float32 noise could give, be it significant or not."""
    found = image(replay)
    assert found.p > LEVEL
    return found.hits > found.chance * found.of


def by_parity(replay: Replay) -> bool:
    """More odd integers than even ones."""
    return bool((integers(replay) & 1).mean() > 0.5)


def by_levels(replay: Replay) -> bool:
    """What the finest level of the sampler alone decides is further from uniform than at the median."""
    algorithm: Any = replay.algorithm
    clients = algorithm.problem.clients if algorithm.problem.privacy.trust == "distributed" else 1
    shift = levels_of(algorithm.guard.how.sigma / np.sqrt(clients))[1].shift
    found = integers(replay)
    p = min(chisquare(np.bincount(found & 2**bits - 1, minlength=2**bits)).pvalue for bits in (1, shift))
    assert p > DOUBT**2
    return bool(chisquare(np.bincount(found & 2**shift - 1, minlength=2**shift)).pvalue < 0.5)


def by_size(replay: Replay) -> bool:
    """As one decides who knows nothing better: the values of the rare features are larger."""
    algorithm: Any = replay.algorithm
    first = np.asarray(algorithm.model(replay.server).first, np.float64)
    expected = 0.67449 * first.std()
    return bool(np.median(np.abs(first[COMMON:-1])) > expected)


ATTACKS = (by_image, by_parity, by_levels, by_size)


@pytest.mark.parametrize("noise", ["test", pytest.param("secure", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", long_unless(lambda name: name in ("local", "three"), MODELS))
def test_no_attack_decides_runs_with_integers(name: str, noise: str, neighbours: Any) -> None:
    (model, clients), right = MODELS[name], np.zeros(len(ATTACKS), int)
    for number in range(RUNS):
        there = number % 2 == 0
        job = replace(job_of(neighbours(there, clients), model, noise=noise), seed=number)
        replay = replay_job(job, 1)
        right += [attack(replay) == there for attack in ATTACKS]
    chances = [binomially(int(count), RUNS) for count in right]
    assert min(chances) > (0.01 if noise == "test" else DOUBT), dict(zip(ATTACKS, right, strict=True))


def test_floats_are_on_no_grid(neighbours: Any) -> None:
    """So what is asked of integers above is asked of something."""
    replay = replay_job(job_of(neighbours(False, 1), "local", **FLOAT), 1)
    with pytest.raises(AssertionError):
        integers(replay)
