"""What `mpifed audit` finds in each channel, by method and by declaration; what it accepts; and what it writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from jobs_in_python import checked
from lengths import long_unless
from methods import METHODS, named
from whole_runs import run
from written_files import read_json

import mpifed as mf
from mpifed.audit.command import Audit, as_json, as_text, audited
from mpifed.audit.findings import NAMES
from mpifed.cli import main
from mpifed.privacy.disclosure import NOTE
from mpifed.testing import Solo

SSCA = {"name": "ssca", "batch_size": 1, "rho": [0.9, 0.3], "gamma": [0.9, 0.35]}
SOFTMAX = {"name": "softmax", "bias": True, "l2": 1e-3}
HINGE = {"name": "hinge", "bias": False, "l2": 5e-3}
ONE_DUAL = {"name": "hyfdca", "rule": "paper", "inner": 1, "primal": "clear"}
EACH = "each client's"


def network(hidden: int) -> dict[str, Any]:
    return {"name": "mlp", "bias": False, "hidden": hidden}


def fedavg(rows: int = 1, rate: Any = 0.5) -> dict[str, Any]:
    return {"name": "fedavg", "batch_size": rows, "client_optimizer": {"learning_rate": rate}}


def table(folder: Path, **changes: Any) -> dict[str, Any]:
    base = {
        "name": "audit", "rounds": 4, "data": {"path": str(folder)}, "model": network(6), "algorithm": SSCA,
        "record": {"evaluate_every": 0},
    }  # fmt: skip
    return base | changes


@pytest.fixture
def audit(write_job: Callable[..., Path], tmp_path: Path) -> Callable[..., Audit]:
    """audit(folder, rounds, **tables): of a job, in this process."""

    def audit(folder: Path, played: int = 2, /, **changes: Any) -> Audit:
        return audited(write_job(tmp_path / "job.toml", table(folder, **changes)), (), played)

    return audit


def attack(found: Audit, name: str, seen: str = EACH) -> Any:
    (one,) = [one for one in found.attacks if one.attack == name and seen in one.seen]
    return one


# --- what is found ---------------------------------------------------------------------------------------------------

VERTICAL = {"model": network(16), "algorithm": SSCA | {"batch_size": 2, "label_holder": 2}}
SENT_ALONE = ["gradients", "slopes", "all-losses", "certificate-slopes", "certificate-gradients"]
PRIVATE = {"privacy": {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 1.0, "noise": "test"}}
PLAIN, MASKED, ENCRYPTED = ({"aggregation": {"security": name}} for name in ("plain", "masked", "encrypted"))
OWN = {"name": "own_reveals:ServerMomentum", "batch_size": 20, "learning_rate": 0.1}
CELLS = {"rounds": 60, "model": HINGE, "algorithm": ONE_DUAL}
# data, rounds, tables, findings, and of attacks: rows recovered, and of how many; None: does not apply
FOUND: dict[str, tuple[str, int, dict[str, Any], list[str], dict[tuple[str, str], tuple[int, int] | None]]] = {
    "plain, a row each": (  # 8 clients, the first round and the last
        "digits", 2, {}, ["answers", "reconstruction"], {("reconstruction", EACH): (16, 16)},
    ),
    "the rate has ended": (  # the round before has not
        "digits", 2, {"algorithm": fedavg(1, {"name": "cosine", "initial": 0.5, "rounds": 2})},
        ["answers", "reconstruction"], {},
    ),
    "masked, a row each": (  # six hidden cells cannot tell the sum of eight rows apart
        "digits", 2, MASKED, [], {("reconstruction", EACH): None, ("inversion", "the decoded sum"): (0, 16)},
    ),
    "encrypted, a row each": ("digits", 1, ENCRYPTED, [], {("reconstruction", EACH): None}),
    "masked, three rows": (  # no mask helps where three clients send one row each
        "digits", 1, MASKED | {"model": network(12), "participation": {"clients_per_round": 3}}, ["inversion"],
        {("inversion", "the decoded sum"): (3, 3)},
    ),
    "columns": (  # four clients, one minibatch
        "hundred", 1, VERTICAL, ["answers", "inner-products", "linear-system"],
        {("inner-products", EACH): (8, 8), ("linear-system", EACH): (8, 8)},
    ),
    "columns, masked": ("hundred", 1, VERTICAL | {"aggregation": {"security": "masked", "allow": SENT_ALONE}}, [], {}),
    "noise": ("digits", 2, PRIVATE | {"algorithm": fedavg()}, ["answers"], {}),
    "no noise": ("digits", 2, {"algorithm": fedavg()}, ["answers", "reconstruction"], {}),
    "duals and products": (  # 12 rows of each of four clients, from three weights each: HyFDCA's paper, section 3.2
        "squares", 30, CELLS | PLAIN, ["answers", "inner-products", "linear-system"],
        {("inner-products", EACH): (48, 48)},
    ),
    "duals, masked": (  # X'alpha of each client is in the clear all the same
        "squares", 12, CELLS | MASKED | {"audit": {"accept": ["in-the-clear"]}}, ["in-the-clear"],
        {("inner-products", EACH): None, ("linear-system", EACH): None},
    ),
    "own gradients": (
        "digits", 2, {"model": SOFTMAX, "algorithm": OWN | {"batch_size": 1}}, ["answers", "reconstruction"],
        {("reconstruction", EACH): (16, 16)},
    ),
    "coordinates that were not sent": (  # TAMUNA's clients send five of eight each: nobody says what they reveal
        "digits", 1,
        {"model": SOFTMAX, "algorithm": fedavg() | {"name": "tamuna", "p": 1.0, "senders": 5}},
        ["undeclared", "answers"], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found(name: str, audit: Callable[..., Audit], request: pytest.FixtureRequest) -> None:
    folder, rounds, tables, names, attacks = FOUND[name]
    if "encrypted" in name:
        pytest.importorskip("seal", reason="encryption needs the extra `encrypted`")
    found = audit(request.getfixturevalue(folder), rounds, **tables)
    assert [one.name for one in found.findings] == names
    assert found.leaks == [one for one in names if one not in tables.get("audit", {}).get("accept", [])]
    assert {one.attack for one in found.attacks if one.success} == set(names) & {one.attack for one in found.attacks}
    for (which, seen), expected in attacks.items():
        one = attack(found, which, seen)
        assert one.applies == (expected is not None) and one.success == bool(expected and expected[0])
        assert expected is None or (one.recovered, one.of) == expected
    text = "\n".join(as_text(found))
    if name == "duals and products":
        assert attack(found, "linear-system").recovered >= 24
    if name == "duals, masked":
        assert "the server knows w, and X'alpha, of every client; dual variables and inner products are for" in text
        assert "24 samples have two holders: each of them learns what the other one sent of them" in text


def test_memory_of_the_model(digits: Path, audit: Callable[..., Audit]) -> None:
    """Of rows that entered, and others of the same clients; a row each of eight clients in two rounds is too few."""
    few, some, everything = (
        attack(audit(digits, algorithm=SSCA | {"batch_size": rows}), "membership", "the model after the last round")
        for rows in (1, 20, 179)
    )
    assert not few.applies and "entered" in few.text and "20 are needed of each" in few.text
    assert some.applies and not some.success and not everything.applies
    counts = re.search(r"(\d+) rows that entered against (\d+) of the same clients that did not", some.text)
    assert counts and 8 * 20 <= int(counts[1]) <= 2 * 8 * 20 and int(counts[1]) + int(counts[2]) == 1438


@pytest.mark.parametrize(
    "name", long_unless(lambda name: name == "ssca-vertical", [name for name in METHODS if METHODS[name].reveals])
)
def test_each_method_is_attacked(name: str, audit: Callable[..., Audit], request: pytest.FixtureRequest) -> None:
    successful, folder, rounds, objective, settings, more = METHODS[name].reveals
    tables = {"rounds": 60, "model": objective, "algorithm": {"name": named(name), **settings}} | PLAIN | more
    found = audit(request.getfixturevalue(folder), rounds, **tables)
    assert {one.attack for one in found.attacks if one.success and one.attack != "membership"} == successful
    assert as_json(found)["exit"] == 71 and "undeclared" not in found.leaks


@pytest.mark.parametrize(("name", "settings"), [
    ("fedavg", {}), ("fedprox", {"mu": 0.4}), ("hybrid-fedavg", {}), ("scaffold", {}), ("fedpdm", {"rho": 2.0}),
])  # fmt: skip
def test_an_upload_is_divided_by_the_steps_of_its_client(
    name: str, settings: dict[str, Any], audit: Callable[..., Audit], tmp_path: Path
) -> None:
    """Who has one row takes one step, beside one with eight: its row is recovered with its length, not an eighth."""
    X, data = np.random.default_rng(5).standard_normal((10, 6)).astype("f4"), tmp_path / "data"
    mf.FederatedDataset.from_arrays(X, np.arange(10) % 3, clients=[0, 1, *[2] * 8], out=data)
    own = fedavg(1, 0.1) | {"name": name, "local_epochs": 1} | settings
    found = audit(data, 1, model=SOFTMAX | {"bias": name != "hybrid-fedavg"}, algorithm=own)
    assert attack(found, "reconstruction").recovered == 2


# --- algorithms of a user --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "channel"), [("Raw", "plain"), ("Raw", "masked"), ("Cubed", "plain")])
def test_who_declares_nothing_is_named(kind: str, channel: str, digits: Path, audit: Callable[..., Audit]) -> None:
    """Also whose upload is no known multiple of a change; and what is not declared is not attacked."""
    own = (fedavg(20) if kind == "Cubed" else OWN) | {"name": f"own_reveals:{kind}"}
    found = audit(digits, 1, model=SOFTMAX, algorithm=own, aggregation={"security": channel})
    assert found.leaks[0] == "undeclared"
    exchange = "changes" if kind == "Cubed" else "gradients"
    assert found.findings[0].text.startswith(f'{kind} declares nothing in "{exchange}": give it `reveals`')


# --- the command -----------------------------------------------------------------------------------------------------


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["audit", *map(str, arguments)])


@pytest.mark.parametrize(("says", "said"), [
    ("an attribute that there is not", "AttributeError: 'Weighted' object has no attribute 'values'; correct the"),
    ("another shape", "ValueError: operands could not be broadcast together with shapes (10,64) (64,10)"),
    ("no kind", "ValueError: Parameters is no kind of"),
])  # fmt: skip
def test_a_wrong_declaration(
    says: str, said: str, digits: Path, write_job: Callable[..., Path], tmp_path: Path
) -> None:
    own = {"model": SOFTMAX | {"bias": False}, "algorithm": OWN | {"name": "own_reveals:Said", "says": says}}
    ended = invoke(write_job(tmp_path / "job.toml", table(digits, **own)), "--rounds", "1")
    assert ended.exit_code == 2 and "Traceback" not in ended.output, ended.output
    assert "Said.reveals of client " in ended.stderr and f'in "gradients": {said}' in ended.stderr


@pytest.mark.parametrize(("setting", "code", "said"), [
    (None, 71, 'not declared by [audit] accept: answers, reconstruction'),
    (None, 71, "[audit] accept = ['answers', 'reconstruction']"),
    ('audit.accept=["answers", "reconstruction"]', 0, "accepted  reconstruction"),
    ('audit.accept=["answers"]', 71, "accept: reconstruction"),
    ('audit.accept=["anwsers"]', 2, "anwsers not known; the findings are undeclared, answers, in-the-clear, no-mask"),
    ("aggregation.security=masked", 0, "no leak beyond those that the job declares"),
])  # fmt: skip
def test_exit_codes_and_acceptance_by_name(
    setting: str | None, code: int, said: str, digits: Path, write_job: Callable[..., Path], tmp_path: Path
) -> None:
    job = write_job(tmp_path / "job.toml", table(digits))
    ended = invoke(job, "--rounds", "1", *([] if setting is None else ["--set", setting]))
    assert (ended.exit_code, said in ended.output) == (code, True), ended.output
    assert ("LEAK" in ended.stdout) == (code == 71)


def test_what_is_written(digits: Path, write_job: Callable[..., Path], tmp_path: Path) -> None:
    """Of a job where --out says; the job of a run is played again, and its report lies in its folder."""
    job, out = write_job(tmp_path / "job.toml", table(digits)), tmp_path / "report"
    ended = invoke(job, "--json", "--out", out, "--rounds", "1")
    found = json.loads(ended.stdout)
    assert ended.exit_code == 71 and read_json(out / "report.json") == found
    assert (found["exit"], found["security"], found["recorded"]["rounds"]) == (71, "plain", 1)
    assert {one["name"] for one in found["findings"]} <= set(NAMES)
    assert {"attack", "seen", "success", "recovered", "of"} <= set(found["attacks"][0])
    assert (out / "report.txt").read_text().startswith("job                            audit\n")
    run(checked(table(digits)), Solo(), tmp_path / "run")
    ended = invoke(tmp_path / "run")
    assert ended.exit_code == 71, ended.output
    assert " 4 rounds, " in ended.stdout and "reconstruction" in ended.stdout  # of 12 all that the job has
    assert {"report.json", NOTE} <= {path.name for path in (tmp_path / "run" / "audit").iterdir()}
