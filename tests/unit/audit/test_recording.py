"""What an audit records of a run, and what is never in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from jobs_in_python import checked, fedavg, job_table

from mpifed.audit.replay import replay_job
from mpifed.job.job import Job


def job(folder: Path, **changes: Any) -> Job:
    base = {"rounds": 4, "algorithm": fedavg(4, 0.2), "record": {"evaluate_every": 2}}
    return checked(job_table(folder, **base | changes))


HINGE = {"model": {"name": "hinge", "bias": False, "l2": 1e-2}}
COUNTED: dict[str, tuple[str, dict[str, Any]]] = {
    "rows": ("digits", {}),
    "some": ("digits", {"participation": {"clients_per_round": 5}}),
    "leaving": ("digits", {"participation": {"dropout_rate": 0.05, "max_dropouts": 2}}),
    "columns": ("sides", {"algorithm": {"name": "ssca", "batch_size": 5, "rho": [0.9, 0.3], "gamma": [0.9, 0.35]}}),
    "cells": ("patches", {"algorithm": {"name": "hyfdca", "rule": "damped"}, **HINGE}),
    "kept": (
        "patches",
        {
            "algorithm": {"name": "hyfdca", "rule": "paper", "inner": 9, "primal": "clear"},
            "participation": {"clients_per_round": 4},
            **HINGE,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("channel", ["plain", "masked"])
@pytest.mark.parametrize("name", COUNTED)
def test_uploads_are_as_long_as_they_are_counted(name: str, channel: str, request: pytest.FixtureRequest) -> None:
    """Numbers, and what the masked channel sends beside them: shares, and sums so far. Keys belong to no exchange."""
    folder, changes = COUNTED[name]
    allow = {"allow": ["gradients", "all-losses", "certificate-gradients"]} if name == "columns" else {}
    sums = {"security": channel} | (allow if channel == "masked" else {})
    task = job(request.getfixturevalue(folder), aggregation=sums, **changes)
    replay = replay_job(task, 3)
    counted = replay.aggregator.accounts({})
    sent = Counter[str]()
    for one in replay.transcript.messages:
        if one.kind in ("upload", "note"):
            sent[one.exchange or "keys"] += one.data.nbytes
    played = {one.name for one in (*replay.algorithm.setup, *replay.exchanges)} & sent.keys()  # without measures
    assert played
    assert {one: sent[one] for one in played} == {one: counted[one]["up_bytes"] for one in played}
    if channel == "masked":  # beside public keys, the group's key goes from one client to each other one, sealed
        others = replay.algorithm.problem.clients - 1
        assert counted["keys"]["up_bytes"] == sent["keys"] + others * (32 + 16)


@pytest.mark.parametrize("dropouts", [0, 2])
def test_no_secret_key_is_in_it(digits: Path, monkeypatch: pytest.MonkeyPatch, dropouts: int) -> None:
    """Every private key of X25519, and all that is derived from what two of them agree on, is looked for."""
    from mpifed.comm import keys

    secrets: list[bytes] = []
    monkeypatch.setattr(keys, "derive", _noted(keys.derive, secrets))
    generate = X25519PrivateKey.generate

    class Noted:
        @staticmethod
        def generate() -> X25519PrivateKey:
            made = generate()
            secrets.append(made.private_bytes_raw())
            return made

        from_private_bytes = staticmethod(X25519PrivateKey.from_private_bytes)

    monkeypatch.setattr(keys, "X25519PrivateKey", Noted)
    leaving = {"participation": {"dropout_rate": 0.05, "max_dropouts": dropouts}} if dropouts else {}
    found = replay_job(job(digits, aggregation={"security": "masked"}, **leaving), 2)
    whole = b"|".join(one.data.tobytes() for one in found.transcript.messages)
    assert len(secrets) >= 8
    assert any(one.what == "public key" for one in found.transcript.messages)
    for secret in secrets:
        assert secret not in whole and secret[:16] not in whole


def _noted(function: Any, into: list[bytes]) -> Any:
    def noted(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        into.append(bytes(found))
        return found

    return noted
