"""Rounds on the ranks of a communicator: the same bits in every channel, recorded or not, and whoever is absent."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from jobs_in_python import checked, fedavg, job_table
from sub_worlds import comms, worlds

from mpifed import FederatedDataset
from mpifed.audit.recording import RecordedRanks
from mpifed.comm.channels.base import Protection
from mpifed.comm.rounds import Ranks, play
from mpifed.comm.states import ClientStates
from mpifed.comm.sums import Arithmetic
from mpifed.core.exchange import Exchange, Field
from mpifed.core.holdings import Holdings, Placed
from mpifed.core.lazy import Lazy
from mpifed.core.record import leaves
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.testing import Solo, rounds

pytestmark = pytest.mark.mpi(min_size=2)

CLIENTS, PLACES = 6, 9
OWN = Holdings(PLACES, np.array([0, 1, 2, 1, 0, 2]), (slice(0, 5), slice(3, 8), np.array([1, 4, 8])))
PRESENT = np.array([[1, 1, 1, 1, 0, 1], [1, 0, 1, 1, 1, 1], [1, 1, 0, 1, 0, 1], [1, 1, 1, 0, 1, 1]], dtype=bool)
CHANNELS = [Protection(name, min_clients=1) for name in ("plain", "masked", "encrypted")]


class Shard(NamedTuple):
    """As much of a client's data as ranks read."""

    client: int
    y: Any = np.zeros(1)


class Upload(NamedTuple):
    """One field of each kind."""

    whole: Any
    own: Any
    one: Any


class Seen(NamedTuple):
    """Of each client."""

    value: Any  # [n, 3]
    sums: Any  # [n, 9]


def exchanges(lazy: bool) -> tuple[Exchange, ...]:
    """To the server and to clients, of some or of all, with and without those who are absent."""
    fields = Upload(Field((3,)), Field((2, PLACES), held=OWN, axis=1), Field((), sender=2))
    back = Upload(Field((3,)), Field((2, PLACES), held=OWN, axis=1, to_holders=True), Field((), sender=2))

    def ask(server: Any, now: Round) -> Any:
        return np.array([server[-1].whole.sum() if server else 0.5])

    def answer(states: Seen, question: Any, block: Block, now: Round) -> Any:
        value = states.value + question / 64 + now.normals("value", block.clients, (3,), "float64")
        at = [OWN.of(client) for client in block.clients.tolist()]

        def upload(who: Any) -> Upload:
            own = [np.outer([1, -2], np.resize(value[i], np.arange(PLACES)[at[i]].shape)) for i in who]
            return Upload(value[who], Placed(own, [at[i] for i in who], PLACES, 1), value[who, 0])

        everybody = np.arange(len(block.clients))
        parts = ((who, upload(who)) for who in everybody[:, None])
        return states._replace(value=value), Lazy(lambda: parts) if lazy else upload(everybody)

    def hear(states: Seen, total: Upload, block: Block, now: Round) -> Seen:
        sums = np.zeros_like(states.sums)
        for row, client in zip(sums, block.clients.tolist(), strict=True):
            row[OWN.of(client)] = total.own[0, OWN.of(client)]  # of no more does a client know
        return states._replace(sums=states.sums / 2 + sums)

    def absorb(server: Any, total: Upload, now: Round) -> Any:
        return *server, total

    def some(now: Round) -> Any:
        return now.present & (np.arange(CLIENTS) != 3)

    def alone(states: Seen, question: Any, block: Block, now: Round) -> Any:
        return states, Upload(states.value, (), ())

    return (
        Exchange("up", fields, ask, answer, absorb),
        Exchange("some", fields, ask, answer, absorb, who=some),
        Exchange("down", back, ask, answer, hear=hear),
        Exchange("down to some", back, ask, answer, hear=hear, hears=some),
        Exchange("clear", fields, ask, answer, absorb, clear=True),
        Exchange("kept", fields, ask, answer, absorb, keeps="up"),
        Exchange("kept down", back, ask, answer, hear=hear, keeps="down"),
        Exchange("heard again", back, ask, None, hear=hear, keeps="down"),
        Exchange("all kept", Upload(Field((3,)), (), ()), ask, alone, absorb, keeps="all"),
    )  # fmt: skip


