"""What must not be opened is not: altered messages, values out of range, too few clients; and no key is written."""

from __future__ import annotations

import base64
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from channel_algorithms import progress_of
from ended import run, same_runs
from jobs_in_python import checked
from methods import PEOPLE_BY_CHANCE, private
from registry import table
from written_files import contents, read_json

from mpifed.comm.channels.dropouts import Dropouts
from mpifed.comm.channels.keys import Keyring
from mpifed.core.errors import UsageError
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.job.participation import round_of
from mpifed.testing import Job, Solo

AVG = {"name": "fedavg", "batch_size": 5, "client_optimizer": {"learning_rate": 0.3}}
SEALED = {name: {"aggregation": {"security": name}} for name in ("masked", "encrypted")}

# --- altered on the way ----------------------------------------------------------------------------------------------

MASKED, ENCRYPTED = SEALED["masked"] | {"participation": {"max_dropouts": 2}}, SEALED["encrypted"]
BOUND = r"changes\.value: client 6 has a value of 1\S*e\+09 in absolute value, outside the bound"
# what happens, in which job: the exit code, what is said, and how many rounds stand in the history
TROUBLES: dict[str, tuple[str, dict[str, Any], int, str, int]] = {
    "a value out of range, masked": ("large", MASKED, 68, BOUND, 2),
    "a value out of range, encrypted": ("large", ENCRYPTED, 68, BOUND, 2),
    "a value that is none, masked": ("nan", MASKED, 68, "client 6 has values that are not finite", 2),
    "an integer out of range, encrypted": ("integers", ENCRYPTED, 68, "client 6", 2),
    "a ciphertext": ("ciphertext", ENCRYPTED, 1, "was altered.*nothing was opened", 2),
    "half a ciphertext": ("half a ciphertext", ENCRYPTED, 1, "altered", 2),
    "a share": ("share", MASKED, 1, "share", 2),
    "a sealed share": ("sealed share", MASKED, 1, "a sealed message of .* does not open", 2),
    "missing shares": ("missing shares", MASKED, 1, "4 shares of a secret that takes 5", 2),
    "a repeated nonce": (
        "repeated nonce", MASKED, 1, "repeated nonce: client . would seal a second message in turn 5", 2
    ),
    "a public key": ("public key", MASKED, 1, "public key", 0),
}  # fmt: skip
AMONG_RANKS = ("a ciphertext", "a sealed share")


@pytest.fixture
def nothing_tampered_after() -> Iterator[None]:
    """The job's module `tampering` replaces methods in this process, too: other tests of it find those of mpifed."""
    before = vars(Dropouts)["reveal"]
    yield
    if tampering := sys.modules.pop("tampering", None):  # not where ranks alone had it
        tampering.UNDO.close()
    assert vars(Dropouts)["reveal"] is before


@pytest.mark.launch
@pytest.mark.usefixtures("nothing_tampered_after")
@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        *((name, None) for name in TROUBLES),
        *(pytest.param(name, 2, marks=() if name in AMONG_RANKS else pytest.mark.long) for name in TROUBLES),
    ],
)
def test_nothing_altered_is_opened(
    name: str, ranks: int | None, digits: Path, launch: Callable[..., Any], write_job: Any, tmp_path: Path
) -> None:
    """What was there before stands, and the run goes on once all are honest, to the bits of one without trouble."""
    trouble, tables, code, said, rounds = TROUBLES[name]
    record = {"evaluate_every": 1, "checkpoint_every": 1, "evaluate_rows": 20}
    given = table(digits, AVG | {"name": "tampering:Tampered"}, rounds=3, record=record, **tables)
    job, out = write_job(tmp_path / "job.toml", given), tmp_path / "run"
    ended = launch(ranks, "run", job, "--out", out, env={"MPIFED_TEST_TROUBLE": trouble})
    assert ended.code == code, ended.text
    assert ended.text.count("mpifed: error") == 1 and "Traceback" not in ended.text, ended.text
    assert re.search(said, ended.text), ended.text
    if not rounds:
        assert not (out / "history.csv").exists()
        return
    assert read_history(out)["round"].max() <= rounds
    run(checked(given), Solo(), out, resume=True)
    run(checked(given | {"aggregation": {}}), Solo(), tmp_path / "honest")
    assert summary(out)["model_sha256"] == summary(tmp_path / "honest")["model_sha256"]
    assert read_json(out / "run.json")["rounds"] == 3


# --- too few clients -------------------------------------------------------------------------------------------------


