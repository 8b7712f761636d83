"""`make reproduce-hyfdca`: its jobs and its data, and a small whole runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from written_files import points_of, read_json

from mpifed.testing import Job

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`jobs` is imported from there."""
    monkeypatch.syspath_prepend(ROOT)
    yield


def test_every_setting_is_a_change_of_a_job() -> None:
    from jobs.hyfdca.names import JOBS, job_of, label, settings
    from jobs.hyfdca.reproduce import Plan, tuned_in
    from jobs.reproduction.runs import assigned

    every, plan, tuned = list(settings()), Plan(Path("out"), 300, 1), read_json(JOBS / "tuned.json")
    assert len(every) == 36 and {one.clients for one in every} == {4, 16, 64}
    assert sorted({one.present for one in every}) == [1, 2, 4, 6, 8, 16, 32, 64]
    names = {job_of(setting.data, method) for setting in every for method in setting.methods}
    assert {path.stem for path in JOBS.glob("*-*.toml")} == names
    lambdas = {"mnist": 1e-3, "newsgroups": 1e-5, "covtype": 5e-5, "a9a": 1e-4}
    for setting in every[::4]:
        for method in setting.methods:
            changes = [
                *plan.setting_changes(setting, method),
                *assigned(tuned.get(label(tuned_in(setting, method), method), {})),
            ]
            job = Job.read(JOBS / f"{job_of(setting.data, method)}.toml", changes)
            assert (job.seed, job.rounds, job.aggregation.security, job.simulated_network.name) == (
                1,
                300,
                "plain",
                "lte",
            )
            assert job.participation.clients_per_round == setting.present
            assert job.model.items() >= {"name": "hinge", "bias": False, "l2": lambdas[setting.data] / 2}.items()
            assert job.simulated_network.encryption == (
                "none" if method in ("fedavg", "fedavg-blocks", "hyfem") else "published"
            )
            if job.simulated_network.encryption == "published":
                assert job.simulated_network.ciphertext_values == 8192
            assert job.data.path.endswith(f"hyfdca-{setting.data}-{setting.grid}")


@pytest.mark.parametrize("kind", ["--dense", "--sparse"])
def test_rows_are_put_together_from_cells(tmp_path: Path, kind: str) -> None:
    from click.testing import CliRunner

    from jobs.hyfdca.results import best_of, whole
    from mpifed.cli import main

    rng = np.random.default_rng(3)
    X, y = rng.integers(1, 9, (30, 7)) * (rng.random((30, 7)) < 0.5), rng.integers(0, 2, 30)
    X[:, 0] = np.arange(1, 31)  # rows are known by it
    lines = (f"{t} " + " ".join(f"{j}:{x}" for j, x in enumerate(row, 1) if x) for t, row in zip(y, X, strict=True))
    (tmp_path / "rows.svm").write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = tmp_path / "data"
    arguments = ["svmlight", tmp_path / "rows.svm", "--split", "grid", "--grid", "3x2", kind, "--out", out]
    done = CliRunner().invoke(main, ["data", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    found, classes = whole(out)
    dense = found.toarray() if kind == "--sparse" else found
    order = dense[:, 0].astype(int) - 1
    assert sorted(order) == list(range(30))
    assert (dense == X[order]).all() and (classes == y[order]).all()
    best = best_of(out, 0.01, tmp_path / "optimum.json")
    assert 0 < best < 1
    assert best == best_of(tmp_path / "nothing", 0.01, tmp_path / "optimum.json")  # as it was kept


@pytest.mark.long
def test_a_small_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, sweeps, runs, curves and figures; and what has run is not run again."""
    from jobs.hyfdca import data, figures
    from jobs.hyfdca.names import Setting, label
    from jobs.hyfdca.reproduce import Plan, finish, play, search

    monkeypatch.setattr(data, "FOLDER", tmp_path / "data")
    monkeypatch.setattr(figures, "AXES", ("simulated",))  # all of them take seconds to draw
    setting = Setting("digits", "2x2", 1.0)
    data.prepare(setting.data, setting.grid)
    searched = {"fedavg": {"algorithm.local_steps": [2, 5]}}
    plan = Plan(tmp_path / "out", 6, 1, settings=(setting,), tuned=tmp_path / "tuned.json", searched=searched)
    found = search(replace(plan, only=("digits-2x2-1-fedavg$",)))
    assert list(found) == ["digits-2x2-0.5-fedavg"]  # for all fractions
    assert read_json(plan.tuned) == found
    names = [label(setting, method) for method in ("hyfdca", "fedavg")]
    plan = replace(plan, only=tuple(f"{name}$" for name in names))
    curves, costs, *pictures = finish(plan)
    table = curves.read_text(encoding="utf-8")
    lines = costs.read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [
        [one, kind] for one in names for kind in ("here", "published")
    ]
    assert [one for one in names if f"\n{one},0,6," not in table] == []
    tuned = Job.read(points_of(plan.out / names[1])[0] / "job.toml").algorithm
    assert tuned["local_steps"] == found["digits-2x2-0.5-fedavg"]["algorithm.local_steps"]
    assert sorted({path.stem.partition("-")[0] for path in pictures}) == ["fig3", "fig4"]
    before = {path: path.stat().st_mtime_ns for path in plan.out.rglob("history.csv")}
    assert len(before) == 2 + 2
    assert play(plan)[1] == []
    assert before == {path: path.stat().st_mtime_ns for path in plan.out.rglob("history.csv")}
