"""A class derived from a method of mpifed: what it changes is what is run, and nothing is claimed of it in its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import checked
from registry import table
from whole_runs import run

from mpifed.core.errors import UsageError
from mpifed.files.run_folder import summary
from mpifed.testing import Solo

FEDAVG = {"batch_size": 5, "client_optimizer": {"learning_rate": 0.1}}
SSCA = {"batch_size": 5, "rho": [0.9, 0.3], "gamma": [0.9, 0.35]}
SOFTMAX = {"name": "softmax", "bias": False, "l2": 0.0}
PRIVATE = {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 0.7}


def trained(folder: Path, out: Path, name: str, settings: dict[str, Any], /, **tables: Any) -> dict[str, Any]:
    """run.json of a short job."""
    job = table(folder, {"name": name, **settings}, **{"rounds": 2, "model": SOFTMAX, **tables})
    run(checked(job), Solo(), out)
    return summary(out)


def refused(*given: Any, **tables: Any) -> str:
    with pytest.raises(UsageError) as error:
        trained(*given, **tables)
    return str(error.value)


@pytest.mark.parametrize("kind", ["FedAvg", "SSCA"])
def test_its_answer_is_what_is_summed(digits: Path, tmp_path: Path, kind: str) -> None:
    """However sums are computed: to rounding, and in exact sums to the bit."""
    settings, norms, hashes = (FEDAVG if kind == "FedAvg" else SSCA), {}, {}
    for numbers in ("exact", "exact-blocks"):
        for name in (kind.lower(), f"own_methods:Doubled{kind}"):
            sums = {"arithmetic": numbers}
            found = trained(digits, tmp_path / f"{numbers}-{name[-8:]}", name, settings, aggregation=sums, rounds=3)
            norms[numbers, name == kind.lower()] = found["objective"]
            hashes[numbers, name == kind.lower()] = found["model_sha256"]
    assert hashes["exact", False] == hashes["exact-blocks", False]  # without sums over blocks there is none to round
    for numbers in ("exact", "exact-blocks"):
        assert abs(norms[numbers, True] - norms[numbers, False]) > 0.01


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("OneStep", {"client_optimizer": {"learning_rate": 0.1, "momentum": 0.9}}, "[client_optimizer] momentum"),
        ("Copied", {"client_optimizer": {"learning_rate": 0.1, "momentum": 0.9}}, "[client_optimizer] momentum"),
        (
            "OneStep",
            {"client_optimizer": {"learning_rate": 0.1, "weight_decay": 0.2}},
            "[client_optimizer] weight_decay",
        ),
        ("Decaying", {"client_optimizer": {"learning_rate": 0.1, "weight_decay": 0.2}}, None),
        ("OneStep", {"server_optimizer": {"learning_rate": 0.5, "momentum": 0.9, "nesterov": True}}, None),
        ("MeanAlone", {"server_optimizer": {"learning_rate": 0.5}}, "[server_optimizer] learning_rate"),
        ("MeanAlone", {"client_optimizer": {"learning_rate": 0.1, "momentum": 0.9}, "local_steps": 2}, None),
        ("DoubledFedAvg", {"client_optimizer": {"learning_rate": 0.1, "momentum": 0.9}, "local_steps": 2}, None),
    ],
    ids=str,
)
def test_settings_that_it_does_not_read(
    digits: Path, tmp_path: Path, name: str, settings: dict[str, Any], said: str | None
) -> None:
    given = (digits, tmp_path / "run", f"own_methods:{name}", FEDAVG | settings)
    if said is None:
        assert trained(*given)["rounds"] == 2
    else:
        assert refused(*given).startswith(f'{said}: "own_methods:{name}" has not read that; leave it out')


@pytest.mark.parametrize("name", ["OneStep", "MeanAlone", "DoubledFedAvg"])
def test_no_epsilon_of_what_it_has_changed(digits: Path, tmp_path: Path, name: str) -> None:
    """Not even of a change that would do no harm: its author says so, by `released`."""
    text = refused(digits, tmp_path / "run", f"own_methods:{name}", FEDAVG, privacy=PRIVATE)
    assert "does not say what it releases" in text
    assert "a class of your own has `released` beside its `answer` and `absorb`" in text
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize("name", ["OneStep", "MeanAlone"])
def test_no_regularizer_that_it_may_not_apply(digits: Path, tmp_path: Path, name: str) -> None:
    given = (digits, tmp_path / "run", f"own_methods:{name}", FEDAVG)
    assert "no prox step" in refused(*given, regularizer={"name": "l1", "weight": 0.1})
    assert "nonconvex_penalty" in refused(*given, model=SOFTMAX | {"nonconvex_penalty": 0.1})


def test_what_its_author_vouches_for(digits: Path, tmp_path: Path) -> None:
    private = trained(digits, tmp_path / "a", "own_methods:Vouched", FEDAVG, privacy=PRIVATE)
    assert private["epsilon"] > 0
    assert trained(digits, tmp_path / "b", "own_methods:Vouched", FEDAVG, regularizer={"name": "l1", "weight": 0.1})