def by_chance(folder: Path, channel: str, wanted: Callable[[list[int]], bool]) -> Job:
    """The first job in which as many come to each round as is `wanted`: 2 of 8 on average, each by a coin."""
    record = {"evaluate_every": 1, "checkpoint_every": 0, "evaluate_rows": 20}
    more = {"participation": {"clients_per_round": 2}, "aggregation": {"security": channel}, **PEOPLE_BY_CHANCE}
    jobs = (checked(table(folder, AVG, rounds=3, record=record, seed=seed, **more)) for seed in range(1000))
    return next(job for job in jobs if wanted([int(round_of(job, 8, index).present.sum()) for index in range(3)]))


@pytest.mark.parametrize("channel", SEALED)
def test_who_come_by_chance(channel: str, digits: Path, tmp_path: Path) -> None:
    """A sum of nobody's answers shows nobody; one of a single client is refused, unless that is allowed by name."""
    nobody = by_chance(digits, channel, lambda counts: counts[1] == 0 and min(counts[0], counts[2]) > 1)
    single = by_chance(digits, channel, lambda counts: counts[0] >= 2 and counts[1] == 1)
    with pytest.raises(UsageError, match="would end in a round of fewer, and tell their number"):
        run(single, Solo(), tmp_path / "refused")
    ways: list[dict[str, Any]] = [{"security": channel, "min_clients": 1}, {"security": channel, "allow": ["changes"]}]
    for name, job, allowed in (("nobody", nobody, ways[:1]), ("single", single, ways)):
        hashes = set()
        for number, sums in enumerate([{}, *allowed]):
            out = tmp_path / f"{name}-{number}"
            run(replace(job, aggregation=replace(type(job.aggregation)(), **sums)), Solo(), out)
            hashes.add(summary(out)["model_sha256"])
        assert len(hashes) == 1


VERTICAL = {"name": "vertical-sgd", "batch_size": 7, "server_optimizer": {"learning_rate": 0.5}}
FEW: list[tuple[dict[str, Any], str]] = [  # tables, and what is said
    ({"participation": {"dropout_rate": 0.1}}, r"\[participation\] dropout_rate = 0\.1: .* give max_dropouts"),
    ({"participation": {"max_dropouts": 8}}, r"max_dropouts = 8: there are 8 clients"),
    (
        SEALED["masked"] | {"participation": {"clients_per_round": 1}},
        r"min_clients = 2: there are 1 clients in a round, ",
    ),
    (
        SEALED["encrypted"] | {"participation": {"clients_per_round": 4, "max_dropouts": 3}},
        r"min_clients = 2: there are 4 clients in a round of whom 3 may leave",
    ),
    (
        SEALED["masked"] | {"participation": {"clients_per_round": 7, "max_dropouts": 3}},
        r"max_dropouts = 3: there are 7 clients in a round, and masked sums need 8",
    ),
    (
        {"algorithm": VERTICAL, "participation": {"dropout_rate": 0.1, "max_dropouts": 1}},
        r'dropout_rate = 0\.1: "vertical-sgd" needs all 5 clients',
    ),
    (
        {"aggregation": {"security": "masked", "allow": ["changes.weights"]}},
        r'\[aggregation\] allow: "changes\.weights": no such field; known are changes\.',
    ),
    (
        {"aggregation": {"security": "masked", "min_clients": 9}},
        r"\[aggregation\] min_clients = 9: there are 8 clients",
    ),
]


@pytest.mark.parametrize(("tables", "said"), FEW)
def test_a_job_that_cannot_be(tables: dict[str, Any], said: str, digits: Path, sides: Path, tmp_path: Path) -> None:
    given = {"algorithm": AVG, **tables}
    job = table(sides if given["algorithm"] == VERTICAL else digits, given.pop("algorithm"), rounds=1, **given)
    with pytest.raises(UsageError, match=said):
        run(checked(job), Solo(), tmp_path / "run")
    assert not (tmp_path / "run" / "history.csv").exists()


# --- keys ------------------------------------------------------------------------------------------------------------


def with_keys(skewed: Path, **changes: Any) -> dict[str, Any]:
    """Clients with a memory, some of whom are away or leave; with seed 2 rounds are void before and after round 3."""
    optimizer = {"client_optimizer": {"learning_rate": {"initial": 0.3, "exponent": 0.2}}}
    pdm = {"name": "fedpdm", "batch_size": 5, "rho": 2.0, "local_steps": 2, "start": "own", **optimizer}
    base: dict[str, Any] = {
        "rounds": 6, "seed": 2, "record": {"evaluate_every": 3, "checkpoint_every": 0, "evaluate_rows": 40},
        "participation": {"clients_per_round": 9, "dropout_rate": 0.2, "max_dropouts": 2},
        "data": {"path": str(skewed), "block": 2}, **private(level="client", noise_multiplier=1.0),
    }  # fmt: skip
    return table(skewed, pdm, **(base | changes))


