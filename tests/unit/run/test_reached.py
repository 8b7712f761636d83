"""Runs that `[stop] reached` or `patience` end, by columns of their history; and what these columns count."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import run
from jobs_in_python import checked, fedavg, job_table

from mpifed.core.errors import UsageError
from mpifed.files.history import read_history
from mpifed.testing import Job, Solo

PRIVATE = {"delta": 1e-4, "clip": 1.0, "noise_multiplier": 5.0, "noise": "test"}


def job(folder: Path, stop: dict[str, Any], **changes: Any) -> Job:
    method = fedavg(batch_size=10, learning_rate=1.5, local_steps=2)
    record = {"evaluate_every": 2, "checkpoint_every": 0}
    return checked(job_table(folder, **({"rounds": 40, "algorithm": method, "record": record, "stop": stop} | changes)))


def ended(folder: Path, stop: dict[str, Any], out: Path, resume: bool = False, **changes: Any) -> dict[str, Any]:
    """The history of a run."""
    run(job(folder, stop, **changes), Solo(), out, resume=resume)
    return read_history(out)


def test_the_first_row_that_reaches_all(digits: Path, tmp_path: Path) -> None:
    """And with --resume the run goes on where the job asks for more."""
    stop = {"reached": ["test_accuracy>=80%", "train_loss <= 0.9"]}
    whole, found = ended(digits, {}, tmp_path / "whole"), ended(digits, stop, tmp_path / "run")
    first = np.flatnonzero((whole["test_accuracy"] >= 0.8) & (whole["train_loss"] <= 0.9))[0]
    assert 0 < first < len(whole["round"]) - 1
    for name in ("round", "test_loss"):
        assert found[name].tolist() == whole[name][: first + 1].tolist()
    more = ended(digits, {}, tmp_path / "run", resume=True)
    assert more["test_loss"].tolist() == whole["test_loss"].tolist()


@pytest.mark.parametrize(("column", "sign"), [("test_loss", 1), ("test_accuracy", -1)])
def test_patience(column: str, sign: int, digits: Path, tmp_path: Path) -> None:
    """Its direction is the column's; and a run that was stopped in between remembers the best value."""
    whole = ended(digits, {}, tmp_path / "whole")
    values, rounds = sign * whole[column], whole["round"]
    best = np.minimum.accumulate(values)
    since = rounds - [rounds[np.flatnonzero(values == value)[0]] for value in best]
    patience, end = int(since.max()), int(rounds[np.argmax(since)])
    stop = {"patience": {column: patience}}
    assert patience >= 2 and ended(digits, stop, tmp_path / "run")["round"][-1] == end
    for last, how in ((end - 2, {"rounds": end - 2}), (end, {"resume": True}), (end, {"resume": True})):
        assert ended(digits, stop, tmp_path / "parts", **how)["round"][-1] == last
    # with more, it goes on
    assert ended(digits, {"patience": {column: 50}}, tmp_path / "parts", resume=True)["round"][-1] == 40


def test_patience_by_columns_of_a_certificate(digits: Path, tmp_path: Path) -> None:
    """They are measured at every evaluated round; and one that never has a value is refused."""
    method = fedavg(batch_size=10, learning_rate=0.1, local_steps=2, rho=1.0) | {"name": "fedpdm"}
    found = ended(digits, {"patience": {"optimality": 8}}, tmp_path / "run", rounds=10, algorithm=method)
    assert np.isfinite(found["optimality"]).all() and len(found["round"]) > 2
    for column in ("duality_gap", "lower_bound"):
        with pytest.raises(UsageError, match=rf"\[stop\] reached, patience: {column}: a lower bound needs"):
            ended(digits, {"patience": {column: 2}}, tmp_path / column, model={"name": "mlp"})


NO_TESTS, NOISY = {"record": {"evaluate_every": 0}}, {"privacy": PRIVATE}
WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"reached": ["test_accuracy"]}, {}, "reached, value 1 = .*expected COLUMN>=NUMBER or COLUMN<=NUMBER"),
    ({"reached": ["test_accuracy>=90"]}, {}, "between 0 and 1; give a share"),
    ({"patience": {"test_loss": 0}}, {}, "patience.test_loss = 0: expected a number above 0"),
    ({"patience": {"elapsed_s": 2}}, {}, "elapsed_s: no value of it says that a model is better"),
    ({"reached": ["test_loss<=1"]}, NO_TESTS, "test_loss: .record. evaluate_every = 0"),
    ({"reached": ["train_loss<=1"]}, NOISY, "train_loss: is computed from training data without noise"),
    ({"patience": {"client_test_loss_mean": 3}}, NOISY, "client_test_loss_mean: is computed from"),
    ({"reached": ["own<=1"]}, NOISY, "own: is computed from training data"),
]


def test_what_is_refused(digits: Path, tmp_path: Path) -> None:
    for stop, changes, said in WRONG:
        with pytest.raises(UsageError, match=said):
            job(digits, stop, **changes)
    for name, stop in (("accuracy", {"reached": ["accuracy>=0.5"]}), ("test_auc", {"patience": {"test_auc": 3}})):
        with pytest.raises(UsageError, match=rf"\[stop\] {re.escape(name)}: this run measures no such column; it has"):
            ended(digits, stop, tmp_path / name)


def test_gradients_are_counted_where_minibatches_are_drawn(digits: Path, halves: Path, tmp_path: Path) -> None:
    own = {"batch_size": 10, "client_optimizer": {"learning_rate": 0.1}, "local_steps": 2}
    some = {"participation": {"clients_per_round": 3}, "data": {"path": str(digits), "block": 3}}
    for name, clients, each, changes in (
        ("all", 8, 2, {}), ("some", 3, 2, some),
        # two gradients a step, of Delta-SGD one in the first
        ("fedsam", 8, 4, {"algorithm": {"name": "fedsam", **own}}),
        ("delta-sgd", 8, 3, {"algorithm": {"name": "delta-sgd", **own}}),
    ):  # fmt: skip
        found = ended(digits, {}, tmp_path / name, rounds=6, **changes)  # type: ignore[arg-type]
        assert found["gradients"].tolist() == [t * clients * each * 10 for t in (0, 2, 4, 6)]
    model = {"name": "logistic", "bias": False, "l2": 1e-3}
    found = ended(halves, {}, tmp_path / "bundle", rounds=2, algorithm={"name": "bundle"}, model=model)
    assert not found["gradients"].any() and (found["rss_bytes"] > 2**20).all()
