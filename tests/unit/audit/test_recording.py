"""What an audit records of a run, and what is never in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from jobs_in_python import checked, fedavg, job_table

from mpifed.audit.recording import replay_job
from mpifed.job.job import Job


def job(folder: Path, **changes: Any) -> Job:
    base = {"rounds": 4, "algorithm": fedavg(4, 0.2), "record": {"evaluate_every": 2}}
    return checked(job_table(folder, **base | changes))


@pytest.mark.parametrize("dropouts", [0, 2])
def test_no_secret_key_is_in_it(digits: Path, monkeypatch: pytest.MonkeyPatch, dropouts: int) -> None:
    """Every private key of X25519, and all that is derived from what two of them agree on, is looked for."""
    from mpifed.comm.channels import keys

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
    whole = b"|".join(data.tobytes() for data in found.transcript.messages)
    assert len(secrets) >= 8
    assert any(what == "public key" for _, what, _ in found.transcript.notes)
    for secret in secrets:
        assert secret not in whole and secret[:16] not in whole


def _noted(function: Any, into: list[bytes]) -> Any:
    def noted(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        into.append(bytes(found))
        return found

    return noted