def outcome(comm: Any, protection: Protection, lazy: bool = False, recorded: bool = False) -> Any:
    """(sums that the server has heard, states of all clients, bytes of a deployment), on rank 0."""
    who = np.array_split(np.arange(CLIENTS), 3)
    mine = [some for number, some in enumerate(who) if number % comm.size == comm.rank]
    blocks = [Block(tuple(map(Shard, some)), "float64") for some in mine]  # type: ignore[arg-type]
    of_kind = RecordedRanks if recorded else Ranks
    ranks = of_kind(comm, blocks, CLIENTS, Arithmetic("float64"), protection)
    ranks.make_ready(exchanges(lazy))
    ranks.agree_on_keys()
    server: Any = () if comm.rank == 0 else None
    first = np.array([some[0] for some in mine], dtype=np.int64)
    states = ClientStates(first, lambda i: Seen(np.zeros((len(mine[i]), 3)), np.zeros((len(mine[i]), PLACES))))
    for index, present in enumerate(PRESENT):
        server, states = play(exchanges(lazy), server, states, Round(index, 1, present), ranks)
    own = {}
    for some, state in zip(mine, states, strict=True):
        own |= {int(client): (state.value[i].tobytes(), state.sums[i].tobytes()) for i, client in enumerate(some)}
    kept = comm.gather(own)
    if comm.rank:
        return None
    sums = [np.asarray(leaf).tobytes() for total in server for _, leaf in leaves(total)]
    return sums, dict(sorted(chain(*map(dict.items, kept)))), (ranks.up_bytes, ranks.down_bytes)


def test_every_channel_has_the_bits_of_one_rank_in_the_clear() -> None:
    """Recorded or not, a few clients at a time or all; some absent, of whom some sums keep the last answers."""
    expected = outcome(Solo(), CHANNELS[0])
    assert len(set(expected[0])) > len(PRESENT) and expected[1][0][1] != np.zeros(PLACES).tobytes()
    for comm in worlds():
        for protection in CHANNELS:
            for lazy, recorded in ((False, False), (True, True)):
                found = outcome(comm, protection, lazy, recorded)
                if found is not None:
                    assert found[:2] == expected[:2], (comm.size, protection.channel, lazy, recorded)
                    assert (found[2] == expected[2]) == (protection.channel == "plain")


def test_all_ranks_play_the_same_rounds(classes: Path) -> None:
    algorithm = {"name": "scaffold", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}}
    job = checked(job_table(classes, algorithm=algorithm, participation={"clients_per_round": 3}))
    for comm in comms():
        for alone, here in zip(rounds(job), rounds(job, ranks=comm), strict=True):
            kept = [{name: values.tobytes() for name, values in one.items()} for one in here.clients]
            assert kept == [{name: values.tobytes() for name, values in one.items()} for one in alone.clients]
            if comm.rank == 0:
                assert {n: v.tobytes() for n, v in here.model.items()} == {
                    n: v.tobytes() for n, v in alone.model.items()
                }
            else:
                assert here.model == here.server == {}


SUMS: list[dict[str, str]] = [{}, {"arithmetic": "exact-blocks"}, {"security": "masked"}, {"security": "encrypted"}]


@pytest.mark.parametrize("aggregation", SUMS, ids=str)
def test_targets_times_a_million_give_the_model_times_a_million(aggregation: Any, shared_tmp_path: Path) -> None:
    """And losses a million times a million as large: grids are as fine and as wide as the targets are large."""
    rng, found = np.random.default_rng(5), dict[tuple[str, int], list[Any]]()
    X, y = rng.standard_normal((60, 4)), rng.integers(1, 16, 60)
    base = {
        "rounds": 6,
        "model": {"name": "least-squares"},
        "compute": {"dtype": "float64"},
        "aggregation": aggregation,
    }
    for times in (1.0, 1e6):
        folder = shared_tmp_path / f"times-{times:g}"
        FederatedDataset.from_arrays(X, times * y, clients=6, out=folder)
        more = base | {"data": {"path": str(folder), "block": 2}, "participation": {"clients_per_round": 4}}
        for algorithm in (fedavg(5), {"name": "ssca", "batch_size": 5}):
            for comm in comms():
                (*_, last) = rounds(checked(job_table(algorithm=algorithm, **more)), ranks=comm, measured=6)
                if comm.rank == 0:
                    loss = last.columns["train_loss"] / times**2
                    model = [leaf.ravel() / times for leaf in last.model.values()]
                    found.setdefault((algorithm["name"], comm.size), []).append(np.concatenate([*model, [loss]]))
    for (name, size), (one, million) in found.items():
        np.testing.assert_allclose(million, one, rtol=1e-9, atol=1e-9, err_msg=f"{name} on {size}")
        assert one.tobytes() == found[name, 1][0].tobytes() and np.abs(one).max() > 0.1
