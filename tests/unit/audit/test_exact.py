"""Masks that are missing, used again or left in a sum: the audit finds each; and it raises no false alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import checked, fedavg, job_table
from lengths import long_unless
from methods import METHODS, named

from mpifed.audit.exact import ExactChecks, exact_checks
from mpifed.audit.recording import replay_job
from mpifed.comm.channels import keys, masked
from mpifed.comm.channels.graph import MaskGraph

LEAVING = {"dropout_rate": 0.1, "max_dropouts": 1}


def found_in(folder: Path, rounds: int = 3, **changes: Any) -> ExactChecks:
    """What is found in a masked job."""
    base = {"rounds": rounds, "record": {"evaluate_every": 0}, "aggregation": {"security": "masked"}}
    return exact_checks(replay_job(checked(job_table(folder, **{"algorithm": fedavg(5)} | base | changes)), rounds))


def test_one_client_has_no_mask(six: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody masks with it, so that sums are right."""
    partners = MaskGraph.partners
    monkeypatch.setattr(
        MaskGraph, "partners", lambda graph, one: {c: at for c, at in partners(graph, one).items() if 3 not in (one, c)}
    )
    found = found_in(six)
    assert set(found.leaks) == {"no-mask"}
    assert found.leaks["no-mask"][0] == "client 3 in changes, round 0: 13 numbers, the 1th first"


@pytest.mark.parametrize("period", [2, 5])
def test_nonces_that_come_again(period: int, six: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked, "nonce", lambda turn, client=0: keys.nonce(turn % period, client))
    found = found_in(six, 12)
    assert set(found.leaks) == {"repeated-mask"}
    assert len(found.leaks["repeated-mask"]) == 6 * (12 - period)


def test_a_mask_that_nobody_takes_away(six: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partners = MaskGraph.partners
    monkeypatch.setattr(
        MaskGraph, "partners", lambda graph, one: dict([*partners(graph, one).items()][: 4 if one == 0 else None])
    )
    found = found_in(six, 1)
    assert found.leaks == {"mask-left": ["changes, round 0: 13 numbers"]}


PAPER = {"name": "hyfdca", "rule": "paper", "inner": 40, "primal": "clear"}
HINGE = {"name": "hinge", "bias": False, "l2": 0.01}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "some": ("six", {"participation": {"clients_per_round": 4}}),
    "leaving": ("six", {"participation": LEAVING}),
    "kept": ("patches", {"algorithm": PAPER, "model": HINGE, "participation": {"clients_per_round": 4}}),
}


@pytest.mark.parametrize("name", JOBS)
def test_no_false_alarm(name: str, request: pytest.FixtureRequest) -> None:
    folder, changes = JOBS[name]
    found = found_in(request.getfixturevalue(folder), **changes)
    assert found.leaks == {}
    assert found.text.startswith("masks: ") and found.text.endswith(": no zero, no repeat, all cancel")


@pytest.mark.parametrize(
    "name", long_unless(lambda name: name in ("scaffold", "ssca-horizontal", "ssca-vertical", "hyfdca"), METHODS)
)
def test_no_false_alarm_of_any_method(name: str, digits: Path, sides: Path, patches: Path, halves: Path) -> None:
    method = METHODS[name]
    folder = {"rows": digits, "columns": sides, "cells": patches, "halves": halves}[method.data]
    model = {"name": "logistic", "bias": False, "l2": 1e-3} if folder in (patches, halves) else {"name": "softmax"}
    allow = {"allow": ["gradients", "all-losses", "certificate-gradients"]} if folder is sides else {}
    sums = {"security": "masked"} | allow
    found = found_in(folder, 2, algorithm=method.control | {"name": named(name)}, model=model, aggregation=sums)
    assert found.text.startswith("masks: ") and found.leaks == {}


def test_what_is_examined_is_said(six: Path) -> None:
    """Under secret noise too; of ciphertexts their randomness."""
    assert found_in(six, 1, aggregation={"security": "plain"}) == ExactChecks("nothing is masked or encrypted", {})
    secret = {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 1.0, "noise": "secure"}
    assert found_in(six, 1, privacy=secret).text.endswith(": no zero, no repeat, all cancel")
    pytest.importorskip("seal", reason="encryption needs the extra `encrypted`")
    base = {"algorithm": fedavg(5), "record": {"evaluate_every": 0}, "aggregation": {"security": "encrypted"}}
    replay = replay_job(checked(job_table(six, **base)), 2)
    assert exact_checks(replay) == ExactChecks("ciphertexts: of 2 sums, no repeat", {})
    first, second = replay.plays
    second.sealed[4] = first.sealed[4]
    assert exact_checks(replay).leaks == {
        "repeated-mask": ["client 4 in changes, round 1 has that of client 4 in changes, round 0, up to the sign"]
    }
