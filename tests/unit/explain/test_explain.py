"""`mpifed explain`: a meaning for every key, and an answer to every name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
from annotated_types import Gt
from click.testing import CliRunner

from mpifed import FedAvg
from mpifed.algorithms import ALGORITHMS
from mpifed.cli import main
from mpifed.core.errors import UsageError
from mpifed.explain.reference import entries, explained
from mpifed.maths.terms import Loss


def test_every_key_has_a_meaning() -> None:
    """Of every table, algorithm, model, term, regularizer, schedule: a sentence that is more than its name."""
    keys = [(entry.name, key) for entry in entries() for key in entry.keys]
    assert len(keys) > 150
    assert not [(name, key.name) for name, key in keys if not key.meaning.endswith(".") or len(key.meaning) < 8]
    assert not [entry.name for entry in entries() if len(entry.text) < 10]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedavg.batch_size", ["Rows in a minibatch"]),
        ("aggregation.security", ["pairwise masks"]),
        ("model", ["[job]", "  softmax: ", "  mlp: Multilayer perceptron"]),
        ("constraint", ["constraint (table)", "  error-rate: "]),
        ("schedule", ["  power: ", "  cosine: "]),
        ("client_optimizer", ["[job]", "  sgd: ", "  adamw: "]),
        ("client_optimizer.learning_rate", ["[client_optimizer: sgd]", "a schedule"]),
        ("PowerDecay", ["power (schedule)", "initial: a number > 0"]),
        ("constraint.1.limit", ["[constraint]", "Upper bound of the term"]),
        ("sweep", ["sweep (table)", "seeds: an integer > 0"]),
        ("history", ["  train_loss: ", "  kkt_residual: "]),
        ("exit codes", ["  69: a limit is not met", "  75: "]),
        ("kkt_residual", ["`stationarity`, `feasibility` and `complementarity`; see certificates"]),
    ],
)
def test_an_answer(name: str, words: list[str]) -> None:
    assert not [word for word in words if word not in explained(name)]


def test_without_a_name_it_lists_all() -> None:
    told = CliRunner().invoke(main, ["explain"]).output
    names = {name for line in told.splitlines() for name in line.partition(": ")[2].split(", ")}
    assert names >= {*ALGORITHMS, "softmax", "stop", "test_loss", "75", "run"}


def test_what_nothing_is_called() -> None:
    with pytest.raises(UsageError, match=r"learning_rat: nothing has that name.*learning_rate"):
        explained("learning_rat")


@dataclass(frozen=True)
class Told(FedAvg):
    """FedAvg that says more."""

    warmth: Annotated[float, Gt(0)] = 0.5
    """How warm it is."""


@dataclass(frozen=True)
class Untold(Loss):
    power: float = 2.0


def test_a_class_of_ones_own() -> None:
    text = explained(f"{__name__}:Told")
    assert text.startswith(f"{__name__}:Told (algorithm)\n\nFedAvg that says more.\n")
    assert "  batch_size: an integer > 0" in text  # inherited
    assert "  warmth: a number > 0, by default 0.5. How warm it is." in text
    text = explained(f"{__name__}:Untold")
    assert text.startswith(f"{__name__}:Untold (term)\n\n") and "  power: a number" in text
    with pytest.raises(UsageError, match=r"has no Tolt; did you mean \"Told\"\?"):
        explained(f"{__name__}:Tolt")
    with pytest.raises(UsageError, match="must be a dataclass"):
        explained("mpifed.core.errors:UsageError")
