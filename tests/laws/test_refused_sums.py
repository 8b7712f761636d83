"""What must not be opened is not: altered messages, values out of range, too few clients, jobs that cannot be."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ended import run
from jobs_in_python import checked
from methods import PEOPLE_BY_CHANCE
from registry import table
from written_files import read_json

from mpifed.comm.channels.dropouts import Dropouts
from mpifed.core.errors import UsageError
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.job.participation import round_of
from mpifed.testing import Job, Solo

AVG = {"name": "fedavg", "batch_size": 5, "client_optimizer": {"learning_rate": 0.3}}

# --- altered on the way ------------------------------------------------------------------------------------------

MASKED = {"aggregation": {"security": "masked"}, "participation": {"max_dropouts": 2}}
ENCRYPTED = {"aggregation": {"security": "encrypted"}}
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
        "repeated nonce",
        MASKED,
        1,
        "repeated nonce: client . would seal a second message in turn 5",
        2,
    ),
    "a public key": ("public key", MASKED, 1, "public key", 0),
}
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
        *((name, 2) for name in AMONG_RANKS),
        *(pytest.param(name, 2, marks=pytest.mark.long) for name in TROUBLES if name not in AMONG_RANKS),
    ],
)
def test_nothing_altered_is_opened(
    name: str, ranks: int | None, digits: Path, launch: Callable[..., Any], write_job: Any, tmp_path: Path
) -> None:
    trouble, tables, code, said, rounds = TROUBLES[name]
    own = {"name": "tampering:Tampered", "batch_size": 5, "client_optimizer": {"learning_rate": 0.3}}
    record = {"evaluate_every": 1, "checkpoint_every": 1, "evaluate_rows": 20}
    given = table(digits, own, rounds=3, record=record, **tables)
    job, out = write_job(tmp_path / "job.toml", given), tmp_path / "run"
    ended = launch(ranks, "run", job, "--out", out, env={"MPIFED_TEST_TROUBLE": trouble})
    assert ended.code == code, ended.text
    assert ended.text.count("mpifed: error") == 1, ended.text
    assert "Traceback" not in ended.text
    assert re.search(said, ended.text), ended.text
    if not rounds:
        assert not (out / "history.csv").exists()
        return
    assert read_history(out)["round"].max() <= rounds
    # what was there before stands, and the run goes on once all are honest, to the bits of one without trouble
    run(checked(given), Solo(), out, resume=True)
    run(checked(given | {"aggregation": {}}), Solo(), tmp_path / "honest")
    assert summary(out)["model_sha256"] == summary(tmp_path / "honest")["model_sha256"]
    assert read_json(out / "run.json")["rounds"] == 3


# --- too few clients ---------------------------------------------------------------------------------------------

PROTECTED = ["masked", "encrypted"]


def job_of(folder: Path, **changes: Any) -> Job:
    base: dict[str, Any] = {"rounds": 3, "record": {"evaluate_every": 1, "checkpoint_every": 0, "evaluate_rows": 20}}
    return checked(table(folder, AVG, **(base | changes)))


def by_chance(folder: Path, channel: str, wanted: Callable[[list[int]], bool], **changes: Any) -> tuple[Job, list[int]]:
    """The first job in which as many come to each round as is `wanted`: 2 of 8 on average, each by a coin."""
    part = {"clients_per_round": 2}
    for seed in range(1000):
        job = job_of(
            folder, seed=seed, participation=part, aggregation={"security": channel}, **PEOPLE_BY_CHANCE, **changes
        )
        counts = [int(round_of(job, 8, index).present.sum()) for index in range(job.rounds)]
        if wanted(counts):
            return job, counts
    raise AssertionError("no such seed")


@pytest.mark.parametrize("channel", ["plain", *PROTECTED])
def test_one_client_by_chance(channel: str, digits: Path, tmp_path: Path) -> None:
    job, _ = by_chance(digits, channel, lambda counts: counts[0] >= 2 and counts[1] == 1)
    if channel == "plain":
        run(job, Solo(), tmp_path / "run")
        assert summary(tmp_path / "run")["rounds"] == 3
        return
    with pytest.raises(UsageError, match="would end in a round of fewer, and tell their number"):
        run(job, Solo(), tmp_path / "run")


@pytest.mark.parametrize("channel", ["plain", *PROTECTED])
def test_nobody_by_chance(channel: str, digits: Path, tmp_path: Path) -> None:
    """A sum of no answers shows nobody; the model stays where it is, but for the noise."""
    job, _ = by_chance(digits, channel, lambda counts: counts[1] == 0 and min(counts[0], counts[2]) > 1)
    job = replace(job, aggregation=replace(job.aggregation, min_clients=1))
    run(job, Solo(), tmp_path / "run")
    run(replace(job, aggregation=type(job.aggregation)()), Solo(), tmp_path / "plain")
    assert summary(tmp_path / "run")["model_sha256"] == summary(tmp_path / "plain")["model_sha256"]


@pytest.mark.parametrize("channel", PROTECTED)
def test_a_single_answer_can_be_allowed_by_name(channel: str, digits: Path, tmp_path: Path) -> None:
    job, _ = by_chance(digits, channel, lambda counts: counts[0] >= 2 and counts[1] == 1)
    hashes = set()
    for sums in ({"security": channel, "allow": ["changes"]}, {"security": channel, "min_clients": 1}, {}):
        one = job_of(digits, **{**job.table(), "aggregation": sums})
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        run(one, Solo(), out)
        hashes.add(summary(out)["model_sha256"])
    assert len(hashes) == 1


# --- jobs that cannot be -----------------------------------------------------------------------------------------

ROWS, COLUMNS = "digits", "sides"
VERTICAL = {"algorithm": {"name": "vertical-sgd", "batch_size": 7, "server_optimizer": {"learning_rate": 0.5}}}
# the tables, the data, and what is said
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "nobody may leave": (
        {"participation": {"dropout_rate": 0.1}}, ROWS, r"\[participation\] dropout_rate = 0\.1: .* give max_dropouts",
    ),
    "everybody may leave": ({"participation": {"max_dropouts": 8}}, ROWS, r"max_dropouts = 8: there are 8 clients"),
    "one client in a round, masked": (
        {"aggregation": {"security": "masked"}, "participation": {"clients_per_round": 1}}, ROWS,
        r"min_clients = 2: there are 1 clients in a round, ",
    ),
    "one client may be left, encrypted": (
        {"aggregation": {"security": "encrypted"}, "participation": {"clients_per_round": 4, "max_dropouts": 3}}, ROWS,
        r"min_clients = 2: there are 4 clients in a round of whom 3 may leave",
    ),
    "too few for so many to leave, masked": (
        {"aggregation": {"security": "masked"}, "participation": {"clients_per_round": 7, "max_dropouts": 3}}, ROWS,
        r"max_dropouts = 3: there are 7 clients in a round, and masked sums need 8",
    ),
    "needs everybody": (
        VERTICAL | {"participation": {"dropout_rate": 0.1, "max_dropouts": 1}}, COLUMNS,
        r'dropout_rate = 0\.1: "vertical-sgd" needs all 5 clients',
    ),
    "no such field": (
        {"aggregation": {"security": "masked", "allow": ["changes.weights"]}}, ROWS,
        r'\[aggregation\] allow: "changes\.weights": no such field; known are changes\.',
    ),
    "more clients than there are": (
        {"aggregation": {"security": "masked", "min_clients": 9}}, ROWS,
        r"\[aggregation\] min_clients = 9: there are 8 clients",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_job_that_cannot_be(name: str, digits: Path, sides: Path, tmp_path: Path) -> None:
    tables, kind, said = WRONG[name]
    tables = dict(tables)
    folder = {ROWS: digits, COLUMNS: sides}[kind]
    given = table(folder, tables.pop("algorithm", AVG), rounds=1) | tables
    with pytest.raises(UsageError, match=said) as caught:
        run(checked(given), Solo(), tmp_path / "run")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run" / "history.csv").exists()
