"""`mpifed audit` as a whole: what it finds in each channel, what it accepts, and what it writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jobs_in_python import checked
from whole_runs import run
from written_files import read_json

from mpifed.audit.command import Audit, audited
from mpifed.audit.findings import NAMES
from mpifed.cli import main
from mpifed.privacy.disclosure import NOTE
from mpifed.testing import Solo

SSCA = {"name": "ssca", "batch_size": 1, "rho": [0.9, 0.3], "gamma": [0.9, 0.35]}
VERTICAL = SSCA | {"name": "ssca", "batch_size": 5}
MASKED = {"security": "masked"}
ATTACKS = {
    "reconstruction", "inversion", "inner-products", "linear-system",
    "membership",
}  # fmt: skip


def table(folder: Path, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "audit", "rounds": 4, "data": {"path": str(folder)},
        "model": {"name": "mlp", "bias": False, "hidden": 6},
        "algorithm": SSCA, "record": {"evaluate_every": 0},
    }  # fmt: skip
    return base | changes


@pytest.fixture
def audit(write_job: Callable[..., Path], tmp_path: Path) -> Callable[..., Audit]:
    """audit(folder, **tables): of a job, in this process."""

    def audit(folder: Path, rounds: int = 2, **changes: Any) -> Audit:
        return audited(write_job(tmp_path / "job.toml", table(folder, **changes)), (), rounds)

    return audit


def names(found: Audit) -> list[str]:
    return [one.name for one in found.findings]


def attack(found: Audit, name: str, seen: str) -> Any:
    (one,) = [one for one in found.attacks if one.attack == name and seen in one.seen]
    return one


# --- what is found ---------------------------------------------------------------------------------------------------


def test_a_learning_rate_that_has_ended_gives_nothing_away(digits: Path, audit: Callable[..., Audit]) -> None:
    """The round before has, and the audit goes on."""
    cosine = {"name": "cosine", "initial": 0.5, "rounds": 2}
    algorithm = {"name": "fedavg", "batch_size": 1, "client_optimizer": {"learning_rate": cosine}}
    assert attack(audit(digits, algorithm=algorithm), "reconstruction", "each client's upload").success


def test_plain_uploads_of_one_row_give_it_away(digits: Path, audit: Callable[..., Audit]) -> None:
    found = audit(digits)
    assert names(found) == ["answers", "reconstruction"]
    one = attack(found, "reconstruction", "each client's upload")
    assert (one.success, one.recovered, one.of) == (True, 16, 16)  # 8 clients, the first round and the last
    assert found.leaks == names(found)


def test_masked_uploads_of_one_row_do_not(digits: Path, audit: Callable[..., Audit]) -> None:
    """The same job: six hidden cells cannot tell the sum of eight rows apart either."""
    found = audit(digits, aggregation=MASKED)
    assert names(found) == []
    assert {one.attack for one in found.attacks} == ATTACKS
    for one in found.attacks:
        assert not one.success
        assert one.recovered == 0
    assert not attack(found, "reconstruction", "each client's upload").applies
    assert attack(found, "inversion", "the decoded sum").applies


def test_encrypted_uploads_do_not_either(digits: Path, audit: Callable[..., Audit]) -> None:
    pytest.importorskip("seal", reason="encryption needs the extra `encrypted`")
    found = audit(digits, 1, aggregation={"security": "encrypted"})
    assert names(found) == []
    assert not attack(found, "reconstruction", "each client's").applies


def test_a_mask_that_is_none_is_found(
    digits: Path, audit: Callable[..., Audit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel that says it masks and does not: sums and bits are right, and nothing but an audit tells."""
    from mpifed.comm.channels.masked import Masked

    monkeypatch.setattr(Masked, "_mask", lambda *arguments: None)
    found = audit(digits, aggregation=MASKED)
    assert found.security == "masked"
    assert names(found) == ["no-mask"]


def test_a_masked_sum_of_few_rows_is_inverted(digits: Path, audit: Callable[..., Audit]) -> None:
    """No mask helps where three clients send one row each: the sum itself tells them apart."""
    wide = {"model": {"name": "mlp", "bias": False, "hidden": 12}, "participation": {"clients_per_round": 3}}
    found = audit(digits, 1, aggregation=MASKED, **wide)
    assert names(found) == ["inversion"]
    one = attack(found, "inversion", "the decoded sum")
    assert (one.recovered, one.of) == (3, 3)