@pytest.mark.launch
@pytest.mark.parametrize(
    ("channel", "ranks"),
    [("masked", (None, 2)), ("encrypted", (3, None)), pytest.param("masked", (3, None), marks=pytest.mark.long)],
)
def test_who_resume_agree_on_new_keys(
    channel: str, ranks: tuple[int | None, int | None], skewed: Path, launch: Any, write_job: Any, tmp_path: Path
) -> None:
    """And have the bits of a run in the plain channel, in which rounds are void, too."""
    run(checked(with_keys(skewed)), Solo(), tmp_path / "whole")
    job, out = write_job(tmp_path / "job.toml", with_keys(skewed, **SEALED[channel])), tmp_path / "run"
    for number, rounds, more in zip(ranks, (3, 6), ([], ["--resume"]), strict=True):
        ended = launch(number, "run", job, "--out", out, "--set", f"rounds={rounds}", *more)
        assert ended.code == 0, ended.text
    same_runs(out, tmp_path / "whole")
    here, there = (progress_of(one).exchanges for one in (out, tmp_path / "whole"))
    assert here["changes"]["played"] == there["changes"]["played"] > 6
    run(checked(with_keys(skewed, rounds=1, **SEALED[channel])), Solo(), tmp_path / "once")
    assert here["keys"]["up_bytes"] == 2 * progress_of(tmp_path / "once").exchanges["keys"]["up_bytes"] > 0


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All secrets of at least 16 bytes of the runs of this process."""
    found = list[bytes]()

    def keep(owner: Any, name: str, secrets: Callable[[Any, Any], list[bytes]]) -> None:
        before = getattr(owner, name)

        def after(self: Any, *arguments: Any) -> Any:
            result = before(self, *arguments)
            found.extend(secrets(self, result))
            return result

        monkeypatch.setattr(owner, name, after)

    from mpifed.comm.channels.bfv import Bfv

    keep(Keyring, "prepare", lambda keyring, _: [keyring.group])
    keep(Keyring, "introduce", lambda keyring, made: [keyring._private[one].private_bytes_raw() for one in made])
    keep(Keyring, "pair", lambda _, secret: [secret])
    keep(Dropouts, "deposit", lambda secrets, given: [secrets.seeds[given.client]])
    keep(Dropouts, "message_key", lambda _, key: [key])
    keep(Bfv, "make_keys", lambda _, made: [
        made[1][at : at + 32] for at in range(len(made[1]) // 4, len(made[1]) - 32, len(made[1]) // 8)
    ])  # fmt: skip
    urandom = os.urandom

    def drawn(size: int) -> bytes:
        made = urandom(size)
        found.extend([made] * (size >= 16))
        return made

    monkeypatch.setattr(os, "urandom", drawn)
    return found


def stand_in(keys: list[bytes], text: bytes) -> bool:
    """Whether any stands in a text, as it is or as people write bytes."""
    forms = [lambda key: key, lambda key: key.hex().encode(), lambda key: repr(key)[2:-1].encode(),
             lambda key: base64.b64encode(key).rstrip(b"=")[:-1]]  # fmt: skip
    return any(form(key) in text for key in keys for form in forms)


@pytest.mark.parametrize("channel", SEALED)
def test_no_key_is_written(
    channel: str, keys: list[bytes], skewed: Path, tmp_path: Path, capfd: Any, caplog: Any
) -> None:
    """Neither in checkpoints nor in what is told on the way, before the run is resumed and after."""
    caplog.set_level(logging.DEBUG)
    record = {"evaluate_every": 1, "checkpoint_every": 1, "evaluate_rows": 20}
    for rounds in (2, 3):
        job = checked(with_keys(skewed, rounds=rounds, record=record, **SEALED[channel]))
        run(job, Solo(), tmp_path / "run", resume=rounds == 3)
    written, told = {name: text for name, text in contents(tmp_path).items() if text}, capfd.readouterr()
    assert sum("checkpoint" in name for name in written) > 4
    owners = 1 if channel == "encrypted" else 11  # who makes the keys of all, or all who take part
    assert len(set(keys)) > 2 * (owners + 1)  # twice, and of their group
    for name, text in (written | {"out": told.out.encode(), "err": told.err.encode()}).items():
        assert not stand_in(keys, text), name
    assert not stand_in(keys, caplog.text.encode())


def test_two_runs_have_different_keys(keys: list[bytes], skewed: Path, tmp_path: Path) -> None:
    """Whatever the job's seed; a resumed run has new ones as well."""
    seen: list[set[bytes]] = []
    for name, rounds in (("one", 1), ("other", 1), ("one", 2)):
        keys.clear()
        run(checked(with_keys(skewed, rounds=rounds, **SEALED["masked"])), Solo(), tmp_path / name, resume=rounds == 2)
        seen.append(set(keys))
    assert all(len(some) > 12 for some in seen)
    assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
