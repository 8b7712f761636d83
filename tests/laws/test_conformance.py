"""What every algorithm of the registry must be: pure, resumable, keyed to its seed, indifferent to blocks and sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from ended import of_certificate, run
from jobs_in_python import checked
from lengths import long_unless
from methods import BARE, METHODS, class_of, named
from registry import CASES, FEW, NAMES, Case, table

from mpifed.comm.rounds import Ranks, play
from mpifed.comm.states import ClientStates
from mpifed.core.exchange import Exchange, Lazy, States
from mpifed.core.holdings import of_columns
from mpifed.core.record import Record, leaves, map_leaves
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.job.participation import returning, round_of
from mpifed.maths.problem import fields_like
from mpifed.run.evaluation import measure
from mpifed.run.setup import Ready, prepare
from mpifed.testing import ALGORITHMS, Job, Solo

every_algorithm = pytest.mark.parametrize("case", CASES, ids=NAMES)
one_of_every_algorithm = pytest.mark.parametrize("case", [CASES[NAMES.index(name)] for name in FEW], ids=FEW)


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
    at = prepare(job, Solo())
    server, clients = play(at.algorithm.setup, at.server, at.clients, everybody(job, at), at.ranks)
    return job, at._replace(server=server, clients=clients)


def everybody(job: Job, at: Ready) -> Round:
    return Round(-1, job.seed, np.ones(at.ranks.clients, dtype=bool))


def people(folder: Path) -> dict[str, int]:
    """[participation] of everybody, which is also what clients who come by chance need."""
    return {"clients_per_round": open_federation(folder).clients}


def rounds(job: Job, at: Ready, first: int, last: int) -> tuple[Record, list[Record]]:
    """(server, clients) after rounds `first` to `last` - 1."""
    server, clients = at.server, at.clients
    for index in range(first, last):
        now = round_at(job, at, index)
        server, clients = play(at.algorithm.exchanges, server, clients, now, at.ranks)
    return server, clients


def round_at(job: Job, at: Ready, index: int) -> Round:
    return returning(job, round_of(job, at.ranks.clients, index))


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
    assert METHODS[row].reveals.attacks or row == "cocoa"  # whose sums alone tell no row
    assert kind.accounts() == method.private == any("privacy" in tables for _, tables in method.cases)
    assert 0 <= method.short < len(method.cases) == len(method.single)


# --- purity ------------------------------------------------------------------------------------------------------


def twice(function: Any, *arguments: Any) -> Any:
    """The result, the same both times; the records among the arguments stand."""
    records = [a for a in arguments if not isinstance(a, Block | Round)]
    before = [bits(a) for a in records]
    seen = bits(function(*arguments))
    second = function(*arguments)
    assert [bits(a) for a in records] == before, f"{function} changes what it is given"
    assert bits(second) == seen, f"{function} gives other bits the second time"
    return second


class Both(NamedTuple):
    clients: Any
    upload: Any


def made(upload: Any) -> Any:
    """The uploads of a block, all of them."""
    return upload.made() if isinstance(upload, Lazy) else upload


def called_twice(exchange: Exchange) -> Exchange:
    """The same, each of whose functions is called twice and must be pure; uploads are of the clients who are asked."""

    def answer(clients: Any, question: Any, block: Block, now: Round) -> Both:
        after, upload = exchange.answer(clients, question, block, now)  # type: ignore[misc]
        found = Both(after, made(upload))
        assert {len(leaf) for _, leaf in leaves(found.upload)} <= {len(block.clients)}
        return found

    functions = {name: getattr(exchange, name) for name in ("ask", "absorb", "hear") if getattr(exchange, name)}
    functions |= {"answer": answer} if exchange.answer else {}
    return replace(exchange, **{name: partial(twice, function) for name, function in functions.items()})


def play_twice(
    exchanges: Sequence[Exchange], server: Record, clients: States, now: Round, ranks: Ranks, measured: bool = False
) -> tuple[Record, States]:
    """`play`, each function of an algorithm called twice."""
    return play([called_twice(exchange) for exchange in exchanges], server, clients, now, ranks, measured)


@every_algorithm
def test_pure(case: Case, uneven: Path) -> None:
    some = {} if "asynchrony" in case.tables else {"participation": people(uneven)}
    job, at = ready(uneven, case, data={"path": str(uneven), "block": 3}, **some)
    server, clients = rounds(job, at, 0, 2)  # so that no state is trivial
    now = round_of(job, at.ranks.clients, 2)
    play_twice(at.algorithm.setup, server, clients, everybody(job, at), at.ranks)
    server, clients = play_twice(at.algorithm.exchanges, server, clients, now, at.ranks)
    twice(at.algorithm.model, server)
    for one in at.algorithm.measures:
        begun = [one.start_clients(*pair) for pair in zip(at.ranks.blocks, clients, strict=True)]
        found, states = one.start(server), ClientStates(clients.first, begun.__getitem__)
        before = bits(server)
        for _ in range(one.turns):
            found, states = play_twice(one.exchanges, found, states, everybody(job, at), at.ranks, measured=True)
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
    blocks, now = at.ranks.blocks, everybody(job, at)
    measure(at.algorithm.measures, at.algorithm, again, blocks, states, now, at.ranks)
    again, states = rounds(job, at._replace(server=again, clients=states), 1, 3)
    assert bits(again) == bits(server)
    assert [bits(c) for c in states] == [bits(c) for c in clients]


# --- states ------------------------------------------------------------------------------------------------------


@one_of_every_algorithm
def test_starts_are_functions_of_the_seed(case: Case, even: Path) -> None:
    one, two = (ready(even, case)[1] for _ in range(2))
    assert bits(one.server) == bits(two.server)
    assert [bits(c) for c in one.clients] == [bits(c) for c in two.clients]


@pytest.mark.parametrize("case", long_unless(lambda case: NAMES[CASES.index(case)] in FEW, CASES), ids=NAMES)
def test_runs_are_resumable(case: Case, uneven: Path, tmp_path: Path) -> None:
    """Through files, in two parts; the end of the first part is certified besides."""
    some = {} if case.everybody else {"clients_per_round": 5}
    tables = {"participation": some, **case.tables}
    job = table(uneven, case.algorithm, record={"evaluate_every": 1}, **tables)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(checked(job | {"rounds": 4}), Solo(), whole)
    run(checked(job | {"rounds": 2}), Solo(), parts)
    run(checked(job | {"rounds": 4}), Solo(), parts, resume=True)
    names = ("model_sha256", "rounds", "exit", "objective", "kkt_residual", "constraint_values", "up_bytes")
    assert [summary(parts)[name] for name in names] == [summary(whole)[name] for name in names]
    one, other = read_history(whole), read_history(parts)
    assert list(one) == list(other)
    for name in one.keys() - {"elapsed_s", "rss_bytes"}:
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
    some = {} if "asynchrony" in case.tables else {"participation": people(even)}
    all_of_them = {"model": objective, **some}  # so the draws are seen to differ
    seeds = [flat(model(even, case, 2, seed=seed, **all_of_them)) for seed in (1, 1, 2)]
    assert (seeds[0] == seeds[1]).all()
    assert case.drawn != np.allclose(seeds[0], seeds[2], rtol=1e-3, atol=1e-6)
    if own["name"] == "mlp":
        network = [flat(model(even, case, 0, seed=seed)) for seed in (1, 2)]
        assert not np.allclose(network[0], network[1])


@every_algorithm
def test_a_total_is_the_sum_of_the_uploads(case: Case, uneven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, at = ready(uneven, case, data={"path": str(uneven), "block": 3}, compute={"dtype": "float64"})
    server, clients = rounds(job, at, 0, 2)
    now = round_at(job, at, 2)
    for exchange in at.algorithm.exchanges:
        question = exchange.ask(server, now)
        for i, some in enumerate(at.ranks.blocks):
            upload = exchange.answer and exchange.answer(clients.take(i), question, some, now)[1]
            if not isinstance(upload, Lazy) or upload.total is None:
                several_steps = case.hyper.get("local_steps", 1) > 1 or "local_epochs" in case.hyper
                each_has_its_own = any(leaves(clients.take(0))) or job.privacy is not None
                what = f"{exchange.name}: of one step on rows, one product gives the sum: it needs `total`"
                assert case.split != "rows" or several_steps or each_has_its_own, what
                break
            at_once, total = upload.total, map_leaves(lambda leaf: np.sum(leaf, axis=0), made(upload))
            for rows in (1, 1024):  # of one product: of one client after the other, and of all
                monkeypatch.setattr("mpifed.data.block._ROWS", rows)
                fused = at_once()
                assert [(n, np.shape(a)) for n, a in leaves(fused)] == [(n, np.shape(a)) for n, a in leaves(total)]
                # float64 rounding over some hundred terms
                np.testing.assert_allclose(flat(fused), flat(total), rtol=1e-11, atol=1e-13)
        server, clients = play((exchange,), server, clients, now, at.ranks)


@pytest.mark.parametrize("case", [CASES[NAMES.index("fedavg-0")]], ids=["fedavg"])
def test_what_uploads_have_in_common_is_added_with_the_same_bits(
    case: Case, uneven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few clients at a time, of which each counts the same, with penalties and intercepts."""
    monkeypatch.setattr("mpifed.algorithms.rows._NUMBERS", 0)
    job, at = ready(uneven, case, participation={}, model={"name": "mlp", "hidden": 5, "l2": 0.1})
    vars(at.algorithm.guard)["weights"] = np.ones(at.ranks.clients)  # type: ignore[attr-defined]
    server, clients = rounds(job, at, 0, 2)
    (exchange,) = at.algorithm.exchanges
    now = round_at(job, at, 2)
    for i, some in enumerate(at.ranks.blocks):
        upload = exchange.answer(clients.take(i), exchange.ask(server, now), some, now)[1]  # type: ignore[misc]
        for (who, part), (same, apart, common) in zip(upload.parts(), upload.apart(), strict=True):
            assert np.array_equal(who, same)
            assert all(map(np.array_equal, part, map(np.add, apart, common)))


