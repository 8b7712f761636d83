"""The model that a run begins with, and the one that it returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import run
from jobs_in_python import checked, fedavg
from registry import CASES, FEW, NAMES, Case, table
from safetensors.numpy import load, save_file
from written_files import read_json, write_json

import mpifed as mf
from mpifed.core.errors import Interrupted, UsageError
from mpifed.files.history import read_history
from mpifed.files.model_file import model_sha256, read_model
from mpifed.files.run_folder import summary
from mpifed.testing import Solo

FIXED = {"hyfdca": "dual variables", "cocoa": "dual variables", "bundle": "planes"}
NOISY = {"name": "ssca", "batch_size": 8, "rho": [0.9], "gamma": [0.9], "tau": 0.3}
LIMIT = [{"name": "loss", "classes": [3], "limit": 0.7}]
BEST = {"returns": "best feasible"}


@pytest.mark.parametrize("case", [CASES[NAMES.index(name)] for name in FEW], ids=FEW)
def test_every_method_begins_at_the_model_of_another_run(case: Case, request: Any, tmp_path: Path) -> None:
    folders = {"rows": "digits", "columns": "sides", "halves": "halves", "cells": "patches"}
    tables = {"rounds": 2, **case.tables}
    if "privacy" in tables:
        tables = {name: part for name, part in tables.items() if name not in ("privacy", "participation")}
    job = table(request.getfixturevalue(folders[case.split]), case.algorithm, **tables)
    run(checked(job), Solo(), tmp_path / "first")
    job |= {"model": {**job["model"], "start": str(tmp_path / "first")}, "seed": 5}
    if (name := case.algorithm["name"]) in FIXED:
        with pytest.raises(UsageError, match=f"begins at a model of its own, since its {FIXED[name]}"):
            run(checked(job), Solo(), tmp_path / "second")
        return
    run(checked(job), Solo(), tmp_path / "second")
    first, second = (read_history(tmp_path / folder) for folder in ("first", "second"))
    for column in ("train_loss", "objective", "test_loss", "test_accuracy"):
        rounding = 1e-6 if name == "hybrid-fedavg" else 0  # whose server has a multiple of the model
        assert second[column][0] == pytest.approx(first[column][-1], rel=rounding, abs=0)
    trained = model_sha256(read_model(tmp_path / "first" / "model.safetensors"))
    assert read_json(tmp_path / "second" / "run.json")["start_sha256"] == trained
    assert second["train_loss"][-1] != second["train_loss"][0]


@pytest.fixture
def begun(digits: Path, tmp_path: Path) -> dict[str, Any]:
    """A job that begins with the model of another, in `first`, which may be changed."""
    run(checked(table(digits, fedavg(7, 0.1))), Solo(), tmp_path / "first")
    about = tmp_path / "first" / "run.json"
    write_json(about, read_json(about) | {"digests": None})
    job = table(digits, fedavg(7, 0.1))
    return job | {"model": job["model"] | {"start": str(tmp_path / "first" / "model.safetensors")}}


def changed(path: Path, name: str, change: Any) -> None:
    arrays = load(path.read_bytes())
    save_file(arrays | {name: np.ascontiguousarray(change(arrays["first"]))}, path)


SPOILT = {
    "cannot be read .*; give the folder of a run that has ended, or its model": Path.unlink,
    "cannot be read": lambda path: path.write_bytes(path.read_bytes()[:500]),
    "holds .*'first': .64, 3.*this model has": lambda path: changed(path, "first", lambda a: a[:, :3]),
    "second.*and this model has": lambda path: changed(path, "second", lambda a: a),
    "has numbers that are not finite": lambda path: changed(path, "first", lambda a: a * np.inf),
    "numbers that are not finite": lambda path: changed(path, "first", lambda a: a.astype("f8") * 1e300),
    "model.h5: is of mpifed 0.1, and this version reads": lambda path: path.rename(path.with_name("model.h5")),
}


@pytest.mark.parametrize("said", SPOILT)
def test_models_that_do_not_fit(begun: dict[str, Any], tmp_path: Path, said: str) -> None:
    SPOILT[said](tmp_path / "first" / "model.safetensors")
    with pytest.raises(UsageError, match=said) as error:
        run(checked(begun), Solo(), tmp_path / "run")
    assert str(error.value).startswith('[model] start = "')


def test_a_run_goes_on_with_the_model_that_it_began_with_alone(begun: dict[str, Any], tmp_path: Path) -> None:
    out, moved = tmp_path / "run", tmp_path / "moved"
    run(checked(begun), Solo(), tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(checked(begun), Solo(), out, max_hours=0)
    (tmp_path / "first").rename(moved)
    begun["model"]["start"] = str(moved)  # the same model, elsewhere
    run(checked(begun), Solo(), out, resume=True)
    assert summary(out)["model_sha256"] == summary(tmp_path / "whole")["model_sha256"]
    changed(moved / "model.safetensors", "first", lambda values: values + 1)
    without = {name: value for name, value in begun["model"].items() if name != "start"}
    for model, said in ((begun["model"], ""), (without, ".* before, none now")):
        with pytest.raises(UsageError, match=rf"--resume with other \[model\] start \(start: {said}"):
            run(checked(begun | {"model": model, "rounds": 6}), Solo(), out, resume=True)


def test_start_from_python(digits: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 3, "evaluate_every": 3, "progress": False}
    algorithm, model = mf.FedAvg(batch_size=7, client_optimizer=mf.SGD(0.1)), mf.Softmax()
    first = mf.run(algorithm, str(digits), model, out=tmp_path / "first", **settings)
    for start in (first, first.path, str(first.path / "model.safetensors")):
        second = mf.run(algorithm, str(digits), model, start=start, seed=2, **settings)
        assert second.columns["train_loss"][0] == first.columns["train_loss"][-1]
    private = {"privacy": mf.Privacy(clip=1.0, epsilon=8.0, delta=1e-5)}
    for given, more, said in (
        (first.model, {}, r"start: a dict; expected a mpifed\.Run, its folder, or its model"),
        (first, private, "what that model has learned of the data is counted by no epsilon"),
    ):
        with pytest.raises(UsageError, match=said):
            mf.check(algorithm, str(digits), model, start=given, rounds=3, **more)


# --- what is returned --------------------------------------------------------------------------------------------


def constrained(digits: Path, rounds: int = 24, **changes: Any) -> dict[str, Any]:
    """The objective falls, and the limit is met in some of the measured rounds, in the last not at its best."""
    record = {"evaluate_every": 2, "checkpoint_every": 5}
    model = {"name": "softmax", "l2": 1e-3}
    return table(digits, NOISY | changes, rounds=rounds, constraint=LIMIT, record=record, model=model)


def test_the_best_of_the_measured_models_that_met_all_limits(digits: Path, tmp_path: Path) -> None:
    run(checked(constrained(digits)), Solo(), tmp_path / "last")
    run(checked(constrained(digits, **BEST)), Solo(), tmp_path / "best")
    columns, found = read_history(tmp_path / "last"), read_history(tmp_path / "best")
    for name in columns.keys() - {"elapsed_s", "rss_bytes"}:
        np.testing.assert_array_equal(columns[name], found[name], err_msg=name)
    met = columns["constraint_1"] <= 0.7
    best = int(np.argmin(np.where(met, columns["objective"], np.inf)))
    assert met.any() and 0 < best < len(met) - 1
    about, result = read_json(tmp_path / "best" / "run.json"), summary(tmp_path / "best")
    assert about["returned_round"] == columns["round"][best] and about["exit"] == 0
    for name in ("objective", "train_loss", "test_accuracy"):
        assert result[name] == columns[name][best]
    assert result["constraint_values"] == [columns["constraint_1"][best]]
    assert result["kkt_residual"] != columns["kkt_residual"][-1]
    job = constrained(digits, rounds=int(columns["round"][best]))
    run(checked(job), Solo(), tmp_path / "shorter")  # a run that ends there
    assert summary(tmp_path / "shorter")["model_sha256"] == result["model_sha256"]
    assert "returned_round" not in read_json(tmp_path / "shorter" / "run.json")
    assert b"ssca" in (tmp_path / "best" / "model.safetensors").read_bytes()


def test_the_best_model_outlives_an_interruption(digits: Path, tmp_path: Path) -> None:
    job, out = checked(constrained(digits, **BEST)), tmp_path / "run"
    run(job, Solo(), tmp_path / "whole")
    returned = read_json(tmp_path / "whole" / "run.json")["returned_round"]
    run(checked(constrained(digits, rounds=returned + 1, **BEST)), Solo(), out)  # its last row is none of the whole run
    for _ in range(2):  # the second finds it finished
        run(job, Solo(), out, resume=True)
        assert read_json(out / "run.json")["returned_round"] == returned
        assert summary(out)["model_sha256"] == summary(tmp_path / "whole")["model_sha256"]


def test_the_last_model_where_none_met_all_limits(digits: Path, tmp_path: Path) -> None:
    for name, more in (("last", {}), ("best", BEST)):
        job = constrained(digits, rounds=4, **more) | {"constraint": [{"name": "loss", "limit": 1e-3}]}
        run(checked(job), Solo(), tmp_path / name)
    assert summary(tmp_path / "last")["model_sha256"] == summary(tmp_path / "best")["model_sha256"]
    assert "returned_round" not in read_json(tmp_path / "best" / "run.json")
