"""Interrupted, stopped and killed runs go on, on other numbers of ranks, to the bits of the uninterrupted one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import CERTIFICATE, of_certificate
from methods import private
from registry import table
from written_files import read_json

from mpifed.files.history import read_history
from mpifed.files.run_folder import summary

ROUNDS = 12
pytestmark = pytest.mark.launch


@pytest.fixture(scope="module")
def job(skewed: Path, write_job: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg with partial participation, in which client 6 may have trouble in round 5."""
    own = {
        "name": "own_algorithms:Troubled",
        "batch_size": 5,
        "client_optimizer": {"learning_rate": {"initial": 0.3, "exponent": 0.2}},
        "local_steps": 2,
    }
    record = {"evaluate_every": 3, "checkpoint_every": 2}
    return write_job(
        tmp_path_factory.mktemp("job") / "job.toml",
        table(
            skewed,
            own,
            rounds=ROUNDS,
            record=record,
            participation={"clients_per_round": 9},
            seed=4,
            data={"path": str(skewed), "block": "auto"},
        ),
    )


@pytest.fixture(scope="module")
def whole(job: Path, launch: Callable[..., Any]) -> Path:
    """The uninterrupted run."""
    ended = launch(0, "run", job, "--out", job.parent / "whole")
    assert ended.code == 0, ended.text
    return job.parent / "whole"


def same(one: Path, other: Path, certified: int | None = None) -> None:
    """Two runs have the same bits, in the model, the ledger and the history.

    The row of round `certified`, at which the first run has ended once, has a certificate that the second has not.
    """
    names = ("model_sha256", "rounds", "exit", "objective", "train_loss", "up_bytes", "down_bytes")
    first, second = summary(one), summary(other)
    assert {n: first[n] for n in names} == {n: second[n] for n in names}
    a, b = read_history(one), read_history(other)
    assert list(a) == list(b)
    for name in CERTIFICATE:
        at = a["round"] == certified
        assert np.isfinite(a[name][at]).all()
        a[name][at] = b[name][at]
    for name in a.keys() - {"elapsed_s", "rss_bytes"}:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize(
    ("trouble", "ranks", "then"),
    [("SIGUSR1", 3, None), ("SIGTERM", 2, 3), pytest.param("SIGUSR1", 0, 2, marks=pytest.mark.long)],
)
def test_a_signal_to_one_rank(
    job: Path, whole: Path, launch: Callable[..., Any], tmp_path: Path, trouble: str, ranks: int, then: int | None
) -> None:
    out = tmp_path / "run"
    ended = launch(ranks, "run", job, "--out", out, env={"MPIFED_TEST_TROUBLE": trouble})
    assert ended.code == 75, ended.text
    assert ended.text.count("mpifed: interrupted") == 1, ended.text
    assert "--resume" in ended.text
    run = read_json(out / "run.json")
    assert run["exit"] == 75
    assert 5 < run["rounds"] < ROUNDS
    ended = launch(then, "run", job, "--out", out, "--resume")
    assert ended.code == 0, ended.text
    same(out, whole)


