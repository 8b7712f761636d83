"""Unknown keys are refused with the nearest that is known."""

from __future__ import annotations

import pytest
from jobs_in_python import as_in_a_file
from test_job import table

from mpifed.core.errors import UsageError
from mpifed.job.job import Job


@pytest.mark.parametrize(
    ("where", "key", "meant"),
    [
        ("client_optimizer", "lr", "learning_rate"),
        ("client_optimizer", "learning-rate", "learning_rate"),
        ("client_optimizer", "weightdecay", "weight_decay"),
        ("algorithm", "batchsize", "batch_size"),
        ("algorithm", "epochs", "local_epochs"),
        ("model", "l_2", "l2"),
        ("participation", "frac", "clients_per_round"),
        ("record", "evaluate_ever", "evaluate_every"),
    ],
)
def test_near_misses(where: str, key: str, meant: str) -> None:
    job = as_in_a_file(table())
    job[where] = job.get(where, {}) | {key: 1}
    with pytest.raises(UsageError) as refused:
        Job.check(job, "my.toml")
    assert f'[{where}] {key}: unknown key; did you mean "{meant}"?; known are ' in str(refused.value)
