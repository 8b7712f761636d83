"""How runs with certificates end: certified, not certified, out of time; and what they warn of."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import CERTIFICATE
from jobs_in_python import checked
from methods import SIZES
from registry import table
from whole_runs import run
from written_files import read_json

from mpifed.core.errors import NotCertified
from mpifed.files.ends import ENDS, end_of
from mpifed.files.history import read_history
from mpifed.files.model_file import read_model
from mpifed.files.run_folder import summary
from mpifed.job import goals
from mpifed.testing import Solo


def convex(folder: Path, name: str = "ssca", batch: int = 60, **changes: Any) -> dict[str, Any]:
    """Full batches, a norm that binds: the residual is below 1e-4 after some 30 rounds."""
    hyper = {"batch_size": batch, "rho": [1.0], "gamma": [0.5], "tau": 0.5, "slack_cost": 100.0}
    base = {
        "rounds": 100,
        "model": {"name": "softmax", "bias": False},
        "constraint": [{"name": "norm", "limit": 1.0}],
        "compute": {"dtype": "float64"},
        "record": {"evaluate_every": 5, "checkpoint_every": 0},
        "stop": {"reached": ["kkt_residual<=1e-4"]},
    }
    return table(folder, {"name": name, **hyper}, **(base | changes))


@pytest.fixture(params=["rows", "columns"])
def certified(request: pytest.FixtureRequest, classes: Path, by_columns: Path) -> dict[str, Any]:
    """A job that gets its certificate."""
    if request.param == "rows":
        return convex(classes)
    return convex(by_columns, "ssca", 240)


@pytest.fixture(params=["rows", "columns"])
def by_rows_or_columns(request: pytest.FixtureRequest, classes: Path, by_columns: Path) -> dict[str, Any]:
    """A job whose limit lies below what its rounds come to."""
    limits = {"minimize": {"name": "norm"}, "constraint": [{"name": "loss", "limit": 0.5}]}
    hyper: dict[str, Any] = {"name": "ssca", "batch_size": 10}
    if request.param == "columns":
        hyper = {"name": "ssca", "batch_size": 40}
    folder = classes if request.param == "rows" else by_columns
    return convex(folder, **limits) | {"algorithm": {**hyper, "rho": [0.5, 0.4], "gamma": [0.3, 0.5], "tau": 0.5}}


def ended_with(job: dict[str, Any], out: Path, **how: Any) -> int:
    """The exit code of a run in this process; Interrupted is for others."""
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
    return history["round"][np.isfinite(history["kkt_residual"])].tolist()


# --- [stop] kkt_residual -----------------------------------------------------------------------------------------


def test_reached(certified: dict[str, Any], tmp_path: Path) -> None:
    assert ended_with(certified, tmp_path / "run") == 0
    history, told = read_history(tmp_path / "run"), read_json(tmp_path / "run" / "run.json")
    rounds = told["rounds"]
    assert 5 < rounds < 100 and rounds % 5 == 0
    assert told["exit"] == 0
    assert history["round"].tolist() == list(range(0, rounds + 1, 5)) == with_certificate(history)
    assert history["kkt_residual"][-1] <= 1e-4 < history["kkt_residual"][-2]  # the first that is small ends it
    assert summary(tmp_path / "run")["kkt_residual"] == history["kkt_residual"][-1]


def test_reached_and_resumed_is_still_reached(certified: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended_with(certified, out)
    before, text = summary(out), (out / "history.csv").read_text()
    assert ended_with(certified, out, resume=True) == 0
    assert (out / "history.csv").read_text() == text
    assert (summary(out)["rounds"], summary(out)["exit"]) == (before["rounds"], 0)
    # a smaller residual wants more rounds
    assert ended_with(certified | {"stop": {"reached": ["kkt_residual<=1e-6"]}}, out, resume=True) == 0
    assert summary(out)["rounds"] > before["rounds"]
    assert summary(out)["kkt_residual"] <= 1e-6


def test_not_reached(certified: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert ended_with(certified | {"rounds": 7}, out) == 69
    told, history = read_json(out / "run.json"), read_history(out)
    assert (told["exit"], told["rounds"]) == (69, 7)
    assert told["ended"] is not None
    assert history["round"].tolist() == [0, 5, 7] == with_certificate(history)
    assert history["kkt_residual"][-1] > 1e-4
    assert read_model(out / "model.safetensors")["first"].shape == (6, 3)
    # the same job again ends the same way, without another round
    model = summary(out)["model_sha256"]
    assert ended_with(certified | {"rounds": 7}, out, resume=True) == 69
    assert (summary(out)["model_sha256"], summary(out)["exit"]) == (model, 69)
    # more rounds go on from there
    assert ended_with(certified, out, resume=True) == 0
    whole = tmp_path / "whole"
    assert ended_with(certified, whole) == 0
    assert summary(out)["model_sha256"] == summary(whole)["model_sha256"]
    assert summary(out)["rounds"] == summary(whole)["rounds"]


def test_a_limit_that_is_not_met_is_no_success(by_rows_or_columns: Any, tmp_path: Path, launch: Any) -> None:
    """Whatever [stop] says, and however little is measured: exactly at the limit is met, and a hair above is not."""
    for record in ({"evaluate_every": 5}, {"evaluate_every": 0}):
        for stop in ({}, {"seconds": 1e9}, *([{"reached": ["kkt_residual<=0.9"]}] if record["evaluate_every"] else [])):
            job = by_rows_or_columns | {"record": {**record, "checkpoint_every": 0}, "stop": stop, "rounds": 20}
            out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
            assert ended_with(job, out) == 69
            (value,) = summary(out)["constraint_values"]
            text = launch(None, "show", out).out
            assert "NOT met" in text and "a limit is not met" in text
            limits = [{**job["constraint"][0], "limit": limit} for limit in (value, np.nextafter(value, 0))]
            met, above = (checked(job | {"constraint": [one], "stop": {}}) for one in limits)
            assert list(goals.unreached(met, {"constraint_1": value})) == []
            assert len(list(goals.unreached(above, {"constraint_1": value}))) == 1


def test_out_of_time_first(certified: dict[str, Any], tmp_path: Path) -> None:
    """[stop] seconds ends a run whose last model is certified too, and is no excuse for what it lacks."""
    timed = certified | {"stop": {"reached": ["kkt_residual<=1e-4"], "seconds": 1e-9}}
    assert ended_with(timed, tmp_path / "run") == 69
    history = read_history(tmp_path / "run")
    assert history["round"].tolist() == [0, 1] == with_certificate(history)
    slow = certified | {"stop": {"reached": ["kkt_residual<=1e-4"], "seconds": 1e9}}
    assert ended_with(slow, tmp_path / "slow") == 0
    assert summary(tmp_path / "slow")["kkt_residual"] <= 1e-4


@pytest.mark.launch
def test_every_rank_ends_alike(
    certified: dict[str, Any], launch: Callable[..., Any], write_job: Any, tmp_path: Path
) -> None:
    job, out = write_job(tmp_path / "job.toml", certified), tmp_path / "run"
    ended = launch(2, "run", job, "--out", out, "--set", "rounds=7")
    assert ended.code == 69, ended.text  # of each rank, which is left standing
    assert ended.text.count("[stop] reached kkt_residual <= 0.0001") == 1, ended.text
    assert "Traceback" not in ended.text
    assert read_json(out / "run.json")["exit"] == 69
    assert read_history(out)["round"].tolist() == [0, 5, 7]
    assert (out / "model.safetensors").exists()
    # `mpifed run --resume` on another number of ranks goes on
    ended = launch(None, "run", job, "--out", out, "--resume")
    assert ended.code == 0, ended.text
    found = summary(out)
    assert found["exit"] == 0 and found["kkt_residual"] <= 1e-4
    assert ended_with(certified, tmp_path / "alone") == 0
    expected = summary(tmp_path / "alone")
    assert [found[n] for n in ("model_sha256", "rounds", "kkt_residual", "up_bytes")] == [
        expected[n] for n in ("model_sha256", "rounds", "kkt_residual", "up_bytes")
    ]


# --- [record] certify_every --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "rounds", "measured", "there"),
    [
        ({"evaluate_every": 2}, 7, [0, 2, 4, 6, 7], [0, 7]),
        ({"evaluate_every": 2, "certify_every": 4}, 9, [0, 2, 4, 6, 8, 9], [0, 4, 8, 9]),
        ({"evaluate_every": 2, "certify_every": 3}, 7, [0, 2, 4, 6, 7], [0, 6, 7]),  # where rounds are measured
        ({"evaluate_every": 3, "certify_every": 1}, 4, [0, 3, 4], [0, 3, 4]),
    ],
)
@pytest.mark.parametrize(("name", "split"), [("ssca", "rows"), ("ssca", "columns"), ("fedavg", "rows")])
def test_certificates_stand_in_their_rows(
    name: str, split: str, record: dict[str, int], rounds: int, measured: list[int], there: list[int], classes: Path,
    by_columns: Path, tmp_path: Path,
) -> None:  # fmt: skip
    folder = by_columns if split == "columns" else classes
    hyper = {"batch_size": 7, "client_optimizer": {"learning_rate": 0.1}} if name == "fedavg" else SIZES
    tables = {} if name == "fedavg" else {"constraint": [{"name": "loss", "limit": 1.0}]}
    job = table(folder, {"name": name, **hyper}, rounds=rounds, record={**record, "checkpoint_every": 0}, **tables)
    ended_with(job, tmp_path / "run")
    history = read_history(tmp_path / "run")
    assert history["round"].tolist() == measured
    assert with_certificate(history) == there
    ours = ["constraint_1", "margin_1", "subproblem_multiplier_1", "slack"] if tables else []
    always = ["objective", "train_loss", *ours]
    assert np.isfinite([history[column] for column in always]).all()
    if tables:
        assert summary(tmp_path / "run")["constraint_values"] == [history["constraint_1"][-1]]


SOUND = {"rho": [0.9, 0.6], "gamma": [0.9, 0.8]}  # all conditions of the theorems hold


@pytest.mark.parametrize("split", ["rows", "columns"])
def test_a_slack_cost_below_the_multiplier_is_remarked(
    split: str, classes: Path, by_columns: Path, tmp_path: Path
) -> None:
    folder = by_columns if split == "columns" else classes

    def remarks(cost: Any, limit: float, **hyper: Any) -> list[str]:
        out = tmp_path / f"run-{cost}-{limit}"
        job = table(
            folder, {"name": "ssca", "batch_size": 60, **SOUND, "slack_cost": cost, **hyper}, rounds=8,
            minimize={"name": "norm"}, model={"name": "softmax", "bias": False},
            constraint=[{"name": "loss", "limit": 5.0}, {"name": "loss", "limit": limit}],
        )  # fmt: skip
        ended_with(job, out)
        found: list[str] = read_json(out / "run.json")["warnings"]
        return found

    (remark,) = remarks(1e-3, 1.0)
    assert re.fullmatch(
        r"constraint 2: 0\.09\d+ above its limit 1; its multiplier was at its cap in 100% of recent rounds", remark
    )
    assert remarks(1e-3, 3.0) == []  # nothing binds
    assert len(remarks([1e-3, 2e-3], 1.0, stage_rounds=1)) == 1  # the largest of a sequence
    assert "in 0% of recent rounds" in remarks([1e-3, 1e4], 1.0, stage_rounds=1)[0]


# --- the duality gap ---------------------------------------------------------------------------------------------


def gapped(folder: Path, **changes: Any) -> dict[str, Any]:
    hinge = {"name": "hinge", "bias": False, "l2": 5e-3}
    return table(folder, {"name": "hyfdca"}, model=hinge, rounds=60, stop={"reached": ["duality_gap<=0.02"]}) | changes


def test_a_duality_gap_ends_a_run(patches: Path, tmp_path: Path) -> None:
    """Reached before the last round; not reached in time, and then on a resumed run, which ends in the same bits."""
    assert ended_with(gapped(patches), tmp_path / "whole") == 0
    whole = summary(tmp_path / "whole")
    assert 0 < whole["duality_gap"] <= 0.02
    assert 4 < whole["rounds"] < 60
    with pytest.raises(NotCertified, match=r"not reached in 4 rounds: .*duality_gap <= 0\.02 \(it is 0\.\d+\)"):
        run(checked(gapped(patches, rounds=4)), Solo(), tmp_path / "run")
    assert ended_with(gapped(patches), tmp_path / "run", resume=True) == 0
    assert summary(tmp_path / "run")["model_sha256"] == whole["model_sha256"]


# --- the page of exit codes ------------------------------------------------------------------------------------------

NOISE = '{clip = 1.0, noise_multiplier = 1.0, delta = 1e-4, noise = "test", public_preparation = true}'
PAGE: dict[int, tuple[list[str], str]] = {  # by code, changes of a job or options, and what is said
    0: ([], "done (exit 0)"), 2: (["seeed=1"], "seeed: unknown key"), 3: (["data.path=nowhere"], "no such folder"),
    1: (["participation={dropout_rate = 0.9, max_dropouts = 1, attempts = 2}"], "in each of 2 attempts"),
    68: (["client_optimizer.learning_rate=1e30"], "mpifed: error: "), 75: (["--max-hours", "0"], "interrupted after"),
    69: (['stop={reached = ["test_accuracy>=1.0"]}'], "not reached in 4 rounds"),
    70: ([f"privacy={NOISE}", "stop.epsilon=1.0", "rounds=400"], "goes on only with a larger budget"),
    71: ([], "leak"),
}  # fmt: skip


@pytest.mark.parametrize("code", [end.code for end in ENDS])
def test_every_code_means_what_the_page_says(
    code: int, digits: Path, tmp_path: Path, write_job: Any, launch: Any
) -> None:
    """And stands in run.json, where a run has begun."""
    averaging = {"name": "fedavg", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}}
    job, out = write_job(tmp_path / "job.toml", table(digits, averaging, rounds=4)), tmp_path / "run"
    given, said = PAGE[code]
    words = given if given[:1] == ["--max-hours"] else [word for one in given for word in ("--set", one)]
    ended = launch(None, "run", job, "--out", out, *(() if code == 71 else words))
    if code == 71:
        ended = launch(None, "audit", out)
    assert ended.code == code and said in ended.text, ended.text
    assert end_of(code).code == code and (code in (2, 3, 71) or read_json(out / "run.json")["exit"] == code)