def test_max_hours(job: Path, whole: Path, launch: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    for ranks in (2, 3):  # interrupted twice, the second time while resuming
        resume = ["--resume"] if out.exists() else []
        ended = launch(ranks, "run", job, "--out", out, "--max-hours", 0, *resume)
        assert ended.code == 75, ended.text
        assert read_json(out / "run.json")["rounds"] == 0
    ended = launch(None, "run", job, "--out", out, "--resume")
    assert ended.code == 0, ended.text
    same(out, whole)


def test_clients_with_a_memory_and_noise(
    skewed: Path, launch: Callable[..., Any], write_job: Any, tmp_path: Path
) -> None:
    """Dual variables of the absent too, what compression left out, and a test's noise; on other numbers of ranks."""
    own = {
        "name": "fedpdm",
        "batch_size": 5,
        "client_optimizer": {"learning_rate": {"initial": 0.3, "exponent": 0.2}},
        "rho": 2.0,
        "local_steps": 2,
        "start": "own",
    }
    task = table(
        skewed, own, rounds=6, record={"evaluate_every": 3, "checkpoint_every": 0},
        participation={"clients_per_round": 4},
        **private(noise_multiplier=1.0, level="client"),
        compression={"name": "rand-k", "fraction": 0.2, "memory": "error-feedback"},
        regularizer={"name": "l1", "weight": 1e-3}, data={"path": str(skewed), "block": 2},
    )  # fmt: skip
    job, out = write_job(tmp_path / "memory.toml", task), tmp_path / "run"
    assert launch(None, "run", job, "--out", tmp_path / "whole").code == 0
    for ranks, rounds in ((3, 3), (None, 6)):
        resume = ["--resume"] if out.exists() else []
        ended = launch(ranks, "run", job, "--out", out, "--set", f"rounds={rounds}", *resume)
        assert ended.code == 0, ended.text
    found, expected = (read_history(run) for run in (out, tmp_path / "whole"))
    assert summary(out)["model_sha256"] == summary(tmp_path / "whole")["model_sha256"]
    assert list(found) == list(expected)
    for name in (one for one in found.keys() - {"elapsed_s", "rss_bytes"} if not of_certificate(one)):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert found["optimality"][-1] == expected["optimality"][-1] > 0


def test_stop_seconds(job: Path, whole: Path, launch: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = launch(2, "run", job, "--out", out, "--set", "stop.seconds=1e-9")
    assert ended.code == 0, ended.text
    assert read_json(out / "run.json")["rounds"] == 1
    ended = launch(None, "run", job, "--out", out, "--resume")
    assert ended.code == 0, ended.text
    found, expected = summary(out), summary(whole)
    assert found["model_sha256"] == expected["model_sha256"]
    assert found["rounds"] == ROUNDS


def test_a_killed_rank(job: Path, whole: Path, launch: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = launch(3, "run", job, "--out", out, env={"MPIFED_TEST_TROUBLE": "SIGKILL"})
    assert ended.code not in (0, 75), ended.text
    assert read_json(out / "run.json")["exit"] is None
    ended = launch(2, "run", job, "--out", out, "--resume")
    assert ended.code == 0, ended.text
    assert "resumed after round 4" in ended.out
    same(out, whole)


def test_a_failed_run_can_be_resumed_once_mended(
    job: Path, whole: Path, launch: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    ended = launch(3, "run", job, "--out", out, env={"MPIFED_TEST_TROUBLE": "raise"})
    assert ended.code == 1, ended.text
    ended = launch(None, "run", job, "--out", out, "--resume")
    assert ended.code == 0, ended.text
    same(out, whole)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    job: Path, whole: Path, launch: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert launch(2, "run", job, "--out", out, env={"MPIFED_TEST_TROUBLE": "SIGUSR1"}).code == 75
    newest, before = sorted((out / "checkpoint").iterdir(), reverse=True)
    stored = bytearray((newest / "server.states").read_bytes())
    stored[len(stored) // 2] ^= 1
    (newest / "server.states").write_bytes(stored)
    ended = launch(3, "run", job, "--out", out, "--resume")
    assert ended.code == 0, ended.text
    assert f"resumed after round {int(before.name[-8:])}" in ended.out
    same(out, whole)


def test_resume_is_refused_where_it_cannot_be(job: Path, whole: Path, launch: Callable[..., Any]) -> None:
    for ranks, arguments, said in (
        (2, (), "holds a run already"),
        (2, ("--resume", "--set", "algorithm.batch_size=6"), "algorithm.batch_size: 5 before, 6 now"),
        (None, ("--resume", "--set", "seed=5"), "seed: 4 before, 5 now"),
        (None, ("--resume", "--set", "data.block=2"), "data.block: 6 before, 2 now"),
    ):
        ended = launch(ranks, "run", job, "--out", whole, *arguments)
        assert (ended.code, ended.text.count(said)) == (2, 1), ended.text
