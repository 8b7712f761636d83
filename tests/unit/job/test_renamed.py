"""Words of earlier versions are refused with the new ones; unknown keys with the nearest that is known."""

from __future__ import annotations

from typing import Any

import pytest
from jobs_in_python import as_in_a_file
from test_job import complaints, table

from mpifed.core.errors import UsageError
from mpifed.core.nearest import SYNONYMS, nearest
from mpifed.job.renamed import RENAMED, TABLES, VALUES, Renamed, old_words
from mpifed.maths.objectives import OBJECTIVES
from mpifed.testing import ALGORITHMS, Job

KEYS = [entry for entry in RENAMED if entry.key is not None]


@pytest.mark.parametrize("old", TABLES)
def test_a_table_of_an_earlier_version(old: str) -> None:
    assert f"[{old}]: is now [{TABLES[old]}]" in complaints(table(**{old: {}}))
    assert TABLES[old] in Job.model_fields and old not in Job.model_fields


@pytest.mark.parametrize(("entry", "algorithm"), [(e, name) for e in KEYS for name in e.algorithms or ("fedavg",)])
def test_a_key_of_an_earlier_version(entry: Renamed, algorithm: str) -> None:
    """Under the new name of its table, and under the old one."""
    key = str(entry.key)
    said = f"[{entry.table}] {key}: is now {entry.now}"
    changed = {"algorithm": {"name": algorithm}}
    changed[entry.table] = changed.get(entry.table, {}) | {key: 1}
    assert said in complaints(table(**changed))
    for before in (old for old, new in TABLES.items() if new == entry.table):
        lines = complaints(table(**{before: {key: 1}}))
        assert f"[{before}]: is now [{entry.table}]" in lines
        assert f"[{before}] {key}: is now {entry.now}" in lines


@pytest.mark.parametrize(("place", "new"), VALUES.items())
def test_a_value_of_an_earlier_version(place: tuple[str, str, str], new: str) -> None:
    where, key, old = place
    assert f'[{where}] {key} = "{old}": is now "{new}"' in complaints(table(**{where: {key: old}}))


def test_new_names_are_known() -> None:
    known: dict[str, Any] = {"model": OBJECTIVES, "algorithm": ALGORITHMS}
    for (where, _, old), new in VALUES.items():
        if where in known:
            assert new in known[where] and old not in known[where]
    assert all(name in ALGORITHMS for entry in KEYS for name in entry.algorithms)


def test_a_key_that_another_algorithm_has_is_no_old_word() -> None:
    """`step` was a key of some algorithms; of one's own it may be one now."""
    for name in ("my_module:Mine", "ssca", "cocoa"):
        assert list(old_words({"algorithm": {"name": name, "step": 0.1, "momentum": 0.9}})) == []


def test_all_old_words_are_told_at_once() -> None:
    old = {
        "objective": {"name": "network", "penalty": 1e-4}, "sum": {"numbers": "float", "channel": "masked"},
        "algorithm": {"name": "fedavg", "batch": 4, "step": [0.1, 0.5]}, "record": {"every": 5},
    }  # fmt: skip
    assert list(old_words(old)) == [
        "[objective]: is now [model]",
        '[objective] name = "network": is now "mlp"',
        "[objective] penalty: is now l2",
        "[sum]: is now [aggregation]",
        "[sum] numbers: is now arithmetic",
        "[sum] channel: is now security",
        "[algorithm] batch: is now batch_size",
        "[algorithm] step: is now [client_optimizer] learning_rate = a number, or {initial = a, exponent = b} for the "
        "old [a, b]",
        "[record] every: is now evaluate_every",
    ]


def test_a_job_of_today_has_none() -> None:
    assert list(old_words(as_in_a_file(table()))) == []


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


def test_what_is_far_from_all_is_not_guessed() -> None:
    assert nearest("zebra", ["learning_rate", "batch_size"]) == ""
    assert nearest("lr", ["batch_size"]) == ""  # a synonym of what is not there
    for other, ours in SYNONYMS.items():
        assert nearest(other.upper(), [ours]) == f'; did you mean "{ours}"?'
