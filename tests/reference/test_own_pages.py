"""Recalled and Stretched as a user writes them, against loops that share the draws: some clients, unequal shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import local_job
from pages import Page, same
from paper import make_data

from mpifed.core.errors import UsageError
from mpifed.files.run_folder import summary
from mpifed.testing import Job, check_algorithm, rounds

ETA, ALPHA = 0.2, 0.3
NAMES = ("Recalled", "Stretched")
PRIVATE = {"delta": 1e-5, "clip": 1.0, "epsilon": 8.0, "public_preparation": True}


class Recalled(Page):
    name, uniform = "own_pages:Recalled", True

    def begin(self) -> None:
        self.own = self.zeros.copy()

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) + ALPHA * (at - self.x)

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        for i, y in ends.items():
            self.own[i] = y - self.x
        self.x = self.x + self.own.mean(axis=0)

    def kept(self) -> dict[str, Any]:
        return {"": self.own}

    def memory(self) -> Any:
        return self.own.mean(axis=0)


class Stretched(Page):
    name, uniform = "own_pages:Stretched", True

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        D = self.mean(ends) - self.x
        far = np.mean([np.linalg.norm(y - self.x) for y in ends.values()]) / np.linalg.norm(D)
        self.last, self.x = self.x, self.x + far * D

    def judged(self) -> Any:
        return (self.x + self.last) / 2


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


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_its_equations(skew: Path, name: str) -> None:
    same(task(skew, name))


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
