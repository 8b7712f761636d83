"""What every algorithm of the registry must be: pure, resumable, keyed to its seed, indifferent to blocks and sums."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from ended import of_certificate, run
from jobs_in_python import checked
from lengths import long_unless
from methods import BARE, METHODS, class_of, named
from mpifed.comm.aggregator import Aggregator
from registry import CASES, FEW, NAMES, Case, table

from mpifed.core.exchange import Exchange, States, ToClients, fields_like, play
from mpifed.core.record import Record, leaves, map_leaves, take
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.job.participation import returning, round_of
from mpifed.run.evaluation import measure
from mpifed.run.setup import Ready, prepare
from mpifed.testing import ALGORITHMS, Alone, Job

every_algorithm = pytest.mark.parametrize("case", CASES, ids=NAMES)
one_of_every_algorithm = pytest.mark.parametrize(  # and the others if long
    "case", long_unless(lambda case: NAMES[CASES.index(case)] in FEW, CASES), ids=NAMES
)


@pytest.fixture
def even(case: Case, digits: Path, sides: Path, halves: Path, patches: Path) -> Path:
    """Clients who hold about the same."""
    return {"rows": digits, "columns": sides, "halves": halves, "cells": patches}[case.split]


@pytest.fixture
def uneven(case: Case, skewed: Path, scattered: Path, halves: Path, patchwork: Path) -> Path:
    """Clients who hold very different amounts."""
    return {"rows": skewed, "columns": scattered, "halves": halves, "cells": patchwork}[case.split]


def ready(folder: Path, case: Case, /, **changes: Any) -> tuple[Job, Ready]:
    """Everything that a run needs, its set-up played; 5 clients in a round, or all who are needed."""
    changes = {"participation": {} if case.everybody else {"clients_per_round": 5}} | case.tables | changes
    job = checked(table(folder, case.algorithm, **changes))
    at = prepare(job, Alone())
    server, clients = play(at.algorithm.setup, at.server, at.clients, everybody(job, at), at.aggregator)
    return job, at._replace(server=server, clients=clients)


def everybody(job: Job, at: Ready) -> Round:
    return Round(-1, job.seed, np.ones(at.aggregator.clients, dtype=bool))


def people(folder: Path) -> dict[str, int]:
    """[participation] of everybody, which is also what clients who come by chance need."""
    return {"clients_per_round": open_federation(folder).clients}


def rounds(job: Job, at: Ready, first: int, last: int) -> tuple[Record, list[Record]]:
    """(server, clients) after rounds `first` to `last` - 1."""
    server, clients = at.server, at.clients
    for index in range(first, last):
        now = round_at(job, at, index)
        server, clients = play(at.algorithm.exchanges, server, clients, now, at.aggregator)
    return server, clients


def round_at(job: Job, at: Ready, index: int) -> Round:
    return returning(job, round_of(job, at.aggregator.clients, index))


def model(folder: Path, case: Case, count: int = 4, /, **changes: Any) -> Any:
    job, at = ready(folder, case, **changes)
    return at.algorithm.model(rounds(job, at, 0, count)[0])


def bits(record: Record) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    return [(name, np.asarray(a).dtype.str, np.shape(a), np.asarray(a).tobytes()) for name, a in leaves(record)]


def flat(record: Record) -> Any:
    return np.concatenate([np.asarray(leaf, dtype="f8").reshape(-1) for _, leaf in leaves(record)])


def test_every_algorithm_of_the_registry_is_tried() -> None:
    """By its row of `METHODS`, whose columns all tables of methods are."""
    assert {named(row) for row in METHODS} == set(ALGORITHMS)
    assert all(method.cases for method in METHODS.values())


@pytest.mark.parametrize("row", METHODS)
def test_a_row_is_of_the_class_that_plays_it(row: str) -> None:
    method, kind = METHODS[row], class_of(row)
    assert set(METHODS[row].reveals.attacks) and kind.explains_answers()
    assert kind.accounts() == method.private == any("privacy" in tables for _, tables in method.cases)
    assert 0 <= method.short < len(method.cases) == len(method.single)


# --- purity ------------------------------------------------------------------------------------------------------


def twice(function: Any, *arguments: Any) -> Any:
    """The result, the same both times; the arguments stand."""
    before = [bits(a) for a in arguments]
    first = function(*arguments)
    seen = bits(first)
    second = function(*arguments)
    assert [bits(a) for a in arguments] == before, f"{function.__qualname__} changes what it is given"
    assert bits(second) == seen, f"{function.__qualname__} gives other bits the second time"
    return second


class Both(NamedTuple):
    clients: Any
    answer: Any


def with_pure_answers(exchange: Exchange, block: Block, now: Round) -> Any:
    """`answer` as a function of two records that gives one."""
    both = lambda states, question: Both(*exchange.answer(states, question, block, now))  # noqa: E731
    both.__qualname__ = f"{exchange.name}: {exchange.answer}"
    return both


def with_pure_absorbing(exchange: ToClients, block: Block, now: Round) -> Any:
    """`absorb` as a function of two records."""
    hear = lambda states, total: exchange.absorb(states, total, block, now)  # noqa: E731
    hear.__qualname__ = f"{exchange.name}: {exchange.absorb}"
    return hear


def asked_together(exchange: Exchange, block: Block) -> list[Any]:
    """Positions of the clients who are asked at once."""
    everyone = np.arange(len(block.clients))
    return list(everyone[:, None]) if exchange.one_by_one else [everyone]


def play_twice(
    exchanges: Sequence[Exchange], server: Record, clients: States, now: Round, aggregator: Aggregator
) -> tuple[Record, States]:
    """`play` with everybody present, each function of an algorithm called twice."""
    for exchange in exchanges:
        if exchange.returning:  # nobody, where everybody is present
            continue
        question = twice(lambda s, ask=exchange.ask: ask(s, now), server)
        for i, block in enumerate(aggregator.blocks):
            for who in asked_together(exchange, block):
                some = block.only(who)
                answered = twice(with_pure_answers(exchange, some, now), take(clients[i], who), question)
                assert {len(leaf) for _, leaf in leaves(answered.answer)} == {len(who)}
        clients, total = aggregator.tally(exchange, clients, question, now)
        if not isinstance(exchange, ToClients):
            server = twice(lambda s, t, absorb=exchange.absorb: absorb(s, t, now), server, total)
            continue
        for i, block in enumerate(aggregator.blocks):
            who = np.flatnonzero((exchange.hearer is None) | (block.clients == exchange.hearer))
            if len(who):
                heard = twice(with_pure_absorbing(exchange, block.only(who), now), take(clients[i], who), total)
                if exchange.alike:  # what one finds is what all find
                    alone = exchange.absorb(take(clients[i], who[:1]), total, block.only(who[:1]), now)
                    assert bits(map_leaves(lambda leaf: leaf[:1], heard)) == bits(alone)
        clients = aggregator.hear(exchange, clients, total, now)
    return server, clients


@every_algorithm
def test_pure(case: Case, uneven: Path) -> None:
    job, at = ready(uneven, case, data={"path": str(uneven), "block": 3}, participation=people(uneven))
    server, clients = rounds(job, at, 0, 2)  # so that no state is trivial
    now = round_of(job, at.aggregator.clients, 2)
    play_twice(at.algorithm.setup, server, clients, everybody(job, at), at.aggregator)
    server, clients = play_twice(at.algorithm.exchanges, server, clients, now, at.aggregator)
    twice(at.algorithm.model, server)
    for one in at.algorithm.measures:
        pairs = zip(at.aggregator.blocks, clients, strict=True)
        found, states = one.start(server), [one.start_clients(*pair) for pair in pairs]
        before = bits(server)
        for _ in range(one.turns):
            found, states = play_twice(one.exchanges, found, states, everybody(job, at), at.aggregator)
        first = one.first(server, found) if one.first else {}
        assert one.report(server, found, first) == one.report(server, found, first)
        assert bits(server) == before


@one_of_every_algorithm
def test_measuring_leaves_the_states(case: Case, even: Path) -> None:
    """Rounds with a measurement between them have the bits of rounds without."""
    job, at = ready(even, case)
    server, clients = rounds(job, at, 0, 3)
    job, at = ready(even, case)
    again, states = rounds(job, at, 0, 1)
    blocks, now = at.aggregator.blocks, everybody(job, at)
    measure(at.algorithm.measures, at.algorithm, again, blocks, states, now, at.aggregator, None)
    again, states = rounds(job, at._replace(server=again, clients=states), 1, 3)
    assert bits(again) == bits(server)
    assert [bits(c) for c in states] == [bits(c) for c in clients]


# --- states ------------------------------------------------------------------------------------------------------


@one_of_every_algorithm
def test_starts_are_functions_of_the_seed(case: Case, even: Path) -> None:
    one, two = (ready(even, case)[1] for _ in range(2))
    assert bits(one.server) == bits(two.server)
    assert [bits(c) for c in one.clients] == [bits(c) for c in two.clients]


@one_of_every_algorithm
def test_runs_are_resumable(case: Case, uneven: Path, tmp_path: Path) -> None:
    """Through files, in two parts; the end of the first part is certified besides."""
    some = {} if case.everybody else {"clients_per_round": 5}
    job = table(uneven, case.algorithm, record={"evaluate_every": 1}, participation=some, **case.tables)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(checked(job | {"rounds": 4}), Alone(), whole)
    run(checked(job | {"rounds": 2}), Alone(), parts)
    run(checked(job | {"rounds": 4}), Alone(), parts, resume=True)
    names = ("model_sha256", "rounds", "exit", "objective", "kkt_residual", "constraint_values", "up_bytes")
    assert [summary(parts)[name] for name in names] == [summary(whole)[name] for name in names]
    one, other = read_history(whole), read_history(parts)
    assert list(one) == list(other)
    for name in one.keys() - {"elapsed_s"}:
        at = [0, 1, 3, 4] if of_certificate(name) else slice(None)
        np.testing.assert_array_equal(one[name][at], other[name][at], err_msg=name)


@every_algorithm
def test_states_keep_their_shapes(case: Case, even: Path) -> None:
    job, at = ready(even, case)
    server, clients = rounds(job, at, 0, 2)

    def shapes(record: Record) -> list[Any]:
        return [(name, np.shape(leaf), np.asarray(leaf).dtype) for name, leaf in leaves(record)]

    assert shapes(server) == shapes(at.server)
    assert [shapes(c) for c in clients] == [shapes(c) for c in at.clients]


@one_of_every_algorithm
def test_seed_matters(case: Case, even: Path) -> None:
    own = case.tables.get("model", BARE)
    objective = (
        {"name": "softmax", "bias": False} if own["name"] == "mlp" else own
    )  # one that starts at zero whatever the seed
    all_of_them = {"participation": people(even), "model": objective}  # so the draws are seen to differ
    seeds = [flat(model(even, case, 2, seed=seed, **all_of_them)) for seed in (1, 1, 2)]
    assert (seeds[0] == seeds[1]).all()
    assert case.drawn != np.allclose(seeds[0], seeds[2], rtol=1e-3, atol=1e-6)
    if own["name"] == "mlp":
        network = [flat(model(even, case, 0, seed=seed)) for seed in (1, 2)]
        assert not np.allclose(network[0], network[1])


@every_algorithm
def test_fused_is_the_sum_of_the_answers(case: Case, uneven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, at = ready(uneven, case, data={"path": str(uneven), "block": 3}, compute={"dtype": "float64"})
    server, clients = rounds(job, at, 0, 2)
    now = round_of(job, at.aggregator.clients, 2)
    for exchange in at.algorithm.exchanges:
        if getattr(exchange, "fused", None) is None:
            several_steps = case.hyper.get("local_steps", 1) > 1 or "local_epochs" in case.hyper
            each_has_its_own = any(leaves(clients[0])) or job.privacy is not None
            what = f"{exchange.name}: clients take one step on rows, so one product gives their sum: it needs `fused`"
            assert case.split != "rows" or several_steps or each_has_its_own, what
            continue
        question = exchange.ask(server, now)
        for i, some in enumerate(at.aggregator.blocks):
            answer = exchange.answer(clients[i], question, some, now)[1]
            total = map_leaves(lambda leaf: np.sum(leaf, axis=0), answer)
            for rows in (1, 1024):  # of one product: of one client after the other, and of all
                monkeypatch.setattr("mpifed.data.block._ROWS", rows)
                fused = exchange.fused(question, some, now)
                assert [(n, np.shape(a)) for n, a in leaves(fused)] == [(n, np.shape(a)) for n, a in leaves(total)]
                # float64 rounding over some hundred terms
                np.testing.assert_allclose(flat(fused), flat(total), rtol=1e-11, atol=1e-13)


@one_of_every_algorithm
def test_blocks_do_not_change_who_draws_what(case: Case, uneven: Path) -> None:
    alone, *together = (
        flat(model(uneven, case, data={"path": str(uneven), "block": size}, compute={"dtype": "float64"}))
        for size in (1, 3, 8)
    )
    for of_blocks in together:
        np.testing.assert_allclose(of_blocks, alone, rtol=0, atol=1e-10)  # other rows would differ by more than 1e-4


@one_of_every_algorithm
def test_streamed_shards_give_the_bits_of_shards_in_memory(case: Case, uneven: Path) -> None:
    memory, streamed = (model(uneven, case, data={"path": str(uneven), "memory_gib": gib}) for gib in (4.0, 0.0))
    assert bits(memory) == bits(streamed)


@every_algorithm
def test_questions_and_answers_have_the_declared_fields(case: Case, even: Path) -> None:
    job, at = ready(even, case)
    now = round_of(job, at.aggregator.clients, 0)._replace(present=everybody(job, at).present)
    server, clients = at.server, at.clients
    for exchange in (*at.algorithm.setup, *at.algorithm.exchanges):
        question, block = exchange.ask(server, now), at.aggregator.blocks[0]
        answer = exchange.answer(clients[0], question, block, now)[1]
        declared = [(n, field.shape) for n, field in leaves(exchange.fields)]
        assert declared == [(n, np.shape(leaf)[1:]) for n, leaf in leaves(answer)]
        assert [n for n, _ in leaves(fields_like(question))] == [n for n, _ in leaves(question)]
        assert set(exchange.told_by_columns) <= {n for n, _ in leaves(question)} | {"previous.first"}
        server, clients = play((exchange,), server, clients, now, at.aggregator)
