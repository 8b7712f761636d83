"""What runs say about optimality: against `certified`, which computes it from files alone, and against optima.

And how runs end that ask for it. The last row of short runs is compared number by number, for all kinds of problems and
both splits of the data.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certified import Columns, certified, compared, last_row, read_job, read_model, recomputed, solve
from ended import CERTIFICATE
from jobs_in_python import checked
from launching import ROOT
from lengths import long_unless
from own_terms import AFFINE, affine_of_loss
from registry import table
from whole_runs import run
from written_files import read_json

from jobs.hyfdca.rows import read_rows
from mpifed.core.errors import NotCertified, UsageError
from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.job import goals
from mpifed.testing import Solo

SSCA = {"name": "ssca", "batch_size": 10, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2, "slack_cost": 30.0}
DOUBLE = {"dtype": "float64"}
EXACT = 1e-6  # differences of 64-bit numbers: sums on the grid of 2^-30 over 240 rows are right to 1e-10


def test_nothing_of_the_package_is_imported() -> None:
    """By what computes certificates a second time."""
    paths = [ROOT / "jobs/hyfdca/rows.py"]
    paths += [ROOT / "tests" / f"{name}.py" for name in ("certificate", "certified", "definitions")]
    for tree in (ast.parse(path.read_text()) for path in paths):
        nodes = list(ast.walk(tree))
        found = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        found += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        assert found and not [name for name in found if name.split(".")[0] == "mpifed"]
        assert all(name == "jobs.hyfdca.rows" for name in found if name.split(".")[0] == "jobs")


def result(job: dict[str, Any], out: Path, **changes: Any) -> Columns:
    """The last row of a run, whether its limits are met or not."""
    record = {"record": {"evaluate_every": 2, "checkpoint_every": 0}, "compute": DOUBLE}
    with suppress(NotCertified):
        run(checked(job | record | changes), Solo(), out)
    return last_row(out)


def check(job: dict[str, Any], out: Path) -> Columns:
    """The last row of a run, each number of which is that of `certified`."""
    theirs = result(job, out)
    rows = compared(certified(out, own={AFFINE: affine_of_loss}, convex_own=(AFFINE,)), theirs, EXACT)
    assert [row for row in rows if not row[-1]] == []
    return theirs


# --- all kinds of problems -------------------------------------------------------------------------------------------

NETWORK = {"name": "mlp", "bias": False, "hidden": 3}
GROUPS = [
    {"name": "loss", "classes": [0, 2], "limit": 0.9, "margin": 0.05}, {"name": "norm", "limit": 7.0},
    {"name": "error-rate", "classes": [1], "limit": 0.6},
]  # fmt: skip
BY_CLASS = [{"name": "loss", "classes": [k], "limit": limit} for k, limit in enumerate([0.5, 0.7, 0.6])]
BALL = [{"name": "norm", "limit": 1.0}]


def softmax(l2: float, bias: bool = False, **more: Any) -> dict[str, Any]:
    return {"model": {"name": "softmax", "bias": bias, "l2": l2}, **more}


PROBLEMS: dict[str, dict[str, Any]] = {
    "plain": {"model": NETWORK | {"l2": 0.01}},
    "norm": {"model": NETWORK, "minimize": {"name": "norm"}, "constraint": [{"name": "loss", "limit": 0.8}]},
    "groups": {"model": NETWORK | {"l2": 0.01, "bias": True}, "constraint": GROUPS},
    "error rate": {
        "model": NETWORK | {"l2": 0.01}, "minimize": {"name": "error-rate", "classes": [0, 2]},
        "constraint": [{"name": "loss", "limit": 1.0, "margin": 0.1}],
    },
    "contradiction": {
        "model": NETWORK | {"bias": True},
        "constraint": [{"name": "error-rate", "classes": [k], "limit": 0.01} for k in (0, 1, 2)],
    },
    "softmax": softmax(0.1, constraint=BALL),
    "ball": softmax(0.0, constraint=BALL),  # which alone is curved
    "by class": softmax(0.0, minimize={"name": "norm"}, constraint=BY_CLASS),
    "by class, and a ball": softmax(
        0.02, True, constraint=[{"name": "loss", "classes": [1], "limit": 1.2}, {"name": "norm", "limit": 2.0}]
    ),
    "without constraints": softmax(0.05, True),
    "twice the same": softmax(0.1, constraint=2 * [BY_CLASS[0]]),
    "a limit of 0": softmax(
        0.05, constraint=[{"name": AFFINE, "classes": [0], "factor": 3.0, "offset": 0.5, "limit": 0.0}]
    ),
    "an objective near 0": softmax(  # log 3 at zeros
        0.01, minimize={"name": AFFINE, "offset": 1.0986}, constraint=[{"name": "norm", "limit": 0.3}]
    ),
}  # fmt: skip
BINDING = ("norm", "groups", "softmax", "by class", "twice the same")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "rows": SSCA,
    "rows, paper": SSCA | {"start": "paper"},
    "columns": SSCA,
    "columns, label holder": SSCA | {"label_holder": 2, "start": "paper"},
    "rows, recursive": SSCA | {"variance_reduction": "recursive"},
}
# of other data: Neyman and Pearson's problem; least squares, penalized and within a ball; the smallest ball for a loss
LEAST = {"name": "least-squares", "bias": False, "l2": 0.05}
ELSEWHERE: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"two classes, l2 = {l2}": ("pairs", {
        "model": {"name": "logistic", "bias": False, "l2": l2}, "minimize": {"name": "error-rate", "classes": [1]},
        "constraint": [{"name": "error-rate", "classes": [0], "limit": 0.2}, {"name": "norm", "limit": 20.0}],
    }) for l2 in (0.0, 0.02)},
    "least squares": ("regression", {"model": LEAST, "constraint": [{"name": "norm", "limit": 0.01}]}),
    "a loss": ("regression", {
        "model": LEAST | {"l2": 0.0}, "minimize": {"name": "norm"}, "constraint": [{"name": "loss", "limit": 0.3}],
    }),
}  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "name", "rounds"),
    long_unless(
        lambda problem, name, rounds: (
            (list(PROBLEMS).index(problem) + list(ALGORITHMS).index(name)) % 5 in ((0, 2) if rounds > 1 else (1,))
        ),  # every problem with some algorithms
        itertools.product(PROBLEMS, ALGORITHMS, (1, 7)),
    ),
)
def test_every_number_is_that_of_the_true_problem(
    problem: str, name: str, rounds: int, classes: Path, by_columns: Path, tmp_path: Path
) -> None:
    folder = by_columns if name.startswith("columns") else classes
    found = check(table(folder, ALGORITHMS[name], rounds=rounds, **PROBLEMS[problem]), tmp_path)
    assert rounds == 1 or found["stationarity"]
    if problem in BINDING and rounds > 1:  # something does
        assert [value for name, value in found.items() if name.startswith("multiplier_") and value]


@pytest.fixture(scope="module")
def folders(shared_path: Path, make_data: Callable[..., Path], regression: Path, columns: Path) -> dict[Any, Path]:
    """By problem and split; pairs are 120 rows of two classes."""
    words = ["--clients", "3", "--samples", "120", "--features", "7", "--task", "classification", "--classes", "2"]
    made: dict[Any, Path] = {
        ("pairs", split): make_data(shared_path / f"pairs-{split}", "synthetic", "--split", split, *words)
        for split in ("rows", "columns")
    }
    return made | {("regression", "rows"): regression, ("regression", "columns"): columns}


@pytest.mark.parametrize("split", ["rows", "columns"])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_losses(name: str, split: str, folders: dict[Any, Path], tmp_path: Path) -> None:
    data, problem = ELSEWHERE[name]
    found = check(table(folders[data, split], ALGORITHMS[split], rounds=6, **problem), tmp_path)
    assert data == "pairs" or found["lower_bound"] is not None


def test_problems_with_and_without_a_bound_and_met_and_missed_limits(classes: Path, tmp_path: Path) -> None:
    """What the tests above compare is not empty everywhere."""
    columns = {name: result(table(classes, SSCA, rounds=7, **PROBLEMS[name]), tmp_path / name)
               for name in ("by class", "softmax", "norm")}  # fmt: skip
    assert [columns[name]["lower_bound"] is None for name in columns] == [False, False, True]
    excess = {name: found["feasibility"] for name, found in columns.items()}
    gaps = {name: found["duality_gap"] for name, found in columns.items() if found["duality_gap"] is not None}
    assert any(excess.values())
    assert gaps and all(excess[name] == 0 and gap is not None and gap >= 0 for name, gap in gaps.items())


@pytest.mark.parametrize("name", ["fedavg", "vertical-sgd"])
def test_baselines_have_the_norm_of_their_gradient(name: str, classes: Path, by_columns: Path, tmp_path: Path) -> None:
    folder, optimizer = (classes, "client_optimizer") if name == "fedavg" else (by_columns, "server_optimizer")
    algorithm = {"name": name, "batch_size": 10, optimizer: {"learning_rate": 0.2}}
    found = check(table(folder, algorithm, rounds=5, **PROBLEMS["plain"]), tmp_path)
    assert found["kkt_residual"] == found["stationarity"] and found["feasibility"] == found["complementarity"] == 0


# --- optima ----------------------------------------------------------------------------------------------------------

CONVEX = {
    "ball": PROBLEMS["ball"],
    "by class": PROBLEMS["by class"],
    "penalized": softmax(
        0.02, constraint=[{"name": "loss", "classes": [0], "limit": 0.4}, {"name": "norm", "limit": 5.0}]
    ),
}


@pytest.mark.parametrize("problem", long_unless(lambda problem: problem == "penalized", CONVEX))
def test_multipliers_and_bound_come_near_those_of_the_optimum(problem: str, classes: Path, tmp_path: Path) -> None:
    """Convex problems by full batches; the optimum by the method of multipliers, certified by its own gap."""
    counts = open_federation(classes).counts
    full = SSCA | {"batch_size": int(counts.max()), "rho": [1.0], "gamma": [0.5], "tau": 0.5, "slack_cost": 1000.0}
    assert counts.min() == counts.max()
    found = check(table(classes, full, rounds=300, **CONVEX[problem]), tmp_path)
    best = solve(read_job(tmp_path), read_rows(classes), (6, 3), 1e4)
    (optimum, *_), nu = best.value, best.multipliers
    numbers = recomputed(read_job(tmp_path), read_rows(classes), {"first": best.w.reshape(-1, 3)})
    assert numbers["kkt_residual"] is not None and numbers["kkt_residual"] < 1e-5
    assert numbers["lower_bound"] == pytest.approx(optimum, rel=1e-6)
    assert nu.max() > 0.01
    ours = [found[f"multiplier_{m}"] for m in range(1, len(nu) + 1)]
    np.testing.assert_allclose(ours, nu, rtol=0.05, atol=0.01 * nu.max())
    assert optimum * 0.99 <= found["lower_bound"] <= optimum * (1 + 1e-6)
    assert found["objective"] == pytest.approx(optimum, rel=0.01)
    np.testing.assert_allclose(read_model(tmp_path / "model.safetensors")["first"].ravel(), best.w, atol=0.02)


@pytest.mark.parametrize(
    ("problem", "tau"),
    long_unless(
        lambda problem, tau: problem != "ball",
        [("penalized", 0.1), ("penalized", 0.5), ("ball", 0.1), ("ball", 0.5), ("by class", 0.2)],
    ),
)
def test_bounds_and_multipliers_on_the_way(problem: str, tau: float, classes: Path, tmp_path: Path) -> None:
    """A bound is below the optimum in every row; multipliers are within their error where all limits are met."""
    record = {"evaluate_every": 5, "certify_every": 5, "checkpoint_every": 0}
    result(table(classes, SSCA | {"tau": tau}, rounds=100, **CONVEX[problem]), tmp_path, record=record)
    job, columns = read_job(tmp_path), read_history(tmp_path)
    best = solve(job, read_rows(classes), (6, 3), 1e4)
    bounds = columns["lower_bound"][1:]  # at the start, multipliers are not yet bounded
    assert len(bounds) == 20 and (bounds <= best.value[0] * (1 + 1e-6)).all() and bounds[-1] > bounds[0]
    limits = [constraint["limit"] for constraint in job["constraint"]]
    values, ours, errors = (
        np.stack([columns[f"{name}{m}"] for m in range(1, len(limits) + 1)], axis=1)
        for name in ("constraint_", "multiplier_", "multiplier_error_")
    )
    assert np.isfinite(errors[1:]).all()
    met = (values <= limits).all(axis=1) & np.isfinite(errors).all(axis=1)
    assert (abs(ours - best.multipliers) <= errors + 1e-3)[met].all()
    if problem != "by class":  # which are met in no round
        assert met.sum() > 3 and errors[met].max() > 0


# --- ends ------------------------------------------------------------------------------------------------------------


def ended_with(job: dict[str, Any], out: Path, **how: Any) -> int:
    """The exit code of a run in this process."""
    try:
        run(checked(job), Solo(), out, **how)
    except NotCertified as error:
        assert error.agreed
        return error.exit_code
    return 0


def with_certificate(history: dict[str, Any]) -> list[int]:
    """The measured rounds that have one; the others have none of its columns."""
    there = {name: np.isfinite(history[name]).tolist() for name in CERTIFICATE}
    assert len({tuple(one) for one in there.values()}) == 1
    return history["round"][np.isfinite(history["kkt_residual"])].tolist()  # type: ignore[no-any-return]


@pytest.fixture(params=["rows", "columns"])
def convex(request: pytest.FixtureRequest, classes: Path, by_columns: Path) -> dict[str, Any]:
    """Full batches, a norm that binds: the residual is below 1e-4 after some 30 rounds."""
    folder, batch = (classes, 60) if request.param == "rows" else (by_columns, 240)
    hyper = {"name": "ssca", "batch_size": batch, "rho": [1.0], "gamma": [0.5], "tau": 0.5, "slack_cost": 100.0}
    record = {"evaluate_every": 5, "checkpoint_every": 0}
    return table(
        folder, hyper, rounds=100, compute=DOUBLE, record=record, stop={"reached": ["kkt_residual<=1e-4"]},
        **PROBLEMS["ball"],
    )  # fmt: skip


def test_a_residual_that_is_asked_for(convex: dict[str, Any], tmp_path: Path) -> None:
    """Not reached in time, and so again; reached; still reached; a smaller one; the bits of a run that went through."""
    out, few = tmp_path / "run", convex | {"rounds": 7}
    assert ended_with(few, out) == ended_with(few, out, resume=True) == 69
    history = read_history(out)
    assert (summary(out)["exit"], summary(out)["rounds"]) == (69, 7)
    assert history["round"].tolist() == [0, 5, 7] == with_certificate(history) and history["kkt_residual"][-1] > 1e-4
    assert ended_with(convex, out, resume=True) == ended_with(convex, tmp_path / "whole") == 0
    told, history = summary(tmp_path / "whole"), read_history(tmp_path / "whole")
    assert (told["model_sha256"], told["rounds"]) == (summary(out)["model_sha256"], summary(out)["rounds"])
    assert 5 < told["rounds"] < 100 and told["rounds"] % 5 == told["exit"] == 0
    assert history["round"].tolist() == list(range(0, told["rounds"] + 1, 5)) == with_certificate(history)
    assert history["kkt_residual"][-1] <= 1e-4 < history["kkt_residual"][-2]  # the first that is small ends it
    assert told["kkt_residual"] == history["kkt_residual"][-1]
    text = (out / "history.csv").read_text()
    assert ended_with(convex, out, resume=True) == 0 and (out / "history.csv").read_text() == text
    smaller = convex | {"stop": {"reached": ["kkt_residual<=1e-6"]}}
    assert ended_with(smaller, out, resume=True) == 0 and summary(out)["rounds"] > told["rounds"]


@pytest.mark.launch
def test_every_rank_ends_alike(
    convex: dict[str, Any], launch: Callable[..., Any], write_job: Any, tmp_path: Path
) -> None:
    """And out of time first: an end by [stop] seconds is certified too, and no excuse for what it lacks."""
    job = write_job(tmp_path / "job.toml", convex)
    for name, change, last in (("run", "rounds=7", [0, 5, 7]), ("timed", "stop.seconds=1e-9", [0, 1])):
        ended = launch(2, "run", job, "--out", tmp_path / name, "--set", change)
        assert ended.code == 69 and ended.text.count("[stop] reached kkt_residual <= 0.0001") == 1, ended.text
        assert "Traceback" not in ended.text
        assert (
            read_history(tmp_path / name)["round"].tolist() == last == with_certificate(read_history(tmp_path / name))
        )
        assert (tmp_path / name / "model.safetensors").exists()
    assert launch(None, "run", job, "--out", tmp_path / "run", "--resume").code == 0  # and on another number of ranks
    assert launch(None, "run", job, "--out", tmp_path / "alone").code == 0
    one, other = (summary(tmp_path / name) for name in ("run", "alone"))
    for name in ("exit", "model_sha256", "rounds", "kkt_residual", "up_bytes"):
        assert one[name] == other[name], name


@pytest.mark.parametrize("split", ["rows", "columns"])
def test_a_limit_that_is_not_met_is_no_success(
    split: str, classes: Path, by_columns: Path, tmp_path: Path, launch: Any
) -> None:
    """Whatever [stop] says, and however little is measured: exactly at the limit is met, and a hair above is not."""
    folder, batch = (classes, 10) if split == "rows" else (by_columns, 40)
    hyper = {"name": "ssca", "batch_size": batch, "rho": [0.5, 0.4], "gamma": [0.3, 0.5], "tau": 0.5}
    limit = [{"name": "loss", "limit": 0.5}]
    small = softmax(0.0, minimize={"name": "norm"}, constraint=limit, rounds=20, compute=DOUBLE)
    ways = [(5, {}), (5, {"seconds": 1e9}), (5, {"reached": ["kkt_residual<=0.9"]}), (0, {}), (0, {"seconds": 1e9})]
    for number, (every, stop) in enumerate(ways):
        job, out = table(folder, hyper, record={"evaluate_every": every}, stop=stop, **small), tmp_path / str(number)
        assert ended_with(job, out) == 69
        (value,) = summary(out)["constraint_values"]
        text = launch(None, "show", out).out
        assert "NOT met" in text and "a limit is not met" in text
        for there, unmet in ((value, 0), (np.nextafter(value, 0), 1)):
            of = checked(job | {"constraint": [limit[0] | {"limit": there}], "stop": {}})
            assert len(list(goals.unreached(of, {"constraint_1": value}))) == unmet


@pytest.mark.parametrize(
    ("record", "rounds", "measured", "there"),
    [
        ({"evaluate_every": 2}, 7, [0, 2, 4, 6, 7], [0, 7]),
        ({"evaluate_every": 2, "certify_every": 4}, 9, [0, 2, 4, 6, 8, 9], [0, 4, 8, 9]),
        ({"evaluate_every": 2, "certify_every": 3}, 7, [0, 2, 4, 6, 7], [0, 6, 7]),  # where rounds are measured
        ({"evaluate_every": 3, "certify_every": 1}, 4, [0, 3, 4], [0, 3, 4]),
    ],
)
@pytest.mark.parametrize("data", ["classes", "by_columns", "without constraints"])
def test_certificates_stand_in_their_rows(
    data: str, record: Any, rounds: int, measured: Any, there: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    averaging = {"name": "fedavg", "batch_size": 7, "client_optimizer": {"learning_rate": 0.1}}
    algorithm, limits = (SSCA, [{"name": "loss", "limit": 1.0}]) if "without" not in data else (averaging, [])
    folder = request.getfixturevalue("classes" if "without" in data else data)
    job = table(folder, algorithm, rounds=rounds, record={**record, "checkpoint_every": 0}, constraint=limits)
    ended_with(job, tmp_path / "run")
    history = read_history(tmp_path / "run")
    assert history["round"].tolist() == measured and with_certificate(history) == there
    ours = ["constraint_1", "margin_1", "subproblem_multiplier_1", "slack"] if limits else []
    assert np.isfinite([history[column] for column in ("objective", "train_loss", *ours)]).all()
    assert not limits or summary(tmp_path / "run")["constraint_values"] == [history["constraint_1"][-1]]


@pytest.mark.parametrize("split", ["rows", "columns"])
def test_a_slack_cost_below_the_multiplier_is_remarked(
    split: str, classes: Path, by_columns: Path, tmp_path: Path
) -> None:
    sound = {"name": "ssca", "batch_size": 60, "rho": [0.9, 0.6], "gamma": [0.9, 0.8]}  # by all conditions of theorems

    def remarks(cost: Any, limit: float, **hyper: Any) -> list[str]:
        out, limits = tmp_path / f"run-{cost}-{limit}", [{"name": "loss", "limit": each} for each in (5.0, limit)]
        problem = softmax(0.0, minimize={"name": "norm"}, constraint=limits)
        folder = classes if split == "rows" else by_columns
        ended_with(table(folder, sound | {"slack_cost": cost, **hyper}, rounds=8, **problem), out)
        return list(read_json(out / "run.json")["warnings"])

    (remark,) = remarks(1e-3, 1.0)
    said = r"constraint 2: 0\.09\d+ above its limit 1; its multiplier was at its cap in 100% of recent rounds"
    assert re.fullmatch(said, remark)
    assert remarks(1e-3, 3.0) == []  # nothing binds
    assert len(remarks([1e-3, 2e-3], 1.0, stage_rounds=1)) == 1  # the largest of a sequence
    assert "in 0% of recent rounds" in remarks([1e-3, 1e4], 1.0, stage_rounds=1)[0]


def test_a_duality_gap_ends_a_run(patches: Path, tmp_path: Path) -> None:
    """Reached before the last round; not reached in time, and then on a resumed run, which ends in the same bits."""
    hinge, stop = {"name": "hinge", "bias": False, "l2": 5e-3}, {"reached": ["duality_gap<=0.02"]}
    job = table(patches, {"name": "hyfdca"}, model=hinge, rounds=60, stop=stop)
    assert ended_with(job, tmp_path / "whole") == 0
    whole = summary(tmp_path / "whole")
    assert 0 < whole["duality_gap"] <= 0.02 and 4 < whole["rounds"] < 60
    with pytest.raises(NotCertified, match=r"not reached in 4 rounds: .*duality_gap <= 0\.02 \(it is 0\.\d+\)"):
        run(checked(job | {"rounds": 4}), Solo(), tmp_path / "run")
    assert ended_with(job, tmp_path / "run", resume=True) == 0
    assert summary(tmp_path / "run")["model_sha256"] == whole["model_sha256"]


def test_a_draw_of_the_rows_decides_no_end(classes: Path, tmp_path: Path) -> None:
    """A class without rows in the draw has no mean, and no certificate; checkpoints are written all the same."""
    draw = {"evaluate_every": 2, "evaluate_rows": 1, "checkpoint_every": 2}
    job = table(classes, SSCA, rounds=6, record=draw, **softmax(0.01))
    for goal in ({"constraint": [BY_CLASS[1]]}, {"stop": {"reached": ["kkt_residual<=0.1"]}}):
        with pytest.raises(UsageError, match="evaluate_rows = 1: no sample of the rows can say"):
            checked(job | goal)
    unknown = []
    for k in range(3):
        run(checked(job | {"minimize": {"name": "error-rate", "classes": [k]}}), Solo(), tmp_path / str(k))
        history = read_history(tmp_path / str(k))
        unknown.append(bool(np.isnan(history["objective"]).all()))
        assert np.isnan(history["kkt_residual"]).all() == unknown[-1]
    assert sum(unknown) == 2
