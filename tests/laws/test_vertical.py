"""An exchange whose sum the clients hear, and clients with a memory: by a vertical algorithm of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from mpifed.comm.transport import Alone
from mpifed.core.round import Round
from mpifed.run.config import Job
from mpifed.run.history import read_model, summary
from mpifed.run.loop import run
from mpifed.shards.store import open_federation

ROUNDS, BATCH, STEP = 9, 11, 0.1


@pytest.fixture
def vertical(columns: Path) -> dict[str, Any]:
    return {
        "name": "vertical",
        "rounds": ROUNDS,
        "data": {"path": str(columns)},
        "objective": {"name": "least-squares"},
        "algorithm": {"name": "own_algorithms:VerticalLeastSquares", "batch": BATCH, "step": STEP},
        "record": {"every": 0, "checkpoint_every": 4},
        "compute": {"dtype": "float64"},
    }


def plain_loop(data: Path, present: Callable[[int], list[int]]) -> np.ndarray:
    """The weights [p] after all rounds, from the whole matrix."""
    federation = open_federation(data)
    shards = [federation.shard(i, in_memory=True) for i in range(federation.clients)]
    X = np.zeros((federation.samples, federation.features))
    for shard in shards:
        part = np.empty((shard.samples, shard.features))
        shard.take(np.arange(shard.samples), part)
        X[:, shard.columns] = part
    w, everybody = np.zeros(federation.features), np.ones(federation.clients, dtype=bool)
    for t in range(ROUNDS):
        now = Round(t, 1, everybody)
        rows = now.draw("rows", np.array([0]), np.array([federation.samples]), BATCH)[0]
        held = np.concatenate([shards[i].columns for i in present(t)])
        residual = X[rows][:, held] @ w[held] - shards[0].y[rows]
        w[held] -= STEP * X[rows][:, held].T @ residual / BATCH
    return w


def test_against_a_plain_loop(vertical: dict[str, Any], columns: Path, tmp_path: Path) -> None:
    result = run(Job.check(vertical), Alone(), tmp_path / "run")
    expected = plain_loop(columns, lambda t: list(range(5)))
    assert abs(expected).max() > 0.1
    # scores and gradients are rounded to multiples of 2^-40
    np.testing.assert_allclose(result.model.first[:, 0], expected, rtol=0, atol=1e-10)


def test_absent_clients_neither_speak_nor_hear(vertical: dict[str, Any], columns: Path, tmp_path: Path) -> None:
    vertical["participation"] = {"clients_per_round": 3}

    def present(t: int) -> list[int]:
        chosen = Round(t, 1, np.ones(5, dtype=bool)).rng("participation").choice(5, 3, replace=False)
        return sorted(chosen.tolist())

    result = run(Job.check(vertical), Alone(), tmp_path / "run")
    np.testing.assert_allclose(result.model.first[:, 0], plain_loop(columns, present), rtol=0, atol=1e-10)


@pytest.mark.launch
@pytest.mark.parametrize("changes", [(), ("participation.clients_per_round=3",), ("data.block=2",)])
def test_same_bits_and_exact_resume_with_client_states(
    vertical: dict[str, Any], write_job: Any, launch: Callable[..., Any], tmp_path: Path, changes: tuple[str, ...]
) -> None:
    job = write_job(tmp_path / "job.toml", vertical)
    settings = [part for change in changes for part in ("--set", change)]
    hashes = {}
    for ranks, *more in ((0,), (4,), (3, "--set", "server.dedicated=true")):
        ended = launch(ranks, "run", job, "--out", tmp_path / f"on-{ranks}", *settings, *more)
        assert ended.code == 0, ended.text
        hashes[ranks] = summary(tmp_path / f"on-{ranks}")["model_sha256"]
    assert len(set(hashes.values())) == 1, hashes
    for ranks, then in ((2, 4), (4, 0)):
        out = tmp_path / f"from-{ranks}-to-{then}"
        assert launch(ranks, "run", job, "--out", out, *settings, "--set", "rounds=5").code == 0
        ended = launch(then, "run", job, "--out", out, *settings, "--resume")
        assert ended.code == 0, ended.text
        assert summary(out)["model_sha256"] == hashes[0]


def test_checkpoints_hold_client_states_by_ranges_of_clients(vertical: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(Job.check(vertical), Alone(), out)
    newest = sorted((out / "checkpoint").iterdir())[-1]
    assert newest.name == f"round-{ROUNDS:08d}"
    files = sorted(path.name for path in newest.glob("clients-*.h5"))
    assert files == ["clients-00000000-00000004.h5"]
    w = read_model(out / "model.h5")["first"][:, 0]
    total = np.zeros_like(w)
    with h5py.File(newest / files[0]) as file:
        assert len(file) == 5
        for group in file.values():
            assert group["w"].shape == (1, 13)
            total += group["w"][0]
    # the server's gradients have been rounded to the grid, the clients' own have not
    np.testing.assert_allclose(total, w, rtol=0, atol=1e-10)


def test_bytes_are_those_of_a_deployment(vertical: dict[str, Any], tmp_path: Path) -> None:
    result = run(Job.check(vertical | {"record": {"every": 1, "checkpoint_every": 0}}), Alone(), tmp_path / "run")
    up = 8 * (BATCH + 13)  # scores and gradients, an int64 each
    down = 2 * 8 + 8 * BATCH  # two questions of one float64, and the sum of the scores
    assert result.columns["up_bytes"] == ROUNDS * 5 * up
    assert result.columns["down_bytes"] == ROUNDS * 5 * down


def test_the_users_own_check_is_heard(vertical: dict[str, Any], regression: Path, tmp_path: Path) -> None:
    from mpifed.core.errors import UsageError

    with pytest.raises(UsageError, match="needs data split by columns"):
        run(Job.check(vertical | {"data": {"path": str(regression)}}), Alone(), tmp_path / "run")