@one_of_every_algorithm
def test_blocks_do_not_change_who_draws_what(case: Case, uneven: Path) -> None:
    """Nor any bit where clients have columns; of rows, large products may round otherwise."""
    rows = case.split in ("rows", "halves")
    alone, *together = (
        flat(model(uneven, case, data={"path": str(uneven), "block": size}, compute={"dtype": f"float{32 << rows}"}))
        for size in (1, 3, 8)
    )
    for of_blocks in together:  # other rows would differ by more than 1e-4
        np.testing.assert_allclose(of_blocks, alone, rtol=0, atol=1e-10 if rows else 0)


@one_of_every_algorithm
def test_streamed_shards_give_the_bits_of_shards_in_memory(case: Case, uneven: Path) -> None:
    memory, streamed = (model(uneven, case, data={"path": str(uneven), "memory_gib": gib}) for gib in (4.0, 0.0))
    assert bits(memory) == bits(streamed)


@every_algorithm
def test_questions_and_answers_have_the_declared_fields(case: Case, even: Path) -> None:
    job, at = ready(even, case)
    now = round_of(job, at.ranks.clients, 0)
    now = now if now.arrivals is not None else now.only(everybody(job, at).present)
    server, clients = at.server, at.clients
    for exchange in (*at.algorithm.setup, *at.algorithm.exchanges):
        question, block = exchange.ask(server, now), at.ranks.blocks[0]
        if exchange.answer is not None:
            upload = made(exchange.answer(clients.take(0), question, block, now)[1])
            declared = [(n, field.shape) for n, field in leaves(exchange.fields)]
            assert declared == [(n, np.shape(leaf)[1:]) for n, leaf in leaves(upload)]
        assert [n for n, _ in leaves(fields_like(question))] == [n for n, _ in leaves(question)]
        may_be_absent = {"previous.first", "w"}
        assert set(of_columns(question)) <= {n for n, _ in leaves(question)} | may_be_absent
        server, clients = play((exchange,), server, clients, now, at.ranks)
