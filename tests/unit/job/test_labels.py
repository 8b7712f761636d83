"""Labels of sweeps: tables in lists have them, and are no keys of the job."""

from __future__ import annotations

from typing import Any

import pytest

from mpifed.core.errors import UsageError
from mpifed.job.sweep import points

JOB: dict[str, Any] = {"name": "made", "rounds": 100, "data": {"path": "nowhere"}, "model": {"name": "softmax"}}
JOB |= {"client_optimizer": {"learning_rate": 0.1}}
FEDAVG = {"name": "fedavg", "batch_size": 4, "local_steps": 2}
SCAFFOLD = {"name": "scaffold", "batch_size": 4, "local_steps": 3}


def test_tables_in_a_list_have_labels() -> None:
    given = [{"label": "FedAvg", **FEDAVG}, {"label": "SCAFFOLD", **SCAFFOLD}]
    found = points(JOB | {"sweep": {"algorithm": given, "seeds": 2}}, "made")
    assert [list(point.settings.items()) for point in found] == [
        [("label", label), ("algorithm", table), ("seed", seed)]
        for label, table in (("FedAvg", FEDAVG), ("SCAFFOLD", SCAFFOLD))
        for seed in (1, 2)
    ]
    assert [point.job.algorithm for point in found] == [FEDAVG, FEDAVG, SCAFFOLD, SCAFFOLD]


@pytest.mark.parametrize("labels", [("A", "A"), ("A", None), ("A", 3), ("A", " "), ("A", "b\nc"), ("A", "")])
def test_labels_that_are_none(labels: tuple[Any, Any]) -> None:
    named = [{} if label is None else {"label": label} for label in labels]
    tables = [table | label for table, label in zip((FEDAVG, SCAFFOLD), named, strict=True)]
    methods = [{"algorithm": table} | label for table, label in zip((FEDAVG, SCAFFOLD), named, strict=True)]
    for sweep in ({"algorithm": tables}, {"methods": methods}, {"algorithm.batch_size": [{"label": "A"}, 3]}):
        with pytest.raises(UsageError, match="give every table a label of its own, a line of text, or none of them"):
            points(JOB | {"sweep": sweep}, "made")
