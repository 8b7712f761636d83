"""Clients who leave within a round: against a loop by hand, and against rounds to which they never came."""

from __future__ import annotations

import copy
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from channel_algorithms import by_hand, same_as_by_hand, saved
from ended import run, same_runs
from jobs_in_python import checked
from methods import private
from registry import CASES, NAMES, Case, table
from small import algorithm, answers, block_of
from sparse_masks import sparsest

from mpifed.comm.channels.masked import Masked
from mpifed.comm.rounds import play
from mpifed.core.errors import BudgetSpent, Interrupted, TooFewClients
from mpifed.core.record import leaves
from mpifed.core.round import Leaving, Round
from mpifed.files.history import read_history
from mpifed.files.model_file import model_sha256, read_model
from mpifed.files.run_folder import summary
from mpifed.job import participation
from mpifed.job.participation import leaving, round_of
from mpifed.run.setup import prepare
from mpifed.testing import Job, Solo

CLIENTS, PER_ROUND = 11, 9  # of `skewed`
LEAVING = {"clients_per_round": PER_ROUND, "dropout_rate": 0.2, "max_dropouts": 2}
CHANNELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "masked": {"aggregation": {"security": "masked"}},
    "masked, sparse": {"aggregation": {"security": "masked"}},
    "encrypted": {"aggregation": {"security": "encrypted"}},
}


