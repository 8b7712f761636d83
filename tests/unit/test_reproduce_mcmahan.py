"""`make reproduce-mcmahan`: rounds to a target, and a job for every row of the tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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