def test_plain_partial_scores_give_columns_away(hundred: Path, audit: Callable[..., Audit]) -> None:
    wide = {
        "model": {"name": "mlp", "bias": False, "hidden": 16},
        "algorithm": VERTICAL | {"label_holder": 2, "batch_size": 2},
    }
    found = audit(hundred, 1, **wide)
    assert names(found) == ["answers", "inner-products", "linear-system"]
    for name in ("inner-products", "linear-system"):
        one = attack(found, name, "each client's upload")
        assert one.recovered == one.of == 4 * 2  # four clients, one minibatch
    own = ["gradients", "slopes", "all-losses", "certificate-slopes", "certificate-gradients"]
    allowed = {"security": "masked", "allow": own}
    hidden = audit(hundred, 1, aggregation=allowed, **wide)
    assert names(hidden) == []


def test_memory_of_the_model(digits: Path, audit: Callable[..., Audit]) -> None:
    """Of rows that entered, and others of the same clients; a row each of eight clients in two rounds is too few."""
    one = attack(audit(digits), "membership", "the model after the last round")
    assert not one.applies and "entered" in one.text and "20 are needed of each" in one.text
    one = attack(audit(digits, algorithm=SSCA | {"batch_size": 20}), "membership", "the model after the last round")
    assert one.applies and not one.success
    counts = re.search(r"(\d+) rows that entered against (\d+) of the same clients that did not", one.text)
    assert counts and 8 * 20 <= int(counts[1]) <= 2 * 8 * 20 and int(counts[1]) + int(counts[2]) == 1438
    everything = audit(digits, algorithm=SSCA | {"batch_size": 179})
    assert not attack(everything, "membership", "the model after the last round").applies


def test_noise_hides_a_row(digits: Path, audit: Callable[..., Audit]) -> None:
    private = {"privacy": {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 1.0, "noise": "test"}}
    algorithm = {"name": "fedavg", "batch_size": 1, "client_optimizer": {"learning_rate": 0.5}}
    noisy, exact = audit(digits, algorithm=algorithm, **private), audit(digits, algorithm=algorithm)
    assert names(noisy) == ["answers"]
    assert names(exact) == ["answers", "reconstruction"]


# --- the command -----------------------------------------------------------------------------------------------------


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["audit", *map(str, arguments)])


def test_exit_codes_and_acceptance_by_name(digits: Path, write_job: Callable[..., Path], tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.toml", table(digits))
    some = ("--rounds", "1")
    ended = invoke(job, *some)
    assert ended.exit_code == 71
    assert "not declared by [audit] accept: answers, reconstruction" in ended.stderr
    assert '[audit] accept = ["answers", "reconstruction"]' in ended.stdout
    known = 'audit.accept=["answers", "reconstruction"]'
    ended = invoke(job, *some, "--set", known)
    assert ended.exit_code == 0, ended.output
    assert "accepted  reconstruction" in ended.stdout and "LEAK" not in ended.stdout
    ended = invoke(job, *some, "--set", 'audit.accept=["answers"]')
    assert ended.exit_code == 71
    assert ended.stderr.rstrip().endswith("accept: reconstruction")
    ended = invoke(job, *some, "--set", 'audit.accept=["anwsers"]')
    assert ended.exit_code == 2
    assert "anwsers not known; the findings are undeclared, answers, in-the-clear, no-mask" in ended.stderr
    assert invoke(job, *some, "--set", "aggregation.security=masked").exit_code == 0


def test_json_text_and_folder(digits: Path, write_job: Callable[..., Path], tmp_path: Path) -> None:
    job, out = write_job(tmp_path / "job.toml", table(digits)), tmp_path / "report"
    ended = invoke(job, "--json", "--out", out, "--rounds", "1")
    assert ended.exit_code == 71
    found = json.loads(ended.stdout)
    assert read_json(out / "report.json") == found
    assert (found["exit"], found["security"], found["recorded"]["rounds"]) == (71, "plain", 1)
    assert {one["name"] for one in found["findings"]} <= set(NAMES)
    assert {"attack", "seen", "success", "recovered", "of"} <= set(found["attacks"][0])
    assert (out / "report.txt").read_text().startswith("job                            audit\n")


def test_the_job_of_a_run_is_played_again(digits: Path, tmp_path: Path) -> None:
    run(checked(table(digits)), Solo(), tmp_path / "run")
    ended = invoke(tmp_path / "run")
    assert ended.exit_code == 71, ended.output
    assert " 4 rounds, " in ended.stdout and "reconstruction" in ended.stdout  # of 12 all that the job has
    assert {"report.json", NOTE} <= {path.name for path in (tmp_path / "run" / "audit").iterdir()}