@pytest.fixture(autouse=True)
def sparse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph with fewer than all pairs, where the name of the test says so."""
    if "sparse" in request.node.name:
        monkeypatch.setattr(Masked, "neighbours", sparsest)


def gossip(folder: Path, **changes: Any) -> dict[str, Any]:
    """Rounds of which some are void, and in which clients leave at every half."""
    base = {
        "rounds": 8, "seed": 157, "participation": LEAVING, "data": {"path": str(folder), "block": 2},
        "record": {"evaluate_every": 4, "checkpoint_every": 0},
    }  # fmt: skip
    return table(folder, {"name": "channel_algorithms:Gossip"}, **(base | changes))


EVERYBODY = LEAVING | {"clients_per_round": CLIENTS}


def averaging(folder: Path, **changes: Any) -> dict[str, Any]:
    avg = {"name": "fedavg", "batch_size": 5, "client_optimizer": {"learning_rate": 0.3}}
    record = {"evaluate_every": 1, "checkpoint_every": 1}
    return table(folder, avg, **({"rounds": 4, "seed": 3, "record": record} | changes))


# --- a loop by hand ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channel", "block"),
    [
        ("plain", CLIENTS), *((channel, 3) for channel in CHANNELS),
        pytest.param("plain", 1, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_the_same_bits_as_by_hand(channel: str, block: int, skewed: Path, tmp_path: Path) -> None:
    data, record = {"path": str(skewed), "block": block}, {"evaluate_every": 4, "checkpoint_every": 0}
    job = checked(gossip(skewed, data=data, record=record, **CHANNELS[channel]))
    expected = by_hand(job, CLIENTS)
    assert expected.ended is None and sum(expected.attempts) > job.rounds  # some rounds were void, at first
    assert all(expected.happened.values()), expected.happened  # and everything that can happen has
    run(job, Solo(), tmp_path / "run")
    same_as_by_hand(tmp_path / "run", expected, channel)
    assert saved(tmp_path / "run").progress.round == job.rounds
    model, history = read_model(tmp_path / "run" / "model.safetensors"), read_history(tmp_path / "run")
    assert model["value"].tolist() == expected.model.value.tolist()
    if channel == "plain":
        assert (history["up_bytes"][-1], history["down_bytes"][-1]) == (expected.up_bytes, expected.down_bytes)


@pytest.mark.launch
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_same_bits_as_by_hand_on_several_ranks(
    ranks: int, skewed: Path, launch: Any, write_job: Any, tmp_path: Path
) -> None:
    """With a server that is alone, and with one beside clients."""
    jobs = {
        (channel, dedicated): gossip(skewed, server={"dedicated": dedicated}, **tables)
        for channel, tables in CHANNELS.items()
        for dedicated in (True, False)
    }
    paths = [write_job(tmp_path / f"{channel}, {dedicated}.toml", job) for (channel, dedicated), job in jobs.items()]
    ended = launch(ranks, tmp_path, *paths, program=(str(Path(__file__).with_name("sweeps.py")),))
    assert ended.code == 0, ended.text
    for path, ((channel, _), job) in zip(paths, jobs.items(), strict=True):
        same_as_by_hand(path.with_suffix(""), by_hand(checked(job), CLIENTS), channel)


def test_where_nobody_leaves_room_for_it_changes_nothing(skewed: Path, tmp_path: Path) -> None:
    for name, tables in CHANNELS.items():
        hashes = set()
        for most in (0, 2):
            part = {"clients_per_round": PER_ROUND, "max_dropouts": most}
            out = tmp_path / f"{name}-{most}"
            run(checked(gossip(skewed, rounds=2, participation=part, **tables)), Solo(), out)
            hashes.add(summary(out)["model_sha256"])
        assert len(hashes) == 1


# --- rounds to which some never came -----------------------------------------------------------------------------


def hashed(record: Any) -> str:
    """Of all leaves and their names."""
    return model_sha256({name or "leaf": np.asarray(leaf) for name, leaf in leaves(record)})


def job_of(case: Case, folder: Path, **changes: Any) -> Job:
    data = {"path": str(folder), "block": changes.pop("block", 3)}
    record = {"evaluate_every": 1, "checkpoint_every": 0}
    return checked(table(folder, case.algorithm, data=data, record=record, **(case.tables | changes)))


def everybody(job: Job) -> Round:
    return Round(-1, job.seed, np.ones(CLIENTS, dtype=bool))


# --- void rounds -------------------------------------------------------------------------------------------------

NEEDS_ALL = {"fedsplit"}  # in every round
ROWS = [
    name
    for name, case in zip(NAMES, CASES, strict=True)
    if case.split == "rows" and case.algorithm["name"] not in NEEDS_ALL and "asynchrony" not in case.tables
]


@pytest.mark.parametrize("block", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ROWS)
def test_a_void_round_leaves_every_bit(name: str, block: int, skewed: Path) -> None:
    """After a round that counts, rounds are void at each half of their exchanges; then one counts again."""
    job = job_of(CASES[NAMES.index(name)], skewed, block=block, participation={"clients_per_round": PER_ROUND})
    ready = prepare(job, Solo())
    exchanges = ready.algorithm.exchanges
    state = play(ready.algorithm.setup, ready.server, ready.clients, everybody(job), ready.ranks)
    first, second = (round_of(job, CLIENTS, index) for index in (0, 1))
    state = play(exchanges, *state, first, ready.ranks)
    before, kept = [hashed(state[0]), *map(hashed, state[1])], copy.deepcopy(state)
    sent = ready.ranks.up_bytes
    who = np.flatnonzero(second.present)
    for half in range(2 * len(exchanges)):
        halves = np.full(CLIENTS, 2 * len(exchanges))
        halves[who[:3]] = half
        void = second._replace(leaving=Leaving(second.present, halves, 2))
        assert void.at(len(exchanges) - 1).void
        state = play(exchanges, *state, void, ready.ranks)
        assert [hashed(state[0]), *map(hashed, state[1])] == before
        assert ready.ranks.up_bytes > sent  # and is counted
        sent = ready.ranks.up_bytes
    state, kept = (play(exchanges, *one, second, ready.ranks) for one in (state, kept))
    assert [hashed(state[0]), *map(hashed, state[1])] == [hashed(kept[0]), *map(hashed, kept[1])]
    assert hashed(state[0]) != before[0]


@pytest.mark.parametrize("channel", CHANNELS)
def test_no_round_is_played_again_once_a_sum_was_opened(channel: str, skewed: Path, tmp_path: Path) -> None:
    """Two sums of the same answers but a client's would give that client's answer away."""
    job = checked(gossip(skewed, seed=19, **CHANNELS[channel]))
    expected = by_hand(job, CLIENTS)
    assert (expected.ended, expected.attempts) == (2, [1, 2, 2])  # the first sum of round 2 was opened at last
    with pytest.raises(TooFewClients, match=r"round 2: .*max_dropouts = 2.*the model of round 2 stands") as caught:
        run(job, Solo(), tmp_path / "run")
    assert caught.value.agreed
    for _ in range(2):
        same_as_by_hand(tmp_path / "run", expected, channel)
        assert saved(tmp_path / "run").progress.exchanges["tell"]["played"] == 3
        with pytest.raises(TooFewClients):  # nor when it is resumed
            run(job, Solo(), tmp_path / "run", resume=True)


def test_interrupted_between_attempts(skewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with the next attempt: nothing is sent, spent or counted twice."""
    job = checked(averaging(skewed, seed=2, participation=LEAVING, **private(level="client")))
    run(job, Solo(), tmp_path / "whole")
    plays = len(ledger(tmp_path / "whole"))
    assert plays > job.rounds
    for number in range(1, plays):
        calls: list[int] = []

        def signalled(*arguments: Any, calls: list[int] = calls, number: int = number) -> Round:
            calls.append(1)
            if len(calls) == number:  # is played to its end
                os.kill(os.getpid(), signal.SIGUSR1)
            return leaving(*arguments)

        out = tmp_path / f"after-{number}"
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(participation, "leaving", signalled)
            run(job, Solo(), out)
        run(job, Solo(), out, resume=True)
        same_runs(out, tmp_path / "whole")
        assert ledger(out) == ledger(tmp_path / "whole")
        counts = [saved(one).progress.exchanges["changes"] for one in (out, tmp_path / "whole")]
        assert counts[0]["played"] == counts[1]["played"] == plays
        assert counts[0]["up_bytes"] == counts[1]["up_bytes"] > 0


# --- drawing -----------------------------------------------------------------------------------------------------


def drawn(**part: Any) -> Iterator[Any]:
    """Those who leave in many rounds of 4 exchanges."""
    job = checked(table(Path("."), {"name": "channel_algorithms:Gossip"}, participation=part, seed=8))
    for index in range(400):
        yield leaving(job, round_of(job, 20, index), 4).leaving


