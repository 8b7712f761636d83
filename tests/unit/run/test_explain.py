"""`mpifed explain`: a meaning for every key, and an answer to every name."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mpifed.cli import main
from mpifed.core.errors import UsageError
from mpifed.run.explain import entries
from mpifed.run.explained import explained


def test_every_key_has_a_meaning() -> None:
    """Of every table, algorithm, model, term, regularizer, schedule: a sentence that is more than its name."""
    keys = [(entry.name, key) for entry in entries() for key in entry.keys]
    assert len(keys) > 150
    assert not [(name, key.name) for name, key in keys if not key.meaning.endswith(".") or len(key.meaning) < 8]
    assert not [entry.name for entry in entries() if len(entry.text) < 10]


def test_a_key_of_many_models_is_told_once() -> None:
    text = explained("bias")
    assert text.count("Intercepts") == 1
    assert text.startswith("[model: mlp], [model: softmax], ")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("loss", ["loss (term)", "[model: mlp]"]),  # a term, and a key of a model whose field is called otherwise
        ("fedavg.batch_size", ["Rows in a minibatch"]),
        ("aggregation.security", ["pairwise masks"]),
        ("train_loss", ["train_loss (column)"]),
        ("75", ["75 (exit code)"]),
        ("constraint_2", ["constraint_ (column)"]),
        ("model", ["[job]", "  softmax: ", "  mlp: Three-layer network"]),
        ("algorithm.name", ["  fedavg: Every round", "  ssca: "]),
        ("minimize", ["  norm: "]),
        ("constraint", ["constraint (table)", "  error-rate: "]),
        ("regularizer", ["  l1: "]),
        ("model.l2", ["[model: mlp]", "l2: a number"]),
        ("algorithm.rho", ["[algorithm: ssca]"]),
        ("constraint.1.limit", ["[constraint]", "Upper bound of the term"]),
        ("client_optimizer.learning_rate", ["[client_optimizer]"]),
        ("sweep", ["sweep (table)", "seeds: an integer > 0"]),
        ("seeds", ["[sweep]", "How many seeds"]),
        ("history", ["  train_loss: ", "  kkt_residual: "]),
        ("exit codes", ["  5: a limit is not met", "  75: "]),
        ("kkt_residual", ["`stationarity`, `feasibility` and `complementarity`; see certificates"]),
        ("local_steps", ["With neither it is one step"]),
    ],
)
def test_an_answer(name: str, words: list[str]) -> None:
    assert not [word for word in words if word not in explained(name)]


def test_a_number_is_no_column() -> None:
    assert explained("5").startswith("5 (exit code)")


def test_no_link_is_printed_as_markdown() -> None:
    assert not [entry.name for entry in entries() if "](" in explained(entry.name)]
    assert "simulated_network" in explained("simulated_s")


def test_commands_and_findings_of_audits() -> None:
    for name, said in (("submit", "submit (command)"), ("answers", "reads what single clients answer"),
                       ("inner-products", "inner products"), ("commands", "  compare: ")):  # fmt: skip
        ended = CliRunner().invoke(main, ["explain", name])
        assert ended.exit_code == 0 and said in ended.output, ended.output


def test_what_nothing_is_called() -> None:
    with pytest.raises(UsageError, match=r"learning_rat: nothing has that name.*learning_rate"):
        explained("learning_rat")
