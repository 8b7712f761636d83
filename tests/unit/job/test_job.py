"""Jobs: everything that is wrong at once, and defaults that are written out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tomli_w
from jobs_in_python import as_in_a_file, checked, fedavg, job_table
from methods import METHODS, named

from mpifed import SGD, FedAvg, Privacy
from mpifed.algorithms.functions import Constraint
from mpifed.core.errors import UsageError
from mpifed.job.job import read_table, set_value
from mpifed.maths.objectives import Softmax
from mpifed.maths.problem import Problem
from mpifed.maths.terms import Loss, Norm
from mpifed.testing import ALGORITHMS, Job

SSCA = {"name": "ssca", "batch_size": 4, "rho": [0.9, 0.3], "gamma": [0.9, 0.35]}
LOSS = {"name": "loss", "limit": 0.5}
PRIVATE = Privacy(delta=1e-5, clip=1.0, noise_multiplier=1.0)


def table(**changes: Any) -> dict[str, Any]:
    return job_table(**changes)


def problem(**changes: Any) -> Problem:
    counts = np.array([10, 20, 30])
    settings = {"objective": Softmax(), "split": "rows", "counts": counts, "samples": 60, "features": 2, "outputs": 3}
    return Problem(**(settings | changes))


def complaints(table_: dict[str, Any]) -> list[str]:
    with pytest.raises(UsageError) as caught:
        Job.check(as_in_a_file(table_), "my.toml")
    first, *lines = str(caught.value).splitlines()
    assert first == f"my.toml: {len(lines)} error{'s' * (len(lines) > 1)}"
    return [line.strip() for line in lines]


def test_everything_that_is_wrong_is_told_at_once() -> None:
    found = complaints(
        table(
            rounds=0,
            seeed=3,
            data={"block": "two"},
            aggregation={"arithmetic": "float"},
            model={"name": "mlp", "bias": False, "hidden": -1, "hiden": 4},
            algorithm={"name": "fedavg", "batch_size": 2.5, "local_epochs": 0},
        )
    )
    starts = (
        "rounds = 0: ", 'seeed: unknown key; did you mean "seed"?; known are name, rounds, data,',
        "[data] path: missing",
        '[data] block = "two": ', '[aggregation] arithmetic = "float": ', "[model] hidden = -1: ",
        "[model] hiden: unknown key; did you mean", "[algorithm] batch_size = 2.5: ",
        "[algorithm] local_epochs = 0: ", "[client_optimizer] learning_rate: missing",
    )  # fmt: skip
    for start in starts:
        assert sum(line.startswith(start) for line in found) == 1, (start, found)
    assert len(found) == len(starts)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": True}, "rounds = true"),
        ({"rounds": 2.0}, "rounds = 2.0"),
        ({"seed": 2**63}, f"seed = {2**63}"),
        ({"data": "path"}, 'data = "path"'),
        ({"aggregation": {"bounds": {"changes.value": -1.0}}}, "[aggregation] bounds.changes.value = -1.0"),
        ({"record": {"evaluate_every": -1}}, "[record] evaluate_every = -1"),
        ({"server": {"dedicated": 1}}, "[server] dedicated = 1"),
        ({"server": {"nonsense": 1}}, "[server] nonsense: unknown key; known are dedicated"),
        ({"compute": {"dtype": "float16"}}, '[compute] dtype = "float16"'),
        ({"algorithm": {"name": "sgd"}}, ", ".join(ALGORITHMS)),
        (
            {"algorithm": fedavg(learning_rate=[0.1, 0.2])},
            "= [0.1, 0.2]: expected a number or a table",
        ),
        (
            {"algorithm": fedavg(learning_rate={"schedule": "step", "initial": 0.1, "factor": 0.5, "every": 2})},
            '[client_optimizer] learning_rate.schedule: unknown key; did you mean "name"?; known are initial, factor,',
        ),
        (
            {"algorithm": fedavg(learning_rate={"name": "stp", "initial": 0.1})},
            '[client_optimizer] learning_rate.name = "stp": expected "power" or "step" or "cosine"',
        ),
        ({"algorithm": fedavg(learning_rate={"initial": -1.0})}, "[client_optimizer] learning_rate.initial = -1.0: "),
        ({"algorithm": SSCA | {"slack_cost": [-1.0]}}, "[algorithm] slack_cost, value 1 = -1.0: expected a number"),
        ({"algorithm": fedavg(problem=1)}, "problem: unknown key"),
        (
            {"minimize": {"name": "los"}},
            'name = "los": is not known; did you mean "loss"?; give one of loss,',
        ),
        ({"minimize": {"name": "norm", "limit": 1.0}}, "[minimize] limit: unknown key"),
        ({"constraint": [LOSS, {"name": "loss"}]}, "[constraint 2] limit: missing"),
        ({"constraint": [LOSS, LOSS | {"limit": "1"}]}, '[constraint 2] limit = "1": '),
        ({"constraint": [LOSS | {"clases": [1]}]}, "[constraint 1] clases: unknown key; did you mean"),
        ({"constraint": LOSS}, "constraint = "),
        ({"algorithm": SSCA | {"rho": [1.5]}}, "[algorithm] rho, value 1 = 1.5: expected a number of at most 1"),
        ({"algorithm": SSCA | {"returns": "best feasible"}, "record": {"evaluate_every": 0}}, "evaluates none"),
        ({"model": {"name": "mlp", "start": 3}}, "[model] start = 3: expected text"),
        ({"algorithm": SSCA, "client_optimizer": {"learning_rate": 0.1}}, "client_optimizer: [algorithm] takes none"),
        *(({name: None}, f"{name}: missing") for name in ("name", "rounds", "data", "model", "algorithm")),
    ],
)
def test_one_thing_wrong(changes: dict[str, Any], said: str) -> None:
    whole = {"algorithm": SSCA} if "constraint" in changes or "minimize" in changes else {}
    found = complaints({name: one for name, one in table(**whole | changes).items() if one is not None})
    assert len(found) == 1 and said in found[0], found


@pytest.mark.parametrize(
    ("keys", "name"),
    [({}, "power"), ({"warmup": 3}, "power"), ({"factor": 0.5, "every": 2}, "step"), ({"rounds": 9}, "cosine")],
)
def test_a_schedule_is_told_by_its_keys(keys: dict[str, Any], name: str) -> None:
    """And written with its name."""
    job = checked(table(algorithm=fedavg(learning_rate={"initial": 0.1, **keys})))
    assert job.table()["client_optimizer"]["learning_rate"].items() >= {"name": name, **keys}.items()
    assert Job.check(job.table()).table() == job.table()


# of cells, and of two classes, tests/laws/test_hybrid.py and the references have these checks
STEPS = {named(row): method.least for row, method in METHODS.items() if method.least is not None}


@pytest.mark.parametrize("name", sorted(STEPS))
def test_every_algorithm_checks_what_fits(name: str) -> None:
    vertical = name == "vertical-sgd"
    right, wrong = ("columns", "rows") if vertical else ("rows", "columns")
    job = checked(
        table(algorithm={"name": name, "batch_size": 61, **STEPS[name]}, participation={"clients_per_round": 4})
    )
    with pytest.raises(UsageError) as caught:
        job.make_algorithm(problem(split="grid" if name == "ssca" else wrong))
    said = str(caught.value)
    assert f"needs data split by {right}, and the folder is split by {'grid' if name == 'ssca' else wrong}" in said
    assert ("[algorithm] batch_size = 61: there are 60 samples" in said) == vertical
    assert "[participation] clients_per_round = 4: somewhere has 3 clients" in said
    fits = checked(table(algorithm={"name": name, "batch_size": 10 if vertical else 61, **STEPS[name]}))
    assert fits.make_algorithm(problem(split=right)).check() == []


# --- problems with constraints -----------------------------------------------------------------------------------


def misfits(changes: dict[str, Any], task: dict[str, Any]) -> list[str]:
    """What `make_algorithm` complains of, for a job with the problem that it describes itself."""
    job = checked(table(**changes))
    with pytest.raises(UsageError) as caught:
        job.make_algorithm(problem_of(job, **task))
    first, *lines = str(caught.value).splitlines()
    assert first == "job and data do not fit together"
    assert caught.value.exit_code == 2
    return [line.strip() for line in lines]


def problem_of(job: Job, **task: Any) -> Problem:
    parts = {
        "objective": job.make_objective(), "minimize": job.make_minimize(), "constraints": job.make_constraints()
    }  # fmt: skip
    return problem(**(parts | task))


@dataclass(frozen=True)
class NotANorm(Loss):
    """A term that says it needs no samples."""

    sampled: ClassVar[bool] = False


COLUMNS = {"split": "columns", "counts": np.array([60, 60, 60])}


NORM, BELOW = {"name": "norm"}, "limit - margin = 0: the function is never below zero, so no model can meet it; raise"
SEQUENCE = SSCA | {"slack_cost": [10.0, 1.0], "stage_rounds": 5}
NO_CONSTRAINTS = "takes no [[constraint]] and no [minimize] but the mean loss"
FEDAVG, BY_COLUMNS = fedavg(11), {"name": "vertical-sgd", "batch_size": 4, "server_optimizer": {"learning_rate": 0.1}}
REAL = {"model": {"name": "least-squares", "bias": False}}


@pytest.mark.parametrize(
    ("changes", "task", "said"),
    [
        ({"constraint": [LOSS | {"limit": 0.0}]}, {}, f"[constraint 1] {BELOW}"),
        ({"constraint": [LOSS, LOSS | {"limit": 0.2, "margin": 0.2}]}, {}, f"[constraint 2] {BELOW}"),
        ({"constraint": [LOSS | {"classes": [0, 3]}]}, {}, "[constraint 1] classes = [0, 3]: expected some of 0 to"),
        ({"constraint": [LOSS | {"classes": [0]}], **REAL}, {"outputs": 1}, "classes = [0]: the targets have no"),
        (
            {"constraint": [{"name": f"{__name__}:NotANorm", "limit": 1.0}]},
            {},
            "only Norm may declare that",
        ),
        (
            {"minimize": {"name": "error-rate"}, **REAL},
            {"outputs": 1},
            'name = "error-rate": is for classes',
        ),
        (
            {"minimize": NORM, "constraint": [LOSS], "model": {"name": "softmax", "l2": 0.1}},
            {},
            "[model] l2 = 0.1: ",
        ),
        ({"minimize": NORM}, {}, '"norm" without a [[constraint]] that needs data: the solution is zero'),
        ({"algorithm": SSCA | {"slack_cost": [1.0, 10.0]}}, {}, "[algorithm] stage_rounds: missing; after how many"),
        ({"algorithm": SEQUENCE}, {}, "[algorithm] slack_cost = [10.0, 1.0]: a penalty sequence must grow"),
        (
            {"algorithm": SSCA, "participation": {"clients_per_round": 2}},
            COLUMNS,
            '"ssca" needs all 3 clients in',
        ),
        ({"algorithm": SSCA | {"variance_reduction": "recursive"}}, COLUMNS, "is for data split by rows"),
        ({"algorithm": SSCA | {"label_holder": 3}}, COLUMNS, "label_holder = 3: clients are numbered 0 to 2"),
        ({"algorithm": SSCA | {"label_holder": 0}}, {}, "label_holder = 0: is for data split by columns"),
        (
            {"algorithm": SSCA},
            {"split": "grid"},
            "name: needs data split by rows, and the folder is split by",
        ),
        ({"algorithm": FEDAVG}, {"privacy": PRIVATE}, "batch_size = 11: the smallest shard (client 0) has 10"),
        ({"algorithm": FEDAVG, "constraint": [LOSS]}, {}, NO_CONSTRAINTS),
        (
            {"algorithm": fedavg(local_steps=2, local_epochs=2)},
            {},
            "local_steps and local_epochs: each says how many; give one of the two",
        ),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], task: dict[str, Any], said: str) -> None:
    (line,) = misfits({"algorithm": SSCA} | changes, task)
    assert said in line


# --- changes by --set --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("seed=7", {"seed": 7}),
        ("a.b=1.5", {"a": {"b": 1.5}}),
        ("a.list=[1, 2]", {"a": {"list": [1, 2]}}),
        ('a.text="quoted = text"', {"a": {"text": "quoted = text"}}),
        ("a.path=./x/y=z", {"a": {"path": "./x/y=z"}}),
        (" a.b = 2 ", {"a": {"b": 2}}),
        ("a.table={x = 1}", {"a": {"table": {"x": 1}}}),
        ('a.b."with.dots"=8.0', {"a": {"b": {"with.dots": 8.0}}}),
    ],
)
def test_set(change: str, expected: dict[str, Any]) -> None:
    found: dict[str, Any] = {}
    set_value(found, change)
    assert found == expected


LIMITS = "[[constraint]]\nname = 'loss'\nlimit = 0.5\n[[constraint]]\nname = 'norm'\nlimit = 3.0\n"


def test_set_of_a_constraint(tmp_path: Path) -> None:
    """By its number, from 1."""
    plain = checked(table(algorithm=SSCA)).table()
    del plain["constraint"]
    (tmp_path / "job.toml").write_text(tomli_w.dumps(plain) + LIMITS)
    changes = ["constraint.1.limit=0.2", "constraint.2.margin=1", "constraint.1.classes=[1]"]
    job = Job.read(tmp_path / "job.toml", changes)
    assert job.make_constraints() == (Constraint(Loss((1,)), 0.2), Constraint(Norm(), 3.0, 1.0))
    assert Job.read(tmp_path / "job.toml", ['constraint=[{name="norm", limit=1.5}]']).make_constraints() == (
        Constraint(Norm(), 1.5),
    )
    assert Job.read(tmp_path / "job.toml", ["constraint=[]"]).make_constraints() == ()


@pytest.mark.parametrize(
    "change",
    ["constraint.9.limit=1", "constraint.1={name = 'norm'}", "constraint.1.limit.x=1", "algorithm.batch_size.1.x=2"],
)
def test_set_of_what_is_not_there(change: str) -> None:
    with pytest.raises(UsageError, match="is not there"):
        set_value(table(constraint=[dict(LOSS), dict(LOSS)]), change)


@pytest.mark.parametrize(
    ("change", "swept"),
    [
        ("algorithm.batch_size=3", "algorithm.batch_size"),  # a value
        ("model.l2=0.1", "model"),  # a whole table
        ("client_optimizer.learning_rate=0.1", "client_optimizer"),  # of methods
        ("seed=2", ""),  # where the seeds begin
        ("sweep.seeds=3", ""),
    ],
)
def test_set_of_what_a_sweep_varies(change: str, swept: str, tmp_path: Path) -> None:
    grid = {"seeds": 2, "algorithm.batch_size": [1, 2], "model": [{"name": "softmax"}]}
    methods = [{"client_optimizer": {"learning_rate": 0.2}}]
    (tmp_path / "job.toml").write_text(tomli_w.dumps({"sweep": {**grid, "methods": methods}}))
    if not swept:
        read_table(tmp_path / "job.toml", [change])
        return
    said = rf"--set {change.partition('=')[0]}: \[sweep\] varies {swept}, and each point"
    with pytest.raises(UsageError, match=said):
        read_table(tmp_path / "job.toml", [change])


def test_reading(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(checked(table()).text())
    assert Job.read(tmp_path / "job.toml", ["seed=9", "algorithm.batch_size=5"]).seed == 9
    with pytest.raises(UsageError, match="cannot be read"):
        Job.read(tmp_path / "nothing.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        Job.read(tmp_path)
    (tmp_path / "bad.toml").write_bytes(b"name = \xff")
    with pytest.raises(UsageError, match="not a TOML file"):
        Job.read(tmp_path / "bad.toml")


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
    job = checked(
        table(
            algorithm={"name": here("Mine"), "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}, "extra": 5},
            model={"name": here("MyObjective"), "l2": 0.25},
        )
    )
    task = problem()
    made = job.make_algorithm(task)
    assert made == Mine(4, SGD(0.1), extra=5, problem=task)
    assert job.make_objective() == MyObjective(l2=0.25, slack=0.5, bias=True)
    inherited = {"bias": True, "penalize_bias": False, "nonconvex_penalty": 0.0}
    assert job.table()["model"] == {"name": here("MyObjective"), "l2": 0.25, "slack": 0.5, **inherited}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:Mine", "No module named 'no_such_module'"),
        (f"{__name__}:Nobody", f"{__name__} has no Nobody; it defines "),
        (f"{__name__}:Mime", f'{__name__} has no Mime; did you mean "Mine"?; it defines '),
        (f"{__name__}:table", "is no class"),
    ],
)
def test_own_classes_that_are_not_there(name: str, said: str) -> None:
    (line,) = complaints(table(algorithm={"name": name}))
    assert line.startswith(f'[algorithm] name = "{name}": ')
    assert said in line
