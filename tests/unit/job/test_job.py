"""Jobs: what is refused, all of it at once and in one way, and what `--set` and own classes give."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
import tomli_w
from annotated_types import Gt, Lt
from jobs_in_python import as_in_a_file, checked, fedavg, job_table
from methods import METHODS, named
from scipy.optimize import brentq
from scipy.stats import norm

from mpifed import SGD, FedAvg, Privacy
from mpifed.algorithms.functions import Constraint
from mpifed.comm.sums import Message
from mpifed.contract import remember
from mpifed.core.errors import UsageError
from mpifed.explain.reference import entry_of
from mpifed.job.job import read_table, set_value
from mpifed.job.participation import arithmetic
from mpifed.maths.objectives import Softmax
from mpifed.maths.privacy.release import Release
from mpifed.maths.problem import Problem
from mpifed.maths.terms import Loss, Norm
from mpifed.privacy.calibration import settle
from mpifed.testing import ALGORITHMS, Job

SSCA = {"name": "ssca", "batch_size": 4, "rho": [0.9, 0.3], "gamma": [0.9, 0.35]}
LOSS = {"name": "loss", "limit": 0.5}
NESTED: Any = []
for _ in range(40):
    NESTED = [NESTED]
NAMES = ["", "  ", ".", "..", "../../x", "/abs", "a/b", "-x", "--wrap=id", "x" * 201, "é" * 101]


def problem(**changes: Any) -> Problem:
    counts = np.array([10, 20, 30])
    settings = {"objective": Softmax(), "split": "rows", "counts": counts, "samples": 60, "features": 2, "outputs": 3}
    return Problem(**(settings | changes))


def complaints(table: dict[str, Any]) -> list[str]:
    with pytest.raises(UsageError) as caught:
        Job.check(as_in_a_file(table), "my.toml")
    first, *lines = str(caught.value).splitlines()
    assert first == f"my.toml: {len(lines)} error{'s' * (len(lines) > 1)}"
    return [line.strip() for line in lines]


PRIVATE = {"delta": 1e-3, "clip": 1.0, "noise_multiplier": 2.0}
NOT_PRIVATE: list[tuple[dict[str, Any], str]] = [
    ({"clip": None}, "clip: missing; without a bound"), ({"delta": None}, "delta: missing"),
    ({"clip": float("inf")}, "clip = Infinity: expected a number of at most 1e+30"),
    ({"noise_multiplier": None}, "epsilon, noise_multiplier: each follows from the other"),
    ({"epsilon": 2.0}, "epsilon, noise_multiplier: each follows from the other"),
    ({"epsilon": 0, "noise_multiplier": None}, "epsilon = 0: expected a number above 0"),
    ({"delta": 1.0}, "delta = 1.0: expected a number below 1"), ({"level": "record"}, 'level = "record": '),
    ({"trust": "central"}, 'level = "sample" with trust = "central"'),
]  # fmt: skip
WRONG: list[tuple[dict[str, Any], str]] = [  # all at once: tests/laws/test_settings.py
    *(({"name": name}, "name = ") for name in NAMES),
    *(({name: None}, f"{name}: missing") for name in ("name", "rounds", "data", "model", "algorithm")),
    *(({"name": f"a{sign}b"}, f"has the control character {sign!a} at ") for sign in ("\n", "\0", "\x1b", "\u2028")),
    ({"data": {"path": "a\0b"}}, "has the control"), ({"audit": {"accept": ["a\nb"]}}, "has the control"),
    ({"rounds": 2**63}, "rounds = 9223372036854775808: must be less than 2^63"),
    ({"rounds": 16**5000}, "rounds = a number of 20001 bits"),
    ({"rounds": 10**8}, "rounds = 100000000: expected a number below 100000000"),
    ({"seed": datetime.date(2024, 1, 1)}, "seed = 2024-01-01: is a date or a time"),
    ({"seed": "x" * 10**6}, f'seed = "{"x" * 199}...'),
    ({"aggregation": {"allow": NESTED}}, "[aggregation] allow: has more than 16 tables and lists within each other"),
    ({"aggregation": {"bounds": {"changes.value": -1.0}}}, "[aggregation] bounds.changes.value = -1.0"),
    ({"record": {"evaluate_every": 2**62}}, "[record] evaluate_every = 4611686018427387904: expected a number "),
    ({"server": {"nonsense": 1}}, "[server] nonsense: unknown key; known are dedicated"),
    ({"model": {"name": "softmax", "bias": False, "l2": 3.5e38}}, "l2 = 3.5e+38: expected a number of at most"),
    ({"model": {"name": "softmax", "bias": False, "l2": float("nan")}}, "[model] l2 = NaN: "),
    ({"algorithm": {"name": "sgd"}}, ", ".join(ALGORITHMS)), ({"algorithm": fedavg(problem=1)}, "problem: unknown key"),
    ({"algorithm": fedavg(learning_rate=[0.1, 0.2])}, "= [0.1, 0.2]: expected a number or a table"),
    ({"algorithm": fedavg(learning_rate={"schedule": "step", "initial": 0.1, "factor": 0.5, "every": 2})},
     '[client_optimizer] learning_rate.schedule: unknown key; did you mean "name"?; known are '),
    ({"algorithm": fedavg(learning_rate={"name": "stp", "initial": 0.1})},
     '[client_optimizer] learning_rate.name = "stp": expected "power" or "step" or "cosine"'),
    ({"algorithm": SSCA | {"slack_cost": [-1.0]}}, "[algorithm] slack_cost, value 1 = -1.0: expected a number"),
    ({"algorithm": SSCA | {"rho": [1.5]}}, "[algorithm] rho, value 1 = 1.5: expected a number of at most 1"),
    ({"algorithm": SSCA | {"returns": "best feasible"}, "record": {"evaluate_every": 0}}, "evaluates none"),
    ({"algorithm": SSCA, "client_optimizer": {"learning_rate": 0.1}}, "client_optimizer: [algorithm] takes none"),
    ({"minimize": {"name": "los"}}, 'name = "los": is not known; did you mean "loss"?; give one of loss,'),
    ({"minimize": {"name": "mpifed.maths.objectives:Softmax"}}, "is no Term; derive it from mpifed.maths"),
    ({"minimize": {"name": "a\u200b b:B"}}, 'name = "a\\u200b b:B": is not known'),
    ({"constraint": [LOSS, {"name": "loss"}]}, "[constraint 2] limit: missing"),
    ({"constraint": [LOSS, LOSS | {"limit": "1"}]}, '[constraint 2] limit = "1": '),
    ({"constraint": [LOSS | {"clases": [1]}]}, "[constraint 1] clases: unknown key; did you mean"),
    ({"algorithm": {"name": "no_such_module:Mine"}}, "No module named 'no_such_module'"),
    ({"algorithm": {"name": f"{__name__}:Mime"}}, f'{__name__} has no Mime; did you mean "Mine"?; it defines '),
    ({"algorithm": {"name": f"{__name__}:problem"}}, "is no class"),
    *(({"privacy": {k: v for k, v in (PRIVATE | changes).items() if v is not None}}, f"[privacy] {said}")
      for changes, said in NOT_PRIVATE),
    ({"stop": {"epsilon": 2.0}}, "[stop] epsilon = 2: a budget needs the table [privacy]"),
    ({"privacy": PRIVATE, "stop": {"epsilon": 0}}, "[stop] epsilon = 0: expected a number above 0"),
    ({"privacy": PRIVATE | {"level": "client", "sampling": "poisson", "trust": "central"}}, "takes part by a coin"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_one_thing_wrong(changes: dict[str, Any], said: str) -> None:
    whole = {"algorithm": SSCA} if "constraint" in changes or "minimize" in changes else {}
    (line,) = complaints({name: one for name, one in job_table(**whole | changes).items() if one is not None})
    assert said in line and len(line) < 1500 and line.isprintable()


def test_files_that_no_reader_takes(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    for content in (b"9" * 5000, b"[" * 5000, b"{a=" * 5000, b"0x" + b"f" * 5000, b"\xff"):
        path.write_bytes(b"x = " + content)
        with pytest.raises(UsageError, match=r"job\.toml: (not a TOML file|1 error)"):
            Job.read(path)
    for nowhere in (tmp_path / "nothing.toml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            Job.read(nowhere)


@pytest.mark.parametrize(
    ("keys", "name"),
    [({}, "power"), ({"warmup": 3}, "power"), ({"factor": 0.5, "every": 2}, "step"), ({"rounds": 9}, "cosine")],
)
def test_a_schedule_is_told_by_its_keys(keys: dict[str, Any], name: str) -> None:
    """And written with its name."""
    job = checked(job_table(algorithm=fedavg(learning_rate={"initial": 0.1, **keys})))
    assert job.table()["client_optimizer"]["learning_rate"].items() >= {"name": name, **keys}.items()


# --- with the data ---------------------------------------------------------------------------------------------------

# of cells, and of two classes, tests/laws/test_hybrid.py and the references have these checks
STEPS = {named(row): method.least for row, method in METHODS.items() if method.least is not None}


@pytest.mark.parametrize("name", sorted(STEPS))
def test_every_algorithm_checks_what_fits(name: str) -> None:
    vertical = name == "vertical-sgd"
    right, wrong = ("columns", "rows") if vertical else ("rows", "grid" if name == "ssca" else "columns")
    many = {"name": name, "batch_size": 61, **STEPS[name]}
    job = checked(job_table(algorithm=many, participation={"clients_per_round": 4}))
    with pytest.raises(UsageError) as caught:
        job.make_algorithm(problem(split=wrong))
    said = str(caught.value)
    assert f"needs data split by {right}, and the folder is split by {wrong}" in said
    assert ("[algorithm] batch_size = 61: there are 60 samples" in said) == vertical
    assert "[participation] clients_per_round = 4: somewhere has 3 clients" in said
    fits = checked(job_table(algorithm=many | ({"batch_size": 10} if vertical else {})))
    assert fits.make_algorithm(problem(split=right)).check() == []


@dataclass(frozen=True)
class NotANorm(Loss):
    """A term that says it needs no samples."""

    sampled: ClassVar[bool] = False


COLUMNS = {"split": "columns", "counts": np.array([60, 60, 60])}
NORM, BELOW = {"name": "norm"}, "limit - margin = 0: the function is never below zero, so no model can meet it; raise"
REAL = {"model": {"name": "least-squares", "bias": False}}
MISFITS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"constraint": [LOSS | {"limit": 0.0}]}, {}, f"[constraint 1] {BELOW}"),
    ({"constraint": [LOSS, LOSS | {"limit": 0.2, "margin": 0.2}]}, {}, f"[constraint 2] {BELOW}"),
    ({"constraint": [LOSS | {"classes": [0, 3]}]}, {}, "[constraint 1] classes = [0, 3]: expected some of 0 to"),
    ({"constraint": [LOSS | {"classes": [0]}], **REAL}, {"outputs": 1}, "classes = [0]: the targets have no"),
    ({"constraint": [{"name": f"{__name__}:NotANorm", "limit": 1.0}]}, {}, "only Norm may declare that"),
    ({"minimize": {"name": "error-rate"}, **REAL}, {"outputs": 1}, 'name = "error-rate": is for classes'),
    ({"minimize": NORM, "constraint": [LOSS], "model": {"name": "softmax", "l2": 0.1}}, {}, "[model] l2 = 0.1: "),
    ({"minimize": NORM}, {}, '"norm" without a [[constraint]] that needs data: the solution is zero'),
    ({"participation": {"clients_per_round": 2}}, COLUMNS, '"ssca" needs all 3 clients in'),
    ({"algorithm": SSCA | {"slack_cost": [1.0, 10.0]}}, {}, "[algorithm] stage_rounds: missing; after how many"),
    ({"algorithm": SSCA | {"slack_cost": [10.0, 1.0], "stage_rounds": 5}}, {}, "a penalty sequence must grow"),
    ({"algorithm": SSCA | {"variance_reduction": "recursive"}}, COLUMNS, "is for data split by rows"),
    ({"algorithm": SSCA | {"label_holder": 3}}, COLUMNS, "label_holder = 3: clients are numbered 0 to 2"),
    ({"algorithm": SSCA | {"label_holder": 0}}, {}, "label_holder = 0: is for data split by columns"),
    ({"algorithm": fedavg(11)}, {"privacy": Privacy(delta=1e-5, clip=1.0, noise_multiplier=1.0)},
     "batch_size = 11: the smallest shard (client 0) has 10"),
    ({"algorithm": fedavg(11), "constraint": [LOSS]}, {}, "takes no [[constraint]] and no [minimize] but"),
    ({"algorithm": fedavg(local_steps=2, local_epochs=2)}, {}, "local_steps and local_epochs: each says how many"),
    *(({"algorithm": fedavg(4)}, {"privacy": Privacy(**PRIVATE | {"delta": 1 / n, "level": level})},
       f"delta = {1 / n:g}: must lie below 1/{n} = {1 / n:.2g}") for n, level in ((60, "sample"), (3, "client"))),
    ({"algorithm": fedavg() | {"name": f"{__name__}:Told"}},
     {"privacy": Privacy(**PRIVATE | {"level": "client", "trust": "central"})}, 'a client who is left out of a fixed'),
]  # fmt: skip


@dataclass(frozen=True)
class Told(FedAvg):
    """Says what it releases: one mechanism a round, of half of the clients."""

    def released(self) -> Release:
        ones = np.ones(3)
        return Release(1, 2.0 * ones, 0.5 * ones)


def test_a_budget_that_one_round_exceeds() -> None:
    """One Gaussian mechanism of multiplier 2, by Theorem 8 of Balle and Wang (ICML 2018)."""

    def delta(epsilon: float) -> float:
        return float(norm.cdf(1 / 4 - 2 * epsilon) - np.exp(epsilon) * norm.cdf(-1 / 4 - 2 * epsilon))

    cost = brentq(lambda epsilon: delta(epsilon) - 1e-3, 0.1, 10)
    job = checked(job_table(privacy=PRIVATE | {"level": "client"}, stop={"epsilon": cost * 1.001}))
    algorithm = job.make_algorithm(problem(privacy=job.privacy))
    assert settle(job, algorithm) == 2.0
    with pytest.raises(UsageError, match=rf"already spent: one single round costs {cost:.3g} at delta = 0\.001"):
        settle(replace(job, stop=replace(job.stop, epsilon=cost * 0.999)), algorithm)


@pytest.mark.parametrize(("changes", "task", "said"), MISFITS)
def test_what_does_not_fit(changes: dict[str, Any], task: dict[str, Any], said: str) -> None:
    job = checked(job_table(**{"algorithm": SSCA} | changes))
    parts = {
        "objective": job.make_objective(), "minimize": job.make_minimize(), "constraints": job.make_constraints()
    }  # fmt: skip
    with pytest.raises(UsageError) as caught:
        job.make_algorithm(problem(**(parts | task)))
    first, line = str(caught.value).splitlines()
    assert first == "job and data do not fit together" and said in line and caught.value.exit_code == 2


# --- changes by --set ------------------------------------------------------------------------------------------------


SET: dict[str, dict[str, Any]] = {
    "seed=7": {"seed": 7}, "a.b=1.5": {"a": {"b": 1.5}}, "a.list=[1, 2]": {"a": {"list": [1, 2]}},
    'a.text="quoted = text"': {"a": {"text": "quoted = text"}}, "a.path=./x/y=z": {"a": {"path": "./x/y=z"}},
    " a.b = 2 ": {"a": {"b": 2}}, "a.table={x = 1}": {"a": {"table": {"x": 1}}},
    'a.b."with.dots"=8.0': {"a": {"b": {"with.dots": 8.0}}},
}  # fmt: skip
NOT_SET = ("rounds=1\nname=2", "a=1\u2028", "{a=1,b=2}=1", "rounds=" + "9" * 5000, "rounds=" + "[" * 5000, "=", "a")
NOT_THERE = ("constraint.9.limit=1", "constraint.1={name = 'norm'}", "constraint.1.limit.x=1", "rounds.1.x=2")


def test_set(tmp_path: Path) -> None:
    """Of a constraint by its number, from 1; nothing that a sweep varies."""
    for change, expected in SET.items():
        found: dict[str, Any] = {}
        set_value(found, change)
        assert found == expected
    for change in (*NOT_SET, *NOT_THERE):
        with pytest.raises(UsageError, match="is not there" if change in NOT_THERE else None) as caught:
            set_value(job_table(constraint=[dict(LOSS), dict(LOSS)]), change)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 700
    path, limits = tmp_path / "job.toml", [dict(LOSS), {"name": "norm", "limit": 3.0}]
    path.write_text(tomli_w.dumps(checked(job_table(algorithm=SSCA)).table() | {"constraint": limits}))
    job = Job.read(path, ["constraint.1.limit=0.2", "constraint.2.margin=1", "constraint.1.classes=[1]", "seed=9"])
    assert job.make_constraints() == (Constraint(Loss((1,)), 0.2), Constraint(Norm(), 3.0, 1.0)) and job.seed == 9
    assert Job.read(path, ["constraint=[]"]).make_constraints() == ()
    grid = {"seeds": 2, "algorithm.batch_size": [1, 2], "model": [{"name": "softmax"}]}
    path.write_text(tomli_w.dumps({"sweep": {**grid, "methods": [{"client_optimizer": {"learning_rate": 0.2}}]}}))
    read_table(path, ["seed=2", "sweep.seeds=3"])
    for key, swept in (
        ("algorithm.batch_size", "algorithm.batch_size"), ("model.l2", "model"),
        ("client_optimizer.learning_rate", "client_optimizer"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=rf"--set {key}: \[sweep\] varies {swept}, and each point"):
            read_table(path, [f"{key}=3"])


# --- the user's own classes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mine(FedAvg):
    """A class that a job names."""

    extra: int = 3


@dataclass(frozen=True)
class MyObjective(Softmax):
    """Another."""

    slack: Annotated[float, Gt(0)] = 0.5


@dataclass(frozen=True)
class OutOfRange(FedAvg):
    decay: Annotated[float, Gt(0), Lt(1)] = 1.5
    passes: Annotated[int, Gt(0)] = 0
    rule: Literal["mean", "median"] = "mode"  # type: ignore[assignment]  # the mistake that is tried


@dataclass(frozen=True)
class Part:
    name: str = "mine"


@dataclass(frozen=True)
class Unions(FedAvg):
    numbers: Literal[1, 2] | tuple[int, ...] = 1
    pair: tuple[int, float] = (1, 0.5)
    own: float | Part = 0.5
    narrow: float = np.float32(0.5)  # type: ignore[assignment]  # NumPy's numbers count as Python's


def test_own_classes() -> None:
    mine = fedavg(4) | {"name": f"{__name__}:Mine", "extra": 5}
    job = checked(job_table(algorithm=mine, model={"name": f"{__name__}:MyObjective", "l2": 0.25}))
    task = problem()
    assert job.make_algorithm(task) == Mine(4, SGD(0.1), extra=5, problem=task)
    assert job.make_objective() == MyObjective(l2=0.25, slack=0.5, bias=True)
    inherited = {"bias": True, "penalize_bias": False, "nonconvex_penalty": 0.0}
    assert job.table()["model"] == {"name": f"{__name__}:MyObjective", "l2": 0.25, "slack": 0.5, **inherited}


def test_defaults_and_annotations_of_own_classes() -> None:
    """Defaults are held to the ranges that annotations state."""
    lines = complaints(job_table(algorithm=fedavg() | {"name": remember(OutOfRange)}))
    assert sorted(lines) == [
        "[algorithm] decay = 1.5: expected a number below 1", "[algorithm] passes = 0: expected a number above 0",
        '[algorithm] rule = "mode": expected "mean" or "median"',
    ]  # fmt: skip
    right = fedavg() | {"name": remember(OutOfRange), "decay": 0.5, "passes": 1, "rule": "mean"}
    assert checked(job_table(algorithm=right)).algorithm["decay"] == 0.5
    for changes in ({"numbers": 2}, {"numbers": [3, 4]}, {"own": 0.25}, {"pair": [2, 1.5]}):
        job = checked(job_table(algorithm=fedavg() | {"name": remember(Unions), **changes}))
        assert job.algorithm.items() >= changes.items()
    (line,) = complaints(job_table(algorithm=fedavg() | {"name": remember(Unions), "numbers": 5}))
    assert "numbers = 5: expected 1 or 2" in line
    keys = {key.name: (key.type, key.default) for key in entry_of("algorithm", "unions", Unions).keys}
    assert keys["pair"] == ("[an integer, a number]", "[1, 0.5]") and keys["narrow"] == ("a number", "0.5")


# --- how many answers a sum must have room for -----------------------------------------------------------------------

MANY = 100_000  # times the default bound of 2^50 steps: beyond one int64
FEW = {"clients_per_round": 100}
COINS = PRIVATE | {"delta": 1e-6, "level": "client", "sampling": "poisson", "trust": "central"}


@pytest.mark.parametrize(
    ("more", "most", "limbs"),
    [({"participation": FEW}, 100, 1), ({}, MANY, 2), ({"participation": FEW, "privacy": COINS}, MANY, 1)],
)
def test_the_most_that_are_summed(more: dict[str, Any], most: int, limbs: int) -> None:
    """Those present, where so many are drawn; coins may bring any number; measures sum over all."""
    job = checked(job_table(**more))
    given = {"clients_per_round": job.participation.clients_per_round, "privacy": job.privacy}
    algorithm = job.make_algorithm(problem(counts=np.full(MANY, 16), samples=16 * MANY, **given))
    summed = arithmetic(job, algorithm)
    (exchange,) = algorithm.exchanges
    assert summed.most.get(exchange.name, MANY) == most
    places = Message(exchange, MANY, summed).places
    assert {place.form.limbs for place in places if place.field.shape} == {limbs}
    measured = [one for measure in algorithm.measures for one in measure.exchanges]
    assert {summed.most.get(one.name, MANY) for one in measured} <= {MANY}
