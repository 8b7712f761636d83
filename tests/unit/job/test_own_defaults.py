"""Defaults of the user's own classes are held to the ranges that their annotations state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from annotated_types import Gt, Lt
from jobs_in_python import as_in_a_file

from mpifed import FedAvg
from mpifed.contract import remember
from mpifed.core.errors import UsageError
from mpifed.explain.reference import entry_of
from mpifed.maths.objectives import Softmax
from mpifed.testing import Job


@dataclass(frozen=True)
class OutOfRange(FedAvg):
    decay: Annotated[float, Gt(0), Lt(1)] = 1.5
    passes: Annotated[int, Gt(0)] = 0
    rule: Literal["mean", "median"] = "mode"  # type: ignore[assignment]  # the mistake that is tried


@dataclass(frozen=True)
class SteepSoftmax(Softmax):
    steepness: Annotated[float, Gt(0)] = -1.0


@dataclass(frozen=True)
class Undefined(FedAvg):
    x: Nowhere = 1  # type: ignore[name-defined]  # noqa: F821  # the mistake that is tried


@dataclass(frozen=True)
class Mine:
    name: str = "mine"


@dataclass(frozen=True)
class Unions(FedAvg):
    numbers: Literal[1, 2] | tuple[int, ...] = 1
    pair: tuple[int, float] = (1, 0.5)
    own: float | Mine = 0.5
    narrow: float = np.float32(0.5)  # type: ignore[assignment]  # NumPy's numbers count as Python's


def job(algorithm: dict[str, Any], model: dict[str, Any] | None = None) -> Job:
    return Job.check(as_in_a_file({
        "name": "t", "rounds": 1, "data": {"path": "data"}, "model": model or {"name": "softmax"},
        "algorithm": {"batch_size": 4, "client_optimizer": {"learning_rate": 0.1}} | algorithm,
    }))  # fmt: skip


def test_defaults_out_of_range_are_refused() -> None:
    name = remember(OutOfRange)
    with pytest.raises(UsageError) as raised:
        job({"name": name})
    text = str(raised.value)
    assert "[algorithm] decay = 1.5: expected a number below 1" in text
    assert "[algorithm] passes = 0: expected a number above 0" in text
    assert '[algorithm] rule = "mode": expected "mean" or "median"' in text
    assert job({"name": name, "decay": 0.5, "passes": 1, "rule": "mean"}).algorithm["decay"] == 0.5
    with pytest.raises(UsageError, match=r"\[model\] steepness = -1.0: expected a number above 0"):
        job({"name": "fedavg"}, {"name": remember(SteepSoftmax)})


def test_annotations_that_cannot_be_read_are_reported() -> None:
    with pytest.raises(UsageError, match="NameError: name 'Nowhere' is not defined; correct its annotations"):
        job({"name": remember(Undefined)})


def test_unions_and_tuples_of_ones_own_class() -> None:
    name = remember(Unions)
    for changes in ({"numbers": 2}, {"numbers": [3, 4]}, {"own": 0.25}, {"pair": [2, 1.5]}):
        assert job({"name": name, **changes}).algorithm.items() >= changes.items()
    with pytest.raises(UsageError, match="numbers = 5: expected 1 or 2"):
        job({"name": name, "numbers": 5})
    keys = {key.name: (key.type, key.default) for key in entry_of("algorithm", name, Unions).keys}
    assert keys["pair"] == ("[an integer, a number]", "[1, 0.5]") and keys["narrow"] == ("a number", "0.5")
