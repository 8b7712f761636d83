"""Recalled and Stretched as a user writes them, against loops that share the draws: some clients, unequal shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from loops import ends, local_job, played, rows_of, start_of
from paper import make_data

from mpifed.core.errors import UsageError
from mpifed.files.run_folder import summary
from mpifed.testing import Job, check_algorithm, rounds

ETA, ALPHA = 0.2, 0.3
NAMES = ("Recalled", "Stretched")
EXACT = {"rtol": 0, "atol": 1e-10}
PRIVATE = {"delta": 1e-5, "clip": 1.0, "epsilon": 8.0, "public_preparation": True}


class Course(NamedTuple):
    """What a loop leaves."""

    x: Any  # [d]
    own: Any  # [N, d] of the clients
    judged: Any  # [d]


@pytest.fixture(scope="module")
def skew(shared_path: Path) -> Path:
    return make_data(
        shared_path / "own-pages", "digits", "--split", "rows", "--clients", 8, "--partition", "dirichlet:0.5"
    )


def task(folder: Path, name: str, /, **changes: Any) -> Job:
    own = {"alpha": ALPHA} if name in ("Recalled", "Unsaid") else {}
    steps = {"batch_size": 4, "local_steps": 3, "client_optimizer": {"learning_rate": ETA}}
    some = {"participation": {"clients_per_round": 4}, "rounds": 5}
    return local_job(folder, {"name": f"own_pages:{name}", **steps, **own}, **some | changes)


def loop(job: Job, name: str) -> Course:
    x, data = start_of(job), rows_of(job.data.path)
    own, judged = np.zeros((len(data), len(x))), x
    for t in range(1, job.rounds + 1):
        pulled = (lambda i, at, x=x: ALPHA * (at - x)) if name == "Recalled" else (lambda i, at: 0.0)
        found = list(ends(job, data, t, x, pulled))
        moved = np.array([end.model for end in found]) - x
        mean = moved.mean(axis=0)
        if name == "Recalled":
            own[[end.client for end in found]] = moved
            judged = x = x + own.mean(axis=0)
        else:
            far = np.linalg.norm(moved, axis=1).mean() / np.linalg.norm(mean)
            last, x = x, x + far * mean
            judged = (x + last) / 2
    return Course(x, own, judged)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_its_equations(skew: Path, name: str) -> None:
    job = task(skew, name)
    done, course = played(job), loop(job, name)
    np.testing.assert_allclose(done.server.model, course.x, **EXACT)
    np.testing.assert_allclose(done.model, course.judged, **EXACT)
    if name == "Recalled":
        np.testing.assert_allclose(done.kept(""), course.own, **EXACT)
        np.testing.assert_allclose(done.server.memory, course.own.mean(axis=0), **EXACT)


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_laws_and_its_dtypes(skew: Path, name: str) -> None:
    job = task(skew, name, compute={"dtype": "float32"})
    check_algorithm(job)
    *_, last = rounds(job)
    found = [
        last.server["model"],
        last.server["memory"],
        *last.model.values(),
        *(own[""] for own in last.clients if own),
    ]
    assert {leaf.dtype.name for leaf in found} == {"float32"}


@pytest.mark.parametrize("name", NAMES)
def test_masked_on_two_ranks_it_has_the_same_bits(
    skew: Path, tmp_path: Path, launch: Callable[..., Any], write_job: Callable[..., Path], name: str
) -> None:
    table = {
        "name": "own", "rounds": 5, "data": {"path": str(skew)}, "model": {"name": "softmax"},
        "algorithm": {"name": f"own_pages:{name}", "batch_size": 4, "local_steps": 3},
        "client_optimizer": {"learning_rate": ETA}, "participation": {"clients_per_round": 4},
    }  # fmt: skip
    job, hashes = write_job(tmp_path / "job.toml", table), list[str]()
    for ranks, security in ((None, "plain"), (2, "masked")):
        out = tmp_path / security
        words = ("--set", f"aggregation.security={security}", "--out", out)
        ended = launch(ranks, "run", job, *words, cwd=Path(__file__).parent)
        assert ended.code == 0, ended.err
        hashes.append(summary(out)["model_sha256"])
    assert hashes[0] == hashes[1]
    words = ("audit", job, "--set", "aggregation.security=masked", "--set", 'audit.accept=["membership"]')
    assert launch(None, *words, cwd=Path(__file__).parent).code == 0


def test_with_a_regularizer_a_page_says_how_far_a_gradient_moves_the_model(classes: Path) -> None:
    """The optimum of the mean over clients of alike sizes; with the step of FedAvg the residual stays at 1."""
    whole = {"name": "feddyn", "batch_size": 60, "local_steps": 5, "alpha": 0.5}
    whole["client_optimizer"] = {"learning_rate": 0.1}
    shrunk = {"regularizer": {"name": "l1", "weight": 0.02}, "rounds": 1000}
    *_, last = rounds(local_job(classes, whole, **shrunk), measured=shrunk["rounds"])
    assert last.columns["kkt_residual"] is not None
    assert last.columns["kkt_residual"] < 1e-3
    for name, said in (("Unsaid", "must say `prox_step"), ("Stretched", "no prox step")):
        with pytest.raises(UsageError, match=said):
            next(rounds(task(classes, name, regularizer=shrunk["regularizer"])))


@pytest.mark.parametrize("level", [{"level": "client"}, {"noise": "paper"}], ids=str)
def test_noise_on_an_upload_of_several_parts_is_refused(skew: Path, level: dict[str, Any]) -> None:
    next(rounds(task(skew, "Recalled", privacy=PRIVATE | level, model={"name": "softmax"})))
    with pytest.raises(UsageError, match="for uploads of one part"):
        next(rounds(task(skew, "Stretched", privacy=PRIVATE | level, model={"name": "softmax"})))


def test_an_upload_has_the_parts_that_the_page_says(skew: Path) -> None:
    with pytest.raises(UsageError, match=r"3 arrays, the fields declare 2: changes\.value, changes\.weight"):
        list(rounds(task(skew, "Unlike")))
