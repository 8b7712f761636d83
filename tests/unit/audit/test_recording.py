"""What an audit records of a run, and what is never in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from jobs_in_python import checked, fedavg, job_table

from mpifed.audit.recording import replay_job
from mpifed.comm.channels.base import Channel
from mpifed.core.record import bare_leaves
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
    sent: list[tuple[str, bytes]] = []
    start = Channel.__init__

    def tapped(channel: Any, setting: Any) -> None:
        start(channel, setting)
        channel.tap = lambda client, what, payload: sent.append((what, bytes(payload)))

    monkeypatch.setattr(Channel, "__init__", tapped)
    found = replay_job(job(digits, aggregation={"security": "masked"}, **leaving), 2)
    for play in found.plays:
        sent += [("upload", upload.tobytes()) for upload in play.sealed.values()]
        sent += [("sum", leaf.tobytes()) for leaf in bare_leaves(() if play.total is None else play.total)]
    whole = b"|".join(data for _, data in sent)
    assert len(secrets) >= 8 and {"public key", "upload"} <= {what for what, _ in sent}
    for secret in secrets:
        assert secret not in whole and secret[:16] not in whole


def _noted(function: Any, into: list[bytes]) -> Any:
    def noted(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        into.append(bytes(found))
        return found

    return noted
