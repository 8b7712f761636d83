"""An algorithm whose clients count what they are asked and told, and the same by hand; for clients who leave."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from written_files import read_json

from mpifed.algorithms.algorithm import Algorithm
from mpifed.comm.states import StateFile
from mpifed.core.exchange import Exchange, Field
from mpifed.core.record import Array
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.job.participation import leaving, round_of
from mpifed.run.checkpoint import Progress
from mpifed.testing import Job

SIZE = 3
GRID = 2.0**-20  # all numbers are multiples of it, so that sums by hand have the same bits


class Server(NamedTuple):
    """Server only."""

    model: Any  # Model


class Model(NamedTuple):
    """What is written at the end."""

    value: Array  # [SIZE]
    answered: Array  # [] int64: answers that the server has heard the sum of


class State(NamedTuple):
    """Of each client."""

    value: Array  # [n, SIZE]
    talked: Array  # [n] int64: answers to the first exchange
    told: Array  # [n] int64: answers to the second one
    heard: Array  # [n] int64: sums heard
    present: Array  # [n] int64: answers in the sums heard


class Talk(NamedTuple):
    """Summed for clients and for the server."""

    value: Array  # [n, SIZE]
    count: Array  # [n]


def on_grid(value: Any) -> Any:
    """The nearest multiple of the grid."""
    return np.round(value / GRID) * GRID


def beginning(client: int) -> Any:
    """[SIZE] a client's first value."""
    return (np.arange(SIZE) * 37 + client * 101) % 64 / 16 - 2


def moved(value: Any, total: Any) -> Any:
    """A value after hearing a sum."""
    return on_grid(value / 2 + total / 32)


