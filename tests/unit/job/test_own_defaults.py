"""Defaults of the user's own classes are held to the ranges that their annotations state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Gt, Lt
from jobs_in_python import as_in_a_file

from mpifed import FedAvg
from mpifed.core.contract import remember
from mpifed.core.errors import UsageError
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
    assert (
        f'[algorithm] name = "{name}": the default of decay, 1.5: expected a number below 1; correct the class' in text
    )
    assert "the default of passes, 0: expected a number above 0" in text
    assert 'the default of rule, \'mode\': expected "mean" or "median"' in text
    assert job({"name": name, "decay": 0.5, "passes": 1, "rule": "mean"}).algorithm["decay"] == 0.5
    with pytest.raises(
        UsageError, match=r"\[model\] name = .*the default of steepness, -1.0: expected a number above 0"
    ):
        job({"name": "fedavg"}, {"name": remember(SteepSoftmax)})