def test_who_leaves_is_drawn_uniformly() -> None:
    found = list(drawn(dropout_rate=0.3, max_dropouts=1))
    assert all(one.who.all() and one.most == 1 for one in found)
    halves = np.concatenate([one.halves for one in found])
    gone = halves[halves < 8]
    assert halves.max() == 8
    assert abs(len(gone) / len(halves) - 0.3) < 6 * np.sqrt(0.3 * 0.7 / len(halves))
    counts = np.bincount(gone, minlength=8)
    assert np.abs(counts - len(gone) / 8).max() < 6 * np.sqrt(len(gone) / 8)


# --- privacy -----------------------------------------------------------------------------------------------------


def ledger(out: Path) -> list[int]:
    """The rounds of its lines."""
    return [json.loads(line)["round"] for line in (out / "ledger.jsonl").read_text().splitlines()[1:]]


@pytest.mark.parametrize("noise", ["secure", "test"])
def test_void_rounds_count_in_the_ledger(noise: str, skewed: Path, tmp_path: Path) -> None:
    """What was sent was sent: its noise is spent, whether or not anybody opened the sum."""
    base = averaging(skewed, participation=EVERYBODY, **private(level="client", noise=noise))
    job = checked(base)
    attempts = []
    for index in range(job.rounds):
        tries = (leaving(job, round_of(job, CLIENTS, index), 1, attempt).at(0).void for attempt in range(10))
        attempts.append(next(number for number, void in enumerate(tries) if not void) + 1)
    assert sum(attempts) > job.rounds
    run(job, Solo(), tmp_path / "run")
    assert ledger(tmp_path / "run") == [index for index, count in enumerate(attempts) for _ in range(count)]
    run(checked(base | {"participation": {}, "rounds": sum(attempts)}), Solo(), tmp_path / "longer")
    column = "epsilon" if noise == "secure" else "epsilon_if_secret"
    found, expected = (read_history(tmp_path / name)[column] for name in ("run", "longer"))
    assert found.tolist() == expected[np.cumsum([0, *attempts])].tolist()
    # a run that is interrupted and goes on has spent as much
    run(replace(job, rounds=3), Solo(), tmp_path / "resumed")
    run(job, Solo(), tmp_path / "resumed", resume=True)
    assert read_history(tmp_path / "resumed")[column].tolist() == found.tolist()
    assert ledger(tmp_path / "resumed") == ledger(tmp_path / "run")


def test_void_rounds_do_not_exceed_the_epsilon_that_noise_was_computed_for(skewed: Path, tmp_path: Path) -> None:
    """The run ends before; with a larger budget of its own it goes on to its end."""
    privacy = private(level="client", epsilon=8.0)["privacy"]
    del privacy["noise_multiplier"]
    job = checked(averaging(skewed, participation=EVERYBODY, privacy=privacy))
    with pytest.raises(BudgetSpent, match=r"\[privacy\] epsilon = 8: "):
        run(job, Solo(), tmp_path / "run")
    told = summary(tmp_path / "run")
    assert (told["exit"], len(ledger(tmp_path / "run"))) == (70, job.rounds) and told["rounds"] < job.rounds
    assert 7.99 < told["epsilon_if_secret"] <= 8.0
    read_model(tmp_path / "run" / "model.safetensors")
    run(checked(job.table() | {"stop": {"epsilon": 30.0}}), Solo(), tmp_path / "run", resume=True)
    assert summary(tmp_path / "run")["exit"] == 0 and summary(tmp_path / "run")["epsilon_if_secret"] > 8.0


SIZES = [20, 40, 40, 80, 30]  # rows of the clients


@pytest.mark.parametrize("left", [0, 1, 2])
def test_distributed_noise_is_enough_when_as_many_leave_as_may(left: int, array_shard: Any) -> None:
    """Each client adds as much as if `max_dropouts` had left: with features of zeros nothing but noise moves."""
    clients, most, features, outputs = len(SIZES), 2, 100, 30
    settings = {"level": "client", "trust": "distributed", "clip": 0.7, "noise_multiplier": 1.3}
    avg = {"name": "fedavg", "batch_size": 5, "client_optimizer": {"learning_rate": 0.2}}
    one = algorithm(avg, settings, SIZES, features, outputs, {"name": "softmax", "bias": False})
    block = block_of([(np.zeros((s, features)), np.zeros(s, dtype=np.int64)) for s in SIZES], array_shard)
    everyone = np.ones(clients, dtype=bool)
    halves = np.where(np.arange(clients) < left, 0, 2)  # those who leave do not answer
    now = Round(0, 5, everyone, leaving=Leaving(everyone, halves, most)).at(0)
    assert not now.void
    who = np.flatnonzero(now.present)
    noise = answers(one, block.only(who), now)[1].sum(axis=0)
    needed = 1.3 * 0.7  # Z times what a client can move
    assert noise.std() == pytest.approx(needed * np.sqrt((clients - left) / (clients - most)), rel=0.08)
    if left == most:
        assert noise.std() == pytest.approx(needed, rel=0.08)  # and never less
