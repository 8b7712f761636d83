"""Jobs: everything that is wrong at once, and defaults that are written out."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifed.algorithms import ALGORITHMS, FedAvg, SSCAHorizontal
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Problem
from mpifed.maths.objectives import Network, Softmax
from mpifed.maths.schedules import StepSize
from mpifed.run.config import Job, read_table, set_value


def table(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "job",
        "rounds": 3,
        "data": {"path": "somewhere"},
        "objective": {"name": "softmax"},
        "algorithm": {"name": "fedavg", "batch": 4, "step": [0.1]},
    }
    return copy.deepcopy(base) | changes


def problem(**changes: Any) -> Problem:
    counts = np.array([10, 20, 30])
    settings = {"objective": Softmax(), "split": "rows", "counts": counts, "samples": 60, "features": 2, "outputs": 3}
    return Problem(**(settings | changes))


def complaints(table_: dict[str, Any]) -> list[str]:
    with pytest.raises(UsageError) as caught:
        Job.check(table_, "my.toml")
    first, *lines = str(caught.value).splitlines()
    assert first == f"my.toml: {len(lines)} thing(s) to mend"
    return [line.strip() for line in lines]


def test_everything_that_is_wrong_is_told_at_once() -> None:
    found = complaints(
        table(
            rounds=0,
            seeed=3,
            data={"block": "two"},
            sum={"numbers": "exactly"},
            objective={"name": "network", "hidden": -1, "hiden": 4},
            algorithm={"name": "fedavg", "batch": 2.5, "local_epochs": 0},
        )
    )
    starts = (
        "rounds = 0: ", "seeed: unknown key; known are name, rounds, data,", "[data] path: missing",
        '[data] block = "two": ', '[sum] numbers = "exactly": ', "[objective] hidden = -1: ",
        "[objective] hiden: unknown key; known are hidden, bias, penalty", "[algorithm] batch = 2.5: ",
        "[algorithm] step: missing", "[algorithm] local_epochs = 0: ",
    )  # fmt: skip
    for start in starts:
        assert sum(line.startswith(start) for line in found) == 1, (start, found)
    assert len(found) == len(starts)


@pytest.mark.parametrize("name", ["data", "participation", "sum", "record", "server", "compute", "stop"])
def test_unknown_keys_of_every_table_list_the_known_ones(name: str) -> None:
    (line,) = complaints(table(**{name: {**table().get(name, {}), "nonsense": 1}}))
    known = Job.model_fields[name].annotation.model_fields
    assert line == f"[{name}] nonsense: unknown key; known are {', '.join(known)}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "name = "),
        ({"name": 3}, "name = 3"),
        ({"rounds": "3"}, 'rounds = "3"'),
        ({"rounds": True}, "rounds = true"),
        ({"rounds": 2.0}, "rounds = 2.0"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**63}, f"seed = {2**63}"),
        ({"data": "path"}, 'data = "path"'),
        ({"participation": {"clients_per_round": 0}}, "[participation] clients_per_round = 0"),
        ({"sum": {"bounds": {"changes.value": -1.0}}}, "[sum] bounds.changes.value = -1.0"),
        ({"sum": {"channel": "pigeon"}}, '[sum] channel = "pigeon"'),
        ({"record": {"every": -1}}, "[record] every = -1"),
        ({"server": {"dedicated": 1}}, "[server] dedicated = 1"),
        ({"compute": {"dtype": "float16"}}, '[compute] dtype = "float16"'),
        ({"stop": {"seconds": 0}}, "[stop] seconds = 0"),
        ({"objective": {"penalty": 1.0}}, "[objective] name: missing"),
        ({"objective": {"name": "soft"}}, "network, softmax, logistic, least-squares"),
        ({"algorithm": {"name": "sgd"}}, "ssca-horizontal, ssca-vertical, fedavg, vertical-sgd"),
        ({"algorithm": {"name": "fedavg", "batch": 4, "step": [-0.1]}}, "[algorithm] step"),
        ({"algorithm": {"name": "fedavg", "batch": 4, "step": [0.1, 0.2, 0.3]}}, "[algorithm] step"),
        ({"algorithm": {"name": "fedavg", "batch": 4, "step": [0.1], "problem": 1}}, "problem: unknown key"),
    ],
)
def test_one_thing_wrong(changes: dict[str, Any], said: str) -> None:
    found = complaints(table(**changes))
    assert len(found) == 1, found
    assert said in found[0]


@pytest.mark.parametrize("missing", ["name", "rounds", "data", "objective", "algorithm"])
def test_what_must_be_there(missing: str) -> None:
    wrong = table()
    del wrong[missing]
    assert f"{missing}: missing" in complaints(wrong)


def test_integers_are_good_enough_for_real_numbers() -> None:
    whole = {"name": "fedavg", "batch": 4, "step": [1, 0]}
    job = Job.check(table(algorithm=whole, objective={"name": "softmax", "penalty": 0}))
    assert job.make_algorithm(problem()).step == StepSize(1.0, 0.0)


def test_algorithms_and_objectives_are_made_of_their_tables() -> None:
    job = Job.check(
        table(
            algorithm={"name": "ssca-horizontal", "batch": 4, "rho": [0.5, 0.1], "gamma": [0.4, 0.2], "start": "paper"},
            objective={"name": "network", "hidden": 7},
        )
    )
    task = problem()
    assert job.make_objective() == Network(hidden=7, penalty=0.0)
    assert job.make_algorithm(task) == SSCAHorizontal(task, 4, StepSize(0.5, 0.1), StepSize(0.4, 0.2), 0.1, "paper")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seed": 2**62, "participation": {"clients_per_round": 2}, "stop": {"seconds": 1.5}},
        {"sum": {"numbers": "float", "bounds": {"changes.value.first": 8.0}}, "server": {"dedicated": True}},
        {"algorithm": {"name": "ssca-horizontal", "batch": 4, "rho": [0.5], "gamma": [0.4, 0.2]}},
        {"algorithm": {"name": "fedavg", "batch": 4, "step": [1e-3, 0.5], "local_epochs": 2}},
        {"objective": {"name": "network", "penalty": 1e-17}},
    ],
)
def test_what_is_written_reads_back_as_the_same_job(tmp_path: Path, changes: dict[str, Any]) -> None:
    job = Job.check(table(**changes))
    (tmp_path / "job.toml").write_text(job.text())
    again = Job.read(tmp_path / "job.toml")
    assert again.table() == job.table()
    assert again.text() == job.text()
    assert again.make_objective() == job.make_objective()
    task = problem()
    assert again.make_algorithm(task) == job.make_algorithm(task)


def test_all_defaults_are_written_out() -> None:
    written = Job.check(table()).table()
    assert written["seed"] == 1
    assert written["data"]["block"] == 1
    assert written["sum"]["numbers"] == "exact"
    assert written["record"] == {"every": 10, "checkpoint_every": 100, "certify_every": 0}
    assert written["minimize"] == {"name": "loss"}
    assert written["constraint"] == []
    assert written["stop"] == {}
    assert written["server"] == {"dedicated": False}
    assert written["compute"]["dtype"] == "float32"
    assert written["objective"] == {"name": "softmax", "penalty": 0.0}
    assert written["algorithm"]["name"] == "fedavg"
    assert list(written["algorithm"]["step"]) == [0.1, 0.0]


STEPS = {
    "ssca-horizontal": {"rho": [0.5], "gamma": [0.5]},
    "ssca-vertical": {"rho": [0.5], "gamma": [0.5]},
    "fedavg": {"step": [0.5]},
    "vertical-sgd": {"step": [0.5]},
}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_checks_what_fits(name: str) -> None:
    vertical = getattr(ALGORITHMS[name], "needs_everybody", False)
    right, wrong, batch = ("columns", "rows", 61) if vertical else ("rows", "columns", 11)
    job = Job.check(
        table(algorithm={"name": name, "batch": batch, **STEPS[name]}, participation={"clients_per_round": 4})
    )
    with pytest.raises(UsageError) as caught:
        job.make_algorithm(problem(split=wrong))
    said = str(caught.value)
    assert f"needs data split by {right}, and the folder is split by {wrong}" in said
    too_large = "there are 60 samples" if vertical else "the smallest shard (client 0) has 10 samples"
    assert f"[algorithm] batch = {batch}: {too_large}" in said
    assert "[participation] clients_per_round = 4: somewhere has 3 clients" in said
    fits = Job.check(table(algorithm={"name": name, "batch": 10, **STEPS[name]}))
    assert fits.make_algorithm(problem(split=right)).check() == []


def test_local_work_is_counted_one_way() -> None:
    both = {"name": "fedavg", "batch": 4, "step": [0.1], "local_steps": 2, "local_epochs": 2}
    with pytest.raises(UsageError, match="local_steps and local_epochs: give one of the two"):
        Job.check(table(algorithm=both)).make_algorithm(problem())


# --- changes by --set --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("seed=7", {"seed": 7}),
        ("a.b=1.5", {"a": {"b": 1.5}}),
        ("a.b.c=true", {"a": {"b": {"c": True}}}),
        ("a.list=[1, 2]", {"a": {"list": [1, 2]}}),
        ("a.text=plain words", {"a": {"text": "plain words"}}),
        ('a.text="quoted = text"', {"a": {"text": "quoted = text"}}),
        ("a.path=./x/y=z", {"a": {"path": "./x/y=z"}}),
        ("a.e=1e-3", {"a": {"e": 1e-3}}),
        (" a.b = 2 ", {"a": {"b": 2}}),
        ("a.empty=", {"a": {"empty": ""}}),
        ("a.table={x = 1}", {"a": {"table": {"x": 1}}}),
    ],
)
def test_set(change: str, expected: dict[str, Any]) -> None:
    found: dict[str, Any] = {}
    set_value(found, change)
    assert found == expected


@pytest.mark.parametrize("change", ["seed", "=3", ""])
def test_set_that_is_none(change: str) -> None:
    with pytest.raises(UsageError, match=r"expected table\.key=value"):
        set_value({}, change)


def test_set_into_a_value() -> None:
    with pytest.raises(UsageError, match="seed is a value and no table"):
        set_value({"seed": 3}, "seed.more=1")


def test_set_of_a_field_whose_name_has_dots(tmp_path: Path) -> None:
    """[sum.bounds] names fields with dots in them, as its error message says to."""
    found = table()
    set_value(found, 'sum.bounds."changes.value.first"=8.0')
    assert Job.check(found).sum.bounds == {"changes.value.first": 8.0}


def test_reading(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(Job.check(table()).text())
    assert Job.read(tmp_path / "job.toml", ["seed=9", "algorithm.batch=5"]).seed == 9
    with pytest.raises(UsageError, match="cannot be read"):
        read_table(tmp_path / "nothing.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        read_table(tmp_path)
    (tmp_path / "bad.toml").write_bytes(b"name = \xff")
    with pytest.raises(UsageError, match="not a TOML file"):
        read_table(tmp_path / "bad.toml")


# --- the user's own classes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mine(FedAvg):
    """A class that a job names."""

    extra: int = 3


@dataclass(frozen=True)
class MyObjective(Softmax):
    """Another."""

    slack: float = 0.5


def here(name: str) -> str:
    return f"{__name__}:{name}"


def test_own_classes() -> None:
    job = Job.check(
        table(
            algorithm={"name": here("Mine"), "batch": 4, "step": [0.1], "extra": 5},
            objective={"name": here("MyObjective"), "penalty": 0.25},
        )
    )
    task = problem()
    made = job.make_algorithm(task)
    assert made == Mine(task, 4, StepSize(0.1), extra=5)
    assert job.make_objective() == MyObjective(0.25, 0.5)
    assert job.table()["objective"] == {"name": here("MyObjective"), "penalty": 0.25, "slack": 0.5}


def test_own_classes_are_checked_alike() -> None:
    found = complaints(table(algorithm={"name": here("Mine"), "batch": 4, "step": [0.1], "extra": "x", "more": 1}))
    assert [line.split(":")[0] for line in found] == ['[algorithm] extra = "x"', "[algorithm] more"]
    assert "known are batch, step, local_steps, local_epochs, momentum, extra" in found[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:Mine", "No module named 'no_such_module'"),
        (f"{__name__}:Nobody", "has no attribute 'Nobody'"),
        (f"{__name__}:table", "must be a dataclass"),
    ],
)
def test_own_classes_that_are_not_there(name: str, said: str) -> None:
    (line,) = complaints(table(algorithm={"name": name}))
    assert line.startswith(f'[algorithm] name = "{name}": ')
    assert said in line
