"""`make reproduce-mcmahan`: rounds to a target, verdicts, and a job for every row of the tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpifed.job.job import read_table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """`jobs` is imported from there."""
    monkeypatch.syspath_prepend(ROOT)


@pytest.mark.parametrize(
    ("accuracies", "reached"),
    [
        ((0.1, 0.9, 0.98), 7.5),  # halfway between 5 and 10
        ((0.1, 0.94, 0.97), 5.0),
        ((0.94, 0.5, 0.9), 0.0),
        ((0.1, 0.9, 0.5), None),
        ((0.1, 0.93, 0.92), None),
    ],
)
def test_rounds_to_a_target(accuracies: tuple[float, ...], reached: float | None) -> None:
    from jobs.mcmahan.results import rounds_to

    assert rounds_to(np.array([0, 5, 10]), np.array(accuracies), 0.94) == (
        None if reached is None else pytest.approx(reached)
    )


def test_a_fall_does_not_count() -> None:
    """The best so far stays at 0.9 in round 10, from which the last piece rises."""
    from jobs.mcmahan.results import rounds_to

    assert rounds_to(np.array([5, 10, 20]), np.array([0.9, 0.2, 1.0]), 0.95) == pytest.approx(15)


def curve(name: str, reached: float | None, played: int = 1000):
    """One seed, that comes to its target at a round."""
    from jobs.mcmahan.names import ROWS
    from jobs.mcmahan.results import Curve, Run

    row = next(row for row in ROWS if row.name == name)
    rounds = np.array([1, played] if reached is None else [1, reached, played])
    accuracy = np.array([0.5, 0.9] if reached is None else [0.5, row.target, 1.0])
    return Curve(row, 0.1, [Run(rounds, accuracy, 0.5, 2**30)])


@pytest.mark.parametrize(
    ("reached", "played", "verdict"),
    [(100, 1000, "yes"), (75, 1000, "yes"), (40, 1000, "in fewer"), (130, 1000, "in part"), (200, 1000, "no"),
     (None, 1000, "no"), (None, 100, "open")],
)  # fmt: skip
def test_verdicts(reached: float | None, played: int, verdict: str) -> None:
    from jobs.mcmahan.report import claim

    assert claim(curve("2nn-e1-b10-iid", reached, played)).verdict == verdict


def test_the_order_of_rows() -> None:
    from jobs.mcmahan.report import text

    names = ("2nn-e1-b10-iid", "2nn-e1-b10-shards", "2nn-e1-binf-iid", "2nn-e1-binf-shards")
    found = [curve(name, rounds) for name, rounds in zip(names, (80, 400, 60, None), strict=True)]
    table = text({one.row.name: one for one in found}, [])
    assert "| 2NN, E = 1, B = 10: two shards need more rounds than IID: 7.6 times | 5.0 times | **yes** |" in table
    assert "B = all needs more rounds than B = 10: 16.9 times | 0.8 times | **no** |" in table
    assert "more than 16.7 times" in table  # two shards, all of a client: not reached
    assert "| cnn-" not in table and "Not run: 18 of 22 rows" in table


def test_every_row_has_its_job() -> None:
    from jobs.mcmahan.names import JOBS, ROWS, SPLITS

    assert {path.stem for path in JOBS.glob("*.toml")} == {row.name for row in ROWS} and len(ROWS) == 22
    for row in ROWS:
        job, header = row.job, (JOBS / f"{row.name}.toml").read_text(encoding="utf-8").partition("\nname")[0]
        algorithm, (_, partition, folder) = job["algorithm"], SPLITS[row.split]
        assert (algorithm["local_epochs"], algorithm["batch_size"]) == (row.epochs, row.batch or 600)
        assert Path(job["data"]["path"]) == folder and job["model"]["build"] == (
            f"mpifed.models:{'mlp' if row.model == '2nn' else 'cnn'}"
        )
        assert job["participation"]["clients_per_round"] == 10 and job["rounds"] >= row.says
        assert f"{row.where}: " in header and f"after {row.says} rounds" in header and f"--out {folder}" in header
        assert ("--partition shards:2" in header) == (partition == "shards:2")


def test_an_interrupted_run_is_read_as_far_as_it_came(tmp_path: Path) -> None:
    from jobs.mcmahan.results import read_run

    assert read_run(tmp_path) is None
    lines = [
        "round,elapsed_s,train_loss,test_accuracy,up_bytes,down_bytes,epsilon",
        "0,0.0,2.3,0.1,0,0,",
        "5,10.0,1.0,0.6,9,9,",
    ]
    (tmp_path / "history.csv").write_text("\n".join(lines[:2]) + "\n")
    assert read_run(tmp_path) is None
    (tmp_path / "history.csv").write_text("\n".join(lines) + "\n")
    run = read_run(tmp_path)
    assert run is not None and (run.rounds.tolist(), run.seconds, run.memory) == ([0, 5], 2.0, 0)


def test_the_jobs_of_a_table_differ_in_little() -> None:
    """Nobody changed one of them alone."""
    from jobs.mcmahan.names import JOBS, ROWS

    for row in ROWS:
        job = read_table(JOBS / f"{row.name}.toml", ())
        assert job["name"] == f"mcmahan-{row.name}" and job["seed"] == 1
        assert set(job) == {
            "name",
            "seed",
            "rounds",
            "data",
            "model",
            "algorithm",
            "client_optimizer",
            "participation",
            "record",
        }
