"""What it takes to reach a target: the first measured round, and those that never reach it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from test_show import mpifed
from written_runs import KIB, write_made_sweep

from mpifed.core.errors import UsageError
from mpifed.results.comparison import as_json, compared
from mpifed.results.targets import targets_of

SIZES = {"algorithm.batch_size": [4, 8]}


def history(**of_rounds: float) -> list[dict[str, float | None]]:
    """Accuracies by round, as r10=0.5; the loss is what lacks to 1."""
    return [
        {"round": int(name[1:]), "test_accuracy": value, "train_loss": 1 - value} for name, value in of_rounds.items()
    ]


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Of batch 4 two seeds reach 0.9, at rounds 20 and 40; of 8 none does, one fails and one is interrupted."""
    return write_made_sweep(
        tmp_path / "sweep",
        {**SIZES, "seeds": 3},
        [
            history(r0=0.1, r10=0.85, r20=0.9, r30=0.7, r40=0.95),  # and falls below it again
            history(r0=0.1, r20=0.8, r40=0.92),
            history(r0=0.1, r10=math.nan, r20=0.8999999),
            history(r0=0.1, r100=0.5),
            68,
            75,
        ],
    )


def test_rounds_bytes_and_seconds_to_a_target(steps: Path) -> None:
    (target,) = as_json(compared(steps, to=["test_accuracy>=0.9"]))["targets"]
    assert target["target"] == "test_accuracy >= 90%"
    first, second = target["reached"]
    deviation = math.sqrt(200)  # of 20 and 40
    assert first == {
        "name": "point-0000 to point-0002", "runs": 2, "of": 3, "measured_every": 20,
        "round": {"mean": 30, "std": pytest.approx(deviation), "n": 2},
        "bytes": {"mean": 2 * KIB * 30, "std": pytest.approx(2 * KIB * deviation), "n": 2},
        "elapsed_s": {"mean": 30, "std": pytest.approx(deviation), "n": 2},
    }  # fmt: skip
    assert second == {"name": "point-0003 to point-0005", "runs": 0, "of": 2, "measured_every": None}


def test_a_loss_comes_down_to_its_target(steps: Path) -> None:
    ((_, reached),) = compared(steps, to=["train_loss<=0.2"]).targets
    assert [(one.runs, one.costs["round"].mean) for one in reached[:1]] == [(3, (10 + 20 + 20) / 3)]
    ((_, at_once),) = compared(steps, to=["train_loss <= 5"]).targets
    assert at_once[0].costs["round"].mean == 0 and at_once[0].gaps == [0, 0, 0]


@pytest.mark.parametrize(
    "text", ["test_accuracy", "test_accuracy>0.9", "test_accuracy=0.9", ">=0.9", "train_loss<=", "train_loss<=nan",
             "train_loss<=one", "a b<=1", ""],
)  # fmt: skip
def test_targets_that_are_none(text: str, steps: Path) -> None:
    with pytest.raises(UsageError, match=r"expected COLUMN>=NUMBER or COLUMN<=NUMBER, in quotes"):
        targets_of([text])
    assert mpifed("compare", steps, "--to", text).exit_code == 2


def test_a_column_that_nobody_measured(steps: Path) -> None:
    ended = mpifed("compare", steps, "--to", "accuracy>=0.9", "--json")
    assert ended.exit_code == 2
    assert (
        'no history has a column accuracy; did you mean "test_accuracy"?; there are round, elapsed_s, ' in ended.output
    )
    assert (
        json.loads(mpifed("compare", steps, "--to", "bytes<=1", "--json").output)["targets"][0]["reached"][0]["runs"]
        == 3
    )


@pytest.mark.parametrize("text", ["test_accuracy>=90", "test_accuracy<=-0.1", "test_accuracy>=900%"])
def test_an_accuracy_is_a_share(text: str) -> None:
    with pytest.raises(UsageError, match="between 0 and 1; give a share or a percentage"):
        targets_of([text])
