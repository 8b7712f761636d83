"""The same model, bit for bit, on any number of ranks: every algorithm, and many ways to run it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from registry import HYPER, table

RANKS = [1, 2, 3, 4, 7]
ROUNDS = 4


@pytest.fixture(scope="module")
def sweep(digits: Path, skewed: Path, launch: Callable[..., Any], write_job: Any, tmp_path_factory: Any) -> Any:
    """rows(ranks): what `sweep.csv` says about the points of one sweep over everything, run by so many ranks."""
    folder = tmp_path_factory.mktemp("bits")
    record = {"every": ROUNDS, "checkpoint_every": 0}
    # all of the 8 clients of one folder, and 8 of the 11 of the other
    job = table(digits, {}, rounds=ROUNDS, record=record, participation={"clients_per_round": 8})
    job["sweep"] = {
        "algorithm": [{"name": name, **hyper} for name, many in HYPER.items() for hyper in many],
        "server": [{"dedicated": False}, {"dedicated": True}],
        "data": [{"path": str(digits), "block": 1}, {"path": str(skewed), "block": 3}],
    }
    path = write_job(folder / "job.toml", job)

    def rows(ranks: int) -> list[dict[str, str]]:
        out = folder / f"on-{ranks}"
        if not out.exists():
            ended = launch(ranks, "run", path, "--out", out)
            assert ended.code == 0, ended.text
        with open(out / "sweep.csv", newline="") as file:
            return list(csv.DictReader(file))

    return rows


def promised(row: dict[str, str]) -> dict[str, str]:
    """What must not depend on ranks, of one run."""
    names = ("model_sha256", "rounds", "exit", "train_loss", "objective", "test_accuracy", "up_bytes", "down_bytes")
    return {name: row[name] for name in names}


@pytest.mark.launch
@pytest.mark.parametrize("ranks", RANKS)
def test_same_bits_on_any_number_of_ranks(sweep: Any, ranks: int) -> None:
    alone = sweep(0)
    assert len(alone) == 4 * sum(map(len, HYPER.values()))
    assert all(len(row["model_sha256"]) == 64 and row["exit"] == "0" for row in alone)
    assert [promised(row) for row in sweep(ranks)] == [promised(row) for row in alone]


@pytest.mark.launch
def test_settings_that_matter_change_the_bits_and_others_do_not(sweep: Any) -> None:
    found: dict[tuple[str, ...], set[str]] = {}
    for row in sweep(0):
        key = row["algorithm"], row["data"]
        found.setdefault(key, set()).add(row["model_sha256"])
    assert all(len(hashes) == 1 for hashes in found.values())  # a dedicated server changes nothing
    assert len(set.union(*found.values())) == len(found)