@dataclass(frozen=True)
class Gossip(Algorithm):
    """Clients hear the sum of everybody's values and move; then the server hears the sum of what they have now."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        fields = Talk(Field((SIZE,)), Field())
        return (
            Exchange("talk", fields, self.ask, self.talk, hear=self.hear),
            Exchange("tell", fields, self.ask, self.tell, self.absorb),
        )

    @property
    def measures(self) -> tuple[()]:
        return ()

    def start_server(self, now: Round) -> Server:
        return Server(Model(np.zeros(SIZE), np.int64(0)))

    def start_clients(self, block: Block, now: Round) -> State:
        zeros = np.zeros(len(block.clients), dtype=np.int64)
        return State(np.stack([beginning(client) for client in block.clients.tolist()]), zeros, zeros, zeros, zeros)

    def ask(self, server: Server, now: Round) -> Array:
        return server.model.value

    def talk(self, clients: State, question: Array, block: Block, now: Round) -> tuple[State, Talk]:
        answer = Talk(on_grid(clients.value + question / 8), np.ones(len(block.clients)))
        return clients._replace(talked=clients.talked + 1), answer

    def hear(self, clients: State, total: Talk, block: Block, now: Round) -> State:
        return clients._replace(
            value=moved(clients.value, total.value),
            heard=clients.heard + 1,
            present=clients.present + np.int64(total.count),
        )

    def tell(self, clients: State, question: Array, block: Block, now: Round) -> tuple[State, Talk]:
        return clients._replace(told=clients.told + 1), Talk(clients.value, np.ones(len(block.clients)))

    def absorb(self, server: Server, total: Talk, now: Round) -> Server:
        value, answered = server.model
        return Server(Model(moved(value, total.value), answered + np.int64(total.count)))


class ByHand(NamedTuple):
    """Where a run ends, and what has happened on the way."""

    clients: State  # [N]
    model: Model
    up_bytes: int
    down_bytes: int
    attempts: list[int]  # of each round
    happened: dict[str, int]  # how often a client of a round that was not void did what
    ended: int | None  # the round in which too many have left for good,
    void: bool  # and whether not even its first sum was opened


def by_hand(job: Job, clients: int) -> ByHand:
    """`Gossip` client by client in the plain channel, with those who leave as `job` draws them."""
    value, counts = {c: beginning(c) for c in range(clients)}, {c: [0, 0, 0, 0] for c in range(clients)}
    model, answered, up, down, attempts = np.zeros(SIZE), 0, 0, 0, []
    happened = dict.fromkeys(("left before talking", "did not hear", "left before telling", "told and left"), 0)
    message = 8 * (SIZE + 1)
    ended = None
    for index in range(job.rounds):
        for attempt in range(job.participation.attempts):
            now = leaving(job, round_of(job, clients, index), 2, attempt)
            who = np.flatnonzero(now.present).tolist()
            halves = {c: int(now.leaving.halves[c]) if now.leaving else 4 for c in who}
            talk = [c for c in who if halves[c] >= 1]
            hear = [c for c in who if halves[c] >= 2]
            tell = [c for c in who if halves[c] >= 3]
            stay = [c for c in who if halves[c] >= 4]
            up, down = up + message * len(talk), down + 8 * SIZE * len(who)
            void = len(who) - len(hear) > job.participation.max_dropouts
            if not void:
                break
        attempts.append(attempt + 1)
        if not void:
            up, down = up + message * len(tell), down + message * len(hear) + 8 * SIZE * len(hear)
        if len(who) - len(stay) > job.participation.max_dropouts:
            ended = index  # once a sum is opened, it is not played again
            break
        total = sum(on_grid(value[c] + model / 8) for c in talk)
        for c in hear:
            value[c] = moved(value[c], total)
        for number, some in enumerate((talk, tell, hear)):
            for c in some:
                counts[c][number] += 1
        for c in hear:
            counts[c][3] += len(talk)
        model, answered = moved(model, sum(value[c] for c in tell)), answered + len(tell)
        for what, before, after in zip(happened, (who, talk, hear, tell), (talk, hear, tell, stay), strict=True):
            happened[what] += len(before) - len(after)
    states = State(np.stack(list(value.values())), *np.array(list(counts.values())).T)
    return ByHand(states, Model(model, np.int64(answered)), up, down, attempts, happened, ended, void)


class Saved(NamedTuple):
    """The newest checkpoint of a run."""

    progress: Progress
    server: dict[str, Any]  # leaves by name
    clients: dict[str, Any]  # leaves [N, ...] by name


def progress_of(out: Path) -> Progress:
    """Of the newest checkpoint."""
    manifest = read_json(max((out / "checkpoint").glob("round-*[0-9]")) / "manifest.json")
    return Progress(*(manifest[name] for name in Progress._fields))


def saved(out: Path) -> Saved:
    """Read without a federation."""
    folder = max((out / "checkpoint").glob("round-*[0-9]"))
    server = _flat(StateFile.opened(folder / "server.states").read(0, "server"))
    blocks: dict[int, dict[str, Any]] = {}  # by the first client, of those who were ever present
    for path in sorted(folder.glob("clients-*")):  # what was written later stands above
        file = StateFile.opened(path)
        blocks |= {first: _flat(file.read(first, "state")) for first in file.blocks}
    ordered = [blocks[first] for first in sorted(blocks)]
    clients = {name: np.concatenate([block[name] for block in ordered]) for name in (ordered[0] if ordered else {})}
    return Saved(progress_of(out), server, clients)


def same_as_by_hand(out: Path, expected: ByHand, channel: str) -> None:
    """Where a run has come to is where the loop has, with as many bytes, or more in channels of keys."""
    found = saved(out)
    for name, leaf in expected.clients._asdict().items():
        np.testing.assert_array_equal(found.clients[name], leaf, err_msg=name)
    for name, leaf in expected.model._asdict().items():
        np.testing.assert_array_equal(found.server[f"model.{name}"], leaf, err_msg=name)
    assert found.progress.exchanges["talk"]["played"] == sum(expected.attempts)
    bytes_ = found.progress.up_bytes, found.progress.down_bytes
    assert (bytes_ == (expected.up_bytes, expected.down_bytes)) == (channel == "plain")


def _flat(arrays: dict[str, Any]) -> dict[str, Any]:
    """By names without the kind."""
    return {name.partition("/")[2]: values for name, values in arrays.items()}
