"""`mpifed.testing`: what it shows is what a run does, and wrong classes are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked, job_table
from whole_runs import run

from mpifed.core.errors import UsageError
from mpifed.files.model_file import read_model
from mpifed.testing import (
    Job,
    Solo,
    check_algorithm,
    check_model,
    check_regularizer,
    minibatches,
    participants,
    rounds,
    uploads,
)

SCAFFOLD = {
    "name": "scaffold", "batch_size": 4, "local_steps": 2, "client_optimizer": {"learning_rate": 0.1},
}  # fmt: skip
OWN = """
from dataclasses import dataclass

import numpy as np

from mpifed import L1, Scaffold
from mpifed.core.record import map_leaves
from mpifed.maths.losses import CrossEntropy, SampleLoss
from mpifed.maths.objectives import Linear


@dataclass(frozen=True)
class InPlace(Scaffold):
    "Its clients change what they have kept."

    def renew(self, own, sent, upload, local):
        own[...] += 1
        return super().renew(own, sent, upload, local)


@dataclass(frozen=True)
class Mixed(Scaffold):
    "Its clients send what depends on who is computed beside them."

    def push(self, own, sent, local):
        return super().push(own.mean(axis=0) + 0 * own, sent, local)


@dataclass(frozen=True)
class Common(Scaffold):
    "Its clients keep one vector for a block."

    def renew(self, own, sent, upload, local):
        return super().renew(own, sent, upload, local).mean(axis=0)


class Steep(SampleLoss):
    "Its slope is not that of its value."

    def value(self, z, y):
        return CrossEntropy().value(z, y)

    def slope(self, z, y):
        return 1.01 * CrossEntropy().slope(z, y)


@dataclass(frozen=True)
class Forgetful(Linear):
    sample_loss = Steep()


@dataclass(frozen=True)
class Longer(L1):
    "Its prox goes twice as far."

    def prox(self, model, step):
        return super().prox(model, 2 * step)
"""


def job_of(folder: Path, **changes: Any) -> Job:
    return checked(job_table(folder, **{"algorithm": SCAFFOLD, "participation": {"clients_per_round": 3}, **changes}))


def test_rounds_are_those_of_a_run(classes: Path, tmp_path: Path) -> None:
    job = job_of(classes)
    start, *others = rounds(job, measured=3)
    run(job, Solo(), tmp_path / "run")
    model = read_model(tmp_path / "run" / "model.safetensors")
    assert {name: values.tobytes() for name, values in others[-1].model.items()} == {
        name: values.tobytes() for name, values in model.items()
    }
    assert [one.round for one in (start, *others)] == [0, 1, 2, 3]
    assert not start.server["memory"].any()
    assert [bool(one.columns) for one in others] == [False, False, True]
    assert others[-1].columns["train_loss"] > 0


def test_uploads_are_what_is_summed(classes: Path) -> None:
    """FedAvg's next model is the mean of changes by rows."""
    algorithm = SCAFFOLD | {"name": "fedavg"}
    job = job_of(classes, algorithm=algorithm, compute={"dtype": "float64"})
    _, first, second, _ = rounds(job)
    sent = uploads(job, 2)
    assert {len(values) for values in sent.values()} == {3}
    mean = sent["changes/value"].sum(axis=0) / sent["changes/weight"].sum()
    before, after = (np.concatenate([leaf.ravel() for leaf in one.model.values()]) for one in (first, second))
    np.testing.assert_allclose(after - before, mean, rtol=0, atol=1e-11)


def test_minibatches_are_disjoint_and_of_the_client_but_of_columns_the_same(classes: Path, columns: Path) -> None:
    job = job_of(classes)
    one, two = minibatches(job, 1, 2)
    assert len({*one, *two}) == 8
    assert not all((a == b).all() for a, b in zip(minibatches(job, 1, 2), minibatches(job, 2, 2), strict=True))
    linear = {"model": {"name": "least-squares", "l2": 0.1}, "client_optimizer": {}}
    job = checked(job_table(columns, **linear, algorithm={"name": "ssca", "batch_size": 4}))
    (one,), (other,) = minibatches(job, 1, 0), minibatches(job, 1, 3)
    assert (one == other).all()
    with pytest.raises(UsageError, match="draws no minibatches"):
        minibatches(checked(job_table(columns, **linear, algorithm={"name": "cocoa"})), 1, 0)


WRONG: list[tuple[Callable[[Job], None], dict[str, Any], str]] = [
    (check_algorithm, {"algorithm": SCAFFOLD | {"name": "wrong_parts:InPlace"}}, "changes: .*changes what"),
    (check_algorithm, {"algorithm": SCAFFOLD | {"name": "wrong_parts:Mixed"}}, "beside others than alone"),
    (check_algorithm, {"algorithm": SCAFFOLD | {"name": "wrong_parts:Common"}}, "what a client keeps of a"),
    (check_model, {"model": {"name": "wrong_parts:Forgetful", "bias": False}}, "Forgetful"),
    (check_regularizer, {"regularizer": {"name": "wrong_parts:Longer", "weight": 0.01}}, "Longer"),
]


def test_wrong_classes_are_refused(classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_parts.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    fedavg = {"algorithm": SCAFFOLD | {"name": "fedavg"}}
    blocks = {"data": {"path": str(classes), "block": 3}, "participation": {}}
    right = job_of(classes, **fedavg, regularizer={"name": "l1", "weight": 0.01})
    for check in (check_algorithm, check_model, check_regularizer):
        check(right)
    for check, changes, named in WRONG:
        with pytest.raises(AssertionError, match=named):
            check(job_of(classes, **fedavg | blocks | changes))


def test_secret_draws_are_refused(classes: Path) -> None:
    private = {"delta": 1e-5, "clip": 1.0, "noise_multiplier": 1.0}
    algorithm = SCAFFOLD | {"name": "fedavg"}
    for look in (lambda job: participants(job, 1), lambda job: minibatches(job, 1, 0), lambda job: uploads(job, 1)):
        with pytest.raises(UsageError, match="noise"):
            look(job_of(classes, algorithm=algorithm, privacy=private))
