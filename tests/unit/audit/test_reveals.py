"""Attacks find what algorithms say that answers reveal, whatever exchanges are called; and try where none says it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from lengths import long_unless
from methods import METHODS, named

import mpifed as mf
from mpifed.audit.command import Audit, as_json, audited
from mpifed.cli import main

SOFTMAX = {"name": "softmax", "bias": True, "l2": 1e-3}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, make_data: Callable[..., Path]) -> Path:
    """5 clients with one row each, of two classes."""
    out = tmp_path_factory.mktemp("alone") / "data"
    asked = ("--samples", "5", "--features", "6", "--task", "classification", "--classes", "2", "--clients", "5")
    return make_data(out, "synthetic", *asked, "--split", "rows")


@pytest.fixture
def audit(write_job: Callable[..., Path], tmp_path: Path) -> Callable[..., Audit]:
    """audit(folder, rounds, objective, algorithm, **tables): of a job in the plain channel, in this process."""

    def audit(folder: Path, rounds: int, objective: Any, algorithm: dict[str, Any], **changes: Any) -> Audit:
        table = {
            "name": "reveals", "rounds": 60, "data": {"path": str(folder)}, "model": objective,
            "algorithm": algorithm, "record": {"evaluate_every": 0}, "aggregation": {"security": "plain"},
        }  # fmt: skip
        return audited(write_job(tmp_path / "job.toml", table | changes), (), rounds)

    return audit


def attack(found: Audit, name: str, seen: str = "each client's") -> Any:
    return next(one for one in found.attacks if one.attack == name and seen in one.seen and one.applies)


@pytest.mark.parametrize(
    "name", long_unless(lambda name: name == "ssca-vertical", [name for name in METHODS if METHODS[name].reveals])
)
def test_each_method_is_attacked(name: str, audit: Callable[..., Audit], request: pytest.FixtureRequest) -> None:
    successful, folder, rounds, objective, settings, more = METHODS[name].reveals
    found = audit(request.getfixturevalue(folder), rounds, objective, {"name": named(name), **settings}, **more)
    assert {one.attack for one in found.attacks if one.success and one.attack != "membership"} == successful
    assert as_json(found)["exit"] == 71 and "undeclared" not in found.leaks


@pytest.mark.parametrize(("name", "settings", "model"), [
    ("fedavg", {}, SOFTMAX), ("fedprox", {"mu": 0.4}, SOFTMAX), ("hybrid-fedavg", {}, SOFTMAX | {"bias": False}),
    ("scaffold", {}, SOFTMAX), ("fedpdm", {"rho": 2.0}, SOFTMAX),
])  # fmt: skip
def test_an_upload_is_divided_by_the_steps_of_its_client(
    name: str, settings: dict[str, Any], model: dict[str, Any], audit: Callable[..., Audit], tmp_path: Path
) -> None:
    """Who has one row takes one step, beside one with eight: its row is recovered with its length, not an eighth."""
    X, data = np.random.default_rng(5).standard_normal((10, 6)).astype("f4"), tmp_path / "data"
    mf.FederatedDataset.from_arrays(X, np.arange(10) % 3, clients=[0, 1, *[2] * 8], out=data)
    own = {"name": name, "batch_size": 1, "local_epochs": 1, "client_optimizer": {"learning_rate": 0.1}} | settings
    one = attack(audit(data, 1, model, own), "reconstruction")
    assert one.recovered == 2


def test_coordinates_that_were_not_sent(digits: Path, audit: Callable[..., Audit]) -> None:
    """TAMUNA's clients send five of eight each, of which nobody says what they reveal."""
    own = {"name": "tamuna", "p": 1.0, "senders": 5, "batch_size": 1, "client_optimizer": {"learning_rate": 0.5}}
    assert audit(digits, 1, SOFTMAX, own).leaks[0] == "undeclared"


# --- algorithms of a user --------------------------------------------------------------------------------------------


def test_raw_gradients_of_one_row(digits: Path, audit: Callable[..., Audit]) -> None:
    found = audit(digits, 2, SOFTMAX, {"name": "own_reveals:Said"})
    one = attack(found, "reconstruction")
    assert one.recovered == one.of == 16
    assert as_json(found)["exit"] == 71
    assert found.leaks[:2] == ["answers", "reconstruction"]


@pytest.mark.parametrize(("kind", "channel"), [("Raw", "plain"), ("Raw", "masked"), ("Cubed", "plain")])
def test_who_declares_nothing_is_named(kind: str, channel: str, digits: Path, audit: Callable[..., Audit]) -> None:
    """Also whose upload is no known multiple of a change; and what is not declared is not attacked."""
    own = {"client_optimizer": {"learning_rate": 0.5}} if kind == "Cubed" else {}
    own |= {"name": f"own_reveals:{kind}", "batch_size": 20}
    found = audit(digits, 1, SOFTMAX, own, aggregation={"security": channel})
    exchanges = '"changes"' if kind == "Cubed" else '"what-i-saw"'
    assert found.leaks[0] == "undeclared"
    assert found.findings[0].text.startswith(f"{kind} declares nothing in {exchanges}: give it `reveals`")


def test_the_example_of_the_tutorial_says_it(
    digits: Path, audit: Callable[..., Audit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is typed off."""
    tutorial = Path(__file__).resolve().parents[3] / "docs/tutorials/write-an-algorithm.md"
    sources = re.findall(r"```python[^\n]*\n(.*?)```", tutorial.read_text("utf-8"), re.DOTALL)
    (source,) = [one for one in sources if "class ServerMomentum" in one]
    (tmp_path / "own_from_tutorial.py").write_text(source, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    own = {"name": "own_from_tutorial:ServerMomentum", "batch_size": 1, "learning_rate": 0.1}
    found = audit(digits, 2, SOFTMAX, own)
    assert attack(found, "reconstruction").recovered == 16
    assert "undeclared" not in {one.name for one in found.findings}


# --- what is said wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("Raises", "AttributeError: 'Parameters' object has no attribute 'modell'; correct the method"),
        ("WrongShape", "MeanGradient of shapes [(10, 64)"),
        ("NoKind", "Parameters is no kind of"),
    ],
)
def test_a_wrong_method(kind: str, text: str, digits: Path, write_job: Callable[..., Path], tmp_path: Path) -> None:
    table = {
        "name": "wrong", "rounds": 1, "data": {"path": str(digits)}, "model": {"name": "softmax", "bias": False},
        "algorithm": {"name": f"own_reveals:{kind}"}, "record": {"evaluate_every": 0},
    }  # fmt: skip
    job = write_job(tmp_path / "job.toml", table)
    ended = CliRunner().invoke(main, ["audit", str(job), "--rounds", "1"])
    assert ended.exit_code == 2, ended.output
    assert f"{kind}.reveals of client " in ended.stderr and 'in "what-i-saw": ' in ended.stderr
    assert text in ended.stderr and "Traceback" not in ended.output
