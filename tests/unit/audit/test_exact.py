"""Masks that are missing, used again or left in a sum: the audit finds each, raises no false alarm, and sees no key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from jobs_in_python import checked, fedavg, job_table
from lengths import long_unless
from methods import METHODS, named

from mpifed.audit.exact import ExactChecks, exact_checks
from mpifed.audit.recording import Replay, replay_job
from mpifed.comm.channels import keys, masked
from mpifed.comm.channels.base import Channel
from mpifed.comm.channels.graph import MaskGraph
from mpifed.core.record import bare_leaves


def replayed(folder: Path, rounds: int = 3, **changes: Any) -> Replay:
    """A masked job."""
    base = {"rounds": rounds, "record": {"evaluate_every": 0}, "aggregation": {"security": "masked"}}
    return replay_job(checked(job_table(folder, **{"algorithm": fedavg(5)} | base | changes)), rounds)


def found_in(folder: Path, rounds: int = 3, **changes: Any) -> ExactChecks:
    return exact_checks(replayed(folder, rounds, **changes))


# rounds, what is wrong, and what is found
BROKEN: dict[str, tuple[int, tuple[Any, str, Callable[[Any], Any]], dict[str, Any]]] = {
    "nobody masks with client 3": (
        3, (MaskGraph, "partners", lambda partners: lambda graph, one: {
            c: at for c, at in partners(graph, one).items() if 3 not in (one, c)
        }),
        {"no-mask": [f"client 3 in changes, round {t}: 13 numbers, the 1th first" for t in range(3)]},
    ),
    "no masks at all": (1, (masked.Masked, "_mask", lambda mask: lambda *arguments: None), {"no-mask": 6}),
    "nonces that come again": (
        12, (masked, "nonce", lambda nonce: lambda turn, client=0: nonce(turn % 5, client)), {"repeated-mask": 6 * 7},
    ),
    "every other nonce": (
        12, (masked, "nonce", lambda nonce: lambda turn, client=0: nonce(turn % 2, client)), {"repeated-mask": 6 * 10},
    ),
    "a mask that nobody takes away": (
        1, (MaskGraph, "partners", lambda partners: lambda graph, one: dict(
            [*partners(graph, one).items()][: 4 if one == 0 else None]
        )),
        {"mask-left": ["changes, round 0: 13 numbers"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rounds", "broken", "expected"), BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_is_found(
    rounds: int, broken: Any, expected: dict[str, Any], six: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, change = broken
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    leaks = found_in(six, rounds).leaks
    assert {
        name: len(leaks[name]) if isinstance(expected.get(name), int) else leaks[name] for name in leaks
    } == expected


PAPER = {"name": "hyfdca", "rule": "paper", "inner": 40, "primal": "clear"}
SOME = {"participation": {"clients_per_round": 4}}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "some": ("six", SOME),
    "leaving": ("six", {"participation": {"dropout_rate": 0.1, "max_dropouts": 1}}),
    "kept": ("patches", SOME | {"algorithm": PAPER, "model": {"name": "hinge", "bias": False, "l2": 0.01}}),
    "secret noise": ("six", {"privacy": {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 1.0}}),
}


@pytest.mark.parametrize("name", [*JOBS, *long_unless(
    lambda name: name in ("scaffold", "ssca-horizontal", "ssca-vertical", "hyfdca"), METHODS
)])  # fmt: skip
def test_no_false_alarm(name: str, request: pytest.FixtureRequest) -> None:
    """Of participation and noise of all kinds, and of any method."""
    folder, changes = JOBS.get(name, ("", {}))
    if not folder:
        method = METHODS[name]
        folder = {"rows": "digits", "columns": "sides", "cells": "patches", "halves": "halves"}[method.data]
        allow = {"allow": ["gradients", "all-losses", "certificate-gradients"]} if folder == "sides" else {}
        binary = folder in ("patches", "halves")
        model = {"name": "logistic", "bias": False, "l2": 1e-3} if binary else {"name": "softmax"}
        sums = {"security": "masked"} | allow
        changes = {"algorithm": method.control | {"name": named(name)}, "model": model, "aggregation": sums}
    found = found_in(request.getfixturevalue(folder), 3 if name in JOBS else 2, **changes)
    assert found.text.startswith("masks: ") and found.leaks == {}
    assert name not in JOBS or found.text.endswith(": no zero, no repeat, all cancel")


def test_what_is_examined_is_said(six: Path) -> None:
    assert found_in(six, 1, aggregation={"security": "plain"}) == ExactChecks("nothing is masked or encrypted", {})
    pytest.importorskip("seal", reason="encryption needs the extra `encrypted`")
    replay = replayed(six, 2, aggregation={"security": "encrypted"})
    assert exact_checks(replay) == ExactChecks("ciphertexts: of 2 sums, no repeat", {})
    first, second = replay.plays
    second.sealed[4] = first.sealed[4]  # by its randomness
    said = "client 4 in changes, round 1 has that of client 4 in changes, round 0, up to the sign"
    assert exact_checks(replay).leaks == {"repeated-mask": [said]}


@pytest.mark.parametrize("dropouts", [0, 2])
def test_no_secret_key_is_in_it(digits: Path, monkeypatch: pytest.MonkeyPatch, dropouts: int) -> None:
    """Every private key of X25519, and all that is derived from what two of them agree on, is looked for."""
    secrets, sent = list[bytes](), list[tuple[str, bytes]]()
    derive, generate, start = keys.derive, X25519PrivateKey.generate, Channel.__init__

    def derived(*arguments: Any, **named: Any) -> Any:
        secrets.append(bytes(derive(*arguments, **named)))
        return secrets[-1]

    class Noted:
        @staticmethod
        def generate() -> X25519PrivateKey:
            made = generate()
            secrets.append(made.private_bytes_raw())
            return made

        from_private_bytes = staticmethod(X25519PrivateKey.from_private_bytes)

    def tapped(channel: Any, setting: Any) -> None:
        start(channel, setting)
        channel.tap = lambda client, what, payload: sent.append((what, bytes(payload)))

    monkeypatch.setattr(keys, "derive", derived)
    monkeypatch.setattr(keys, "X25519PrivateKey", Noted)
    monkeypatch.setattr(Channel, "__init__", tapped)
    leaving = {"participation": {"dropout_rate": 0.05, "max_dropouts": dropouts}} if dropouts else {}
    for play in replayed(digits, 2, record={"evaluate_every": 2}, **leaving).plays:
        sent += [("upload", upload.tobytes()) for upload in play.sealed.values()]
        sent += [("sum", leaf.tobytes()) for leaf in bare_leaves(() if play.total is None else play.total)]
    whole = b"|".join(data for _, data in sent)
    assert len(secrets) >= 8 and {"public key", "upload"} <= {what for what, _ in sent}
    for secret in secrets:
        assert secret not in whole and secret[:16] not in whole
