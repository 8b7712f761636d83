"""What every algorithm of the registry must be: pure, resumable, keyed to its seed, indifferent to blocks and sums."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from registry import CASES, HYPER, NAMES, table

from mpifed.algorithms import ALGORITHMS
from mpifed.comm.transport import Alone
from mpifed.core.exchange import ToClients, fields_like, play
from mpifed.core.record import Record, leaves, map_leaves
from mpifed.run.config import Job
from mpifed.run.setup import Ready, prepare, round_of

every_algorithm = pytest.mark.parametrize("name, hyper", CASES, ids=NAMES)


def ready(folder: Path, name: str, hyper: dict[str, Any], /, **changes: Any) -> tuple[Job, Ready]:
    changes.setdefault("participation", {"clients_per_round": 5})
    job = Job.check(table(folder, {"name": name, **hyper}, **changes))
    return job, prepare(job, Alone())


def rounds(job: Job, at: Ready, first: int, last: int) -> tuple[Record, list[Record]]:
    """(server, clients) after rounds `first` to `last` - 1."""
    server, clients = at.server, at.clients
    for index in range(first, last):
        now = round_of(job, at.federation.clients, index)
        server, clients = play(at.algorithm.exchanges, server, clients, now, at.federation)
    return server, clients


def model(folder: Path, name: str, hyper: dict[str, Any], count: int = 4, /, **changes: Any) -> Any:
    job, at = ready(folder, name, hyper, **changes)
    return at.algorithm.model(rounds(job, at, 0, count)[0])


def bits(record: Record) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    return [(name, np.asarray(a).dtype.str, np.shape(a), np.asarray(a).tobytes()) for name, a in leaves(record)]


def flat(record: Record) -> Any:
    return np.concatenate([np.asarray(leaf, dtype="f8").reshape(-1) for _, leaf in leaves(record)])


def test_every_algorithm_of_the_registry_is_tried() -> None:
    assert set(HYPER) == set(ALGORITHMS)
    assert all(HYPER.values())


@every_algorithm
def test_pure(name: str, hyper: dict[str, Any], skewed: Path) -> None:
    job, at = ready(skewed, name, hyper, data={"path": str(skewed), "block": 3})
    algorithm, federation = at.algorithm, at.federation
    server, clients = rounds(job, at, 0, 2)  # so that no state is trivial
    now = round_of(job, federation.clients, 2)

    def twice(function: Any, *arguments: Any) -> Any:
        before = [bits(a) for a in arguments]
        first = function(*arguments)
        seen = bits(first)
        second = function(*arguments)
        assert [bits(a) for a in arguments] == before, f"{function.__qualname__} changes what it is given"
        assert bits(second) == seen, f"{function.__qualname__} gives other bits the second time"
        return second

    def result(function: Any, *rest: Any) -> Any:
        from typing import NamedTuple

        class Both(NamedTuple):
            clients: Any
            answer: Any

        both = lambda states, question: Both(*function(states, question, *rest))  # noqa: E731
        both.__qualname__ = function.__qualname__
        return both

    for exchange in algorithm.exchanges:
        question = twice(lambda s, ask=exchange.ask: ask(s, now), server)
        for i, block in enumerate(federation.blocks):
            answered = twice(result(exchange.answer, block, now), clients[i], question)
            assert {len(leaf) for _, leaf in leaves(answered.answer)} == {len(block.clients)}
        clients, total = federation.tally(exchange, clients, question, now)
        if isinstance(exchange, ToClients):
            clients = federation.hear(exchange, clients, total, now)
        else:
            server = twice(lambda s, t, absorb=exchange.absorb: absorb(s, t, now), server, total)
    twice(algorithm.model, server)


@every_algorithm
def test_starts_are_functions_of_the_seed(name: str, hyper: dict[str, Any], digits: Path) -> None:
    one, two = (ready(digits, name, hyper)[1] for _ in range(2))
    assert bits(one.server) == bits(two.server)
    assert [bits(c) for c in one.clients] == [bits(c) for c in two.clients]


@every_algorithm
def test_resumable(name: str, hyper: dict[str, Any], skewed: Path) -> None:
    job, at = ready(skewed, name, hyper)
    whole = rounds(job, at, 0, 5)
    job, at = ready(skewed, name, hyper)
    server, clients = rounds(job, at, 0, 2)
    stored = pickle.dumps([map_leaves(np.array, state) for state in (server, *clients)])
    job, at = ready(skewed, name, hyper)
    server, *clients = pickle.loads(stored)
    again = rounds(job, at._replace(server=server, clients=clients), 2, 5)
    assert bits(again[0]) == bits(whole[0])
    assert [bits(c) for c in again[1]] == [bits(c) for c in whole[1]]


@every_algorithm
def test_states_keep_their_shapes(name: str, hyper: dict[str, Any], digits: Path) -> None:
    job, at = ready(digits, name, hyper)
    server, clients = rounds(job, at, 0, 2)

    def shapes(record: Record) -> list[Any]:
        return [(name, np.shape(leaf), np.asarray(leaf).dtype) for name, leaf in leaves(record)]

    assert shapes(server) == shapes(at.server)
    assert [shapes(c) for c in clients] == [shapes(c) for c in at.clients]


@every_algorithm
def test_seed_matters(name: str, hyper: dict[str, Any], digits: Path) -> None:
    objective = {"name": "softmax"}  # starts at zero whatever the seed: so the draws are seen to differ
    everybody = {"participation": {}, "objective": objective}
    seeds = [flat(model(digits, name, hyper, 2, seed=seed, **everybody)) for seed in (1, 1, 2)]
    assert (seeds[0] == seeds[1]).all()
    assert not np.allclose(seeds[0], seeds[2], rtol=1e-3, atol=1e-6)
    network = [flat(model(digits, name, hyper, 0, seed=seed)) for seed in (1, 2)]
    assert not np.allclose(network[0], network[1])


@every_algorithm
def test_fused_is_the_sum_of_the_answers(name: str, hyper: dict[str, Any], skewed: Path) -> None:
    job, at = ready(skewed, name, hyper, data={"path": str(skewed), "block": 3}, compute={"dtype": "float64"})
    server, clients = rounds(job, at, 0, 2)
    now = round_of(job, at.federation.clients, 2)
    for exchange in at.algorithm.exchanges:
        if getattr(exchange, "fused", None) is None:
            assert hyper.get("local_steps", 1) > 1 or "local_epochs" in hyper, "one product would do"
            continue
        question = exchange.ask(server, now)
        for i, block in enumerate(at.federation.blocks):
            answer = exchange.answer(clients[i], question, block, now)[1]
            total = map_leaves(lambda leaf: np.sum(leaf, axis=0), answer)
            fused = exchange.fused(question, block, now)
            assert [(n, np.shape(a)) for n, a in leaves(fused)] == [(n, np.shape(a)) for n, a in leaves(total)]
            # float64 rounding over some hundred terms
            np.testing.assert_allclose(flat(fused), flat(total), rtol=1e-11, atol=1e-13)


@every_algorithm
def test_exact_and_float_sums_are_close(name: str, hyper: dict[str, Any], skewed: Path) -> None:
    exact, floats = (
        flat(model(skewed, name, hyper, sum={"numbers": numbers}, compute={"dtype": "float64"}))
        for numbers in ("exact", "float")
    )
    # values are rounded to multiples of 2^-40 = 1e-12, 5 clients in 4 rounds
    np.testing.assert_allclose(exact, floats, rtol=0, atol=1e-10)
    single = flat(model(skewed, name, hyper, sum={"numbers": "float"}))
    np.testing.assert_allclose(exact, single, rtol=0, atol=1e-4)


@every_algorithm
@pytest.mark.parametrize("block", [2, 3, 8])
def test_blocks_do_not_change_who_draws_what(name: str, hyper: dict[str, Any], block: int, skewed: Path) -> None:
    alone, together = (
        flat(model(skewed, name, hyper, data={"path": str(skewed), "block": size}, compute={"dtype": "float64"}))
        for size in (1, block)
    )
    np.testing.assert_allclose(alone, together, rtol=0, atol=1e-10)  # other rows would differ by more than 1e-4


@every_algorithm
def test_streamed_shards_give_the_bits_of_shards_in_memory(name: str, hyper: dict[str, Any], skewed: Path) -> None:
    memory, streamed = (
        model(skewed, name, hyper, data={"path": str(skewed), "memory_gib": gib}) for gib in (4.0, 0.0)
    )
    assert bits(memory) == bits(streamed)


@every_algorithm
def test_questions_and_answers_have_the_declared_fields(name: str, hyper: dict[str, Any], digits: Path) -> None:
    job, at = ready(digits, name, hyper)
    now = round_of(job, at.federation.clients, 0)
    for exchange in at.algorithm.exchanges:
        question = exchange.ask(at.server, now)
        block = at.federation.blocks[0]
        answer = exchange.answer(at.clients[0], question, block, now)[1]
        declared = [(n, field.shape) for n, field in leaves(exchange.fields)]
        assert declared == [(n, np.shape(leaf)[1:]) for n, leaf in leaves(answer)]
        assert [n for n, _ in leaves(fields_like(question))] == [n for n, _ in leaves(question)]
