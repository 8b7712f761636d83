"""`make reproduce-mcmahan`: rounds to a target, and a job for every row of the tables."""

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
    return Curve(row, [Run(rounds, accuracy)])


def test_the_file_of_the_rounds(tmp_path: Path) -> None:
    from jobs.mcmahan.reproduce import write_rounds

    found = {name: curve(name, reached) for name, reached in (("2nn-e1-b10-iid", 40), ("cnn-e5-b10-iid", None))}
    write_rounds(tmp_path / "rounds.csv", found)
    assert (tmp_path / "rounds.csv").read_text(encoding="utf-8").splitlines() == [
        "job,target,paper,seed,rounds", "2nn-e1-b10-iid,0.97,87,0,40.0", "cnn-e5-b10-iid,0.99,20,0,",
    ]  # fmt: skip


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
    assert run is not None and (run.rounds.tolist(), run.accuracy.tolist()) == ([0, 5], [0.1, 0.6])


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
