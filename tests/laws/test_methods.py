"""What every method must be: pure, keyed to its seed, resumable, indifferent to blocks; and what some must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import own_functions
import own_networks
import pytest
from ended import of_certificate, run
from forecasts import forecast
from jobs_in_python import checked
from lengths import long_unless
from methods import BARE, METHODS, PEOPLE_BY_CHANCE, SIZES, class_of, named
from registry import CASES, FEW, NAMES, Case, table

from mpifed.algorithms.local_method import LocalMethod
from mpifed.comm.rounds import play
from mpifed.comm.states import ClientStates
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Exchange
from mpifed.core.holdings import of_columns
from mpifed.core.lazy import Lazy
from mpifed.core.record import bare_leaves, leaves, map_leaves
from mpifed.core.round import SETUP, Round
from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.job.participation import returning, round_of
from mpifed.laws import pure
from mpifed.maths.objectives import MLP, OBJECTIVES, LinearScores, layout_of
from mpifed.maths.problem import fields_like
from mpifed.run.evaluation import measure
from mpifed.run.setup import Ready, prepare
from mpifed.testing import ALGORITHMS, Job, Played, Solo, check_algorithm, rounds

every_method = pytest.mark.parametrize("case", CASES, ids=NAMES)
one_of_every_method = pytest.mark.parametrize("case", [CASES[NAMES.index(name)] for name in FEW], ids=FEW)
short_of_every_method = pytest.mark.parametrize(
    "case", long_unless(lambda case: NAMES[CASES.index(case)] in FEW, CASES), ids=NAMES
)


@pytest.fixture
def even(case: Case, request: pytest.FixtureRequest) -> Path:
    """Clients who hold about the same."""
    folders = {"rows": "digits", "columns": "sides", "halves": "halves", "cells": "patches"}
    return Path(request.getfixturevalue(folders[case.split]))


@pytest.fixture
def uneven(case: Case, request: pytest.FixtureRequest) -> Path:
    """Clients who hold very different amounts."""
    folders = {"rows": "skewed", "columns": "scattered", "halves": "halves", "cells": "patchwork"}
    return Path(request.getfixturevalue(folders[case.split]))


def job_of(folder: Path, case: Case, /, **changes: Any) -> Job:
    """A job of 5 clients in a round, or all who are needed."""
    some = {} if case.everybody else {"clients_per_round": 5}
    return checked(table(folder, case.algorithm, **({"participation": some} | case.tables | changes)))


def everybody_of(folder: Path, case: Case) -> dict[str, Any]:
    """[participation] of everybody, which is also what clients who come by chance need."""
    if "asynchrony" in case.tables:
        return {}
    return {"participation": {"clients_per_round": open_federation(folder).clients}}


def bits(named: Any) -> list[Any]:
    return [(name, np.asarray(a).dtype.str, np.shape(a), np.asarray(a).tobytes()) for name, a in named]


def states(played: Played) -> list[Any]:
    return [bits(one.items()) for one in (played.model, played.server, *played.clients)]


def last(job: Job) -> Any:
    """[d] the model after its rounds."""
    *_, played = rounds(job)
    return np.concatenate([np.ravel(leaf).astype("f8") for leaf in played.model.values()])


def test_every_method_has_a_row_of_the_class_that_plays_it() -> None:
    """By its row of `METHODS`, whose columns all tables of methods are."""
    assert {named(row) for row in METHODS} == set(ALGORITHMS)
    for row, method in METHODS.items():
        assert method.reveals.attacks or row == "cocoa"  # whose sums alone tell no row
        assert class_of(row).accounts() == method.private == any("privacy" in tables for _, tables in method.cases)
        assert 0 <= method.short < len(method.cases) == len(method.single)


# --- laws ------------------------------------------------------------------------------------------------------------


@every_method
def test_the_laws_that_users_test_theirs_by(case: Case, uneven: Path) -> None:
    """Functions are pure, a client answers as alone, sums are those of the answers, states keep their shapes."""
    block = 1 if "label_holder" in case.hyper else 3  # in whose place nobody answers alone
    check_algorithm(job_of(uneven, case, data={"path": str(uneven), "block": block}, **everybody_of(uneven, case)))


@one_of_every_method
def test_measuring_changes_nothing_and_is_keyed_to_the_seed(case: Case, even: Path) -> None:
    """Nor do two starts, or two measurements, differ."""
    job = job_of(even, case)
    for bare, one, other in zip(rounds(job), rounds(job, measured=1), rounds(job, measured=1), strict=True):
        assert states(bare) == states(one) == states(other)
        assert repr(one.columns) == repr(other.columns)
        assert one.columns or not one.round


@one_of_every_method
def test_measures_are_pure(case: Case, uneven: Path) -> None:
    job = job_of(uneven, case, data={"path": str(uneven), "block": 3})
    at, server, clients = ready(job)
    before = bits(leaves(server))

    def twice(exchange: Exchange) -> Exchange:
        def answer(*given: Any) -> Any:
            states, upload = exchange.answer(*given)  # type: ignore[misc]
            return states, upload.made() if isinstance(upload, Lazy) else upload

        functions = {name: getattr(exchange, name) for name in ("ask", "absorb", "hear")} | {"answer": answer}
        there = {name: function for name, function in functions.items() if getattr(exchange, name)}
        return replace(exchange, **{name: partial(pure, exchange.name, function) for name, function in there.items()})

    for one in at.algorithm.measures:
        begun = [one.start_clients(block, clients.take(i)) for i, block in enumerate(at.ranks.blocks)]
        found, states = one.start(server), ClientStates(clients.first, begun.__getitem__)
        for _ in range(one.turns):
            found, states = play(
                [twice(each) for each in one.exchanges], found, states, everybody(job, at), at.ranks, measured=True
            )
        first = one.first(server, found) if one.first else {}
        assert one.report(server, found, first) == one.report(server, found, first)
    assert bits(leaves(server)) == before


@one_of_every_method
def test_seed_matters(case: Case, even: Path) -> None:
    own = case.tables.get("model", BARE)
    zeros = {"name": "softmax", "bias": False} if own["name"] == "mlp" else own  # the same start whatever the seed
    more = {"model": zeros, "rounds": 2, **everybody_of(even, case)}  # so that the draws are seen to differ
    one, again, other = (last(job_of(even, case, seed=seed, **more)) for seed in (1, 1, 2))
    assert (one == again).all()
    assert case.drawn != np.allclose(one, other, rtol=1e-3, atol=1e-6)
    if own["name"] == "mlp":
        starts = [next(rounds(job_of(even, case, seed=seed))) for seed in (1, 2)]
        assert states(starts[0]) != states(starts[1])


@short_of_every_method
def test_runs_are_resumable(case: Case, uneven: Path, tmp_path: Path) -> None:
    """Through files, in two parts; the end of the first part is certified besides."""
    job = job_of(uneven, case, record={"evaluate_every": 1}, rounds=4)
    run(job, Solo(), tmp_path / "whole")
    for rounds_ in (2, 4):
        run(job_of(uneven, case, record={"evaluate_every": 1}, rounds=rounds_), Solo(), tmp_path / "parts",
            resume=rounds_ > 2)  # fmt: skip
    names = ("model_sha256", "rounds", "exit", "objective", "kkt_residual", "constraint_values", "up_bytes")
    whole, parts = (summary(tmp_path / name) for name in ("whole", "parts"))
    assert [parts[name] for name in names] == [whole[name] for name in names]
    one, other = (read_history(tmp_path / name) for name in ("whole", "parts"))
    assert list(one) == list(other)
    for name in one.keys() - {"elapsed_s", "rss_bytes"}:
        at = [0, 1, 3, 4] if of_certificate(name) else slice(None)
        np.testing.assert_array_equal(one[name][at], other[name][at], err_msg=name)


@one_of_every_method
def test_blocks_and_memory_do_not_change_who_draws_what(case: Case, uneven: Path) -> None:
    """Nor any bit where clients have columns; of rows, large products may round otherwise; streams never do."""
    rows = case.split in ("rows", "halves")
    compute = {"dtype": f"float{32 << rows}"}
    alone, *together = (
        last(job_of(uneven, case, data={"path": str(uneven), "block": size}, compute=compute)) for size in (1, 3, 8)
    )
    for of_blocks in together:  # other rows would differ by more than 1e-4
        np.testing.assert_allclose(of_blocks, alone, rtol=0, atol=1e-10 if rows else 0)
    memory, streamed = (last(job_of(uneven, case, data={"path": str(uneven), "memory_gib": gib})) for gib in (4.0, 0.0))
    np.testing.assert_array_equal(memory, streamed)


def ready(job: Job) -> tuple[Ready, Any, Any]:
    """Everything that a run needs, and its state after two rounds."""
    at = prepare(job, Solo())
    state = play(at.algorithm.setup, at.server, at.clients, everybody(job, at), at.ranks)
    for index in range(2):
        state = play(at.algorithm.exchanges, *state, round_at(job, at, index), at.ranks)
    return at, *state


def everybody(job: Job, at: Ready) -> Round:
    return Round(SETUP, job.seed, np.ones(at.ranks.clients, dtype=bool))


def round_at(job: Job, at: Ready, index: int) -> Round:
    return returning(job, round_of(job, at.ranks.clients, index))


@every_method
def test_exchanges_have_the_fields_that_they_declare_and_totals_that_are_sums(
    case: Case, uneven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(uneven, case, data={"path": str(uneven), "block": 3}, compute={"dtype": "float64"})
    at, server, clients = ready(job)
    setup = [(exchange, everybody(job, at)) for exchange in at.algorithm.setup]
    for exchange, now in (*setup, *((exchange, round_at(job, at, 2)) for exchange in at.algorithm.exchanges)):
        question = exchange.ask(server, now)
        assert [n for n, _ in leaves(fields_like(question))] == [n for n, _ in leaves(question)]
        assert set(of_columns(question)) <= {n for n, _ in leaves(question)} | {"previous.first", "w"}  # may be absent
        for i, block in enumerate(at.ranks.blocks if exchange.answer else ()):
            upload = exchange.answer(clients.take(i), question, block, now)[1]  # type: ignore[misc]
            at_once = upload.total if isinstance(upload, Lazy) else None  # before its rows are made
            rows = upload.made() if isinstance(upload, Lazy) else upload
            declared = [(n, field.shape) for n, field in leaves(exchange.fields)]
            assert declared == [(n, np.shape(leaf)[1:]) for n, leaf in leaves(rows)]
            if at_once is None:
                several_steps = case.hyper.get("local_steps", 1) > 1 or "local_epochs" in case.hyper
                each_has_its_own = any(leaves(clients.take(0))) or job.privacy is not None
                what = f"{exchange.name}: of one step on rows, one product gives the sum: it needs `total`"
                assert case.split != "rows" or now.index == SETUP or several_steps or each_has_its_own, what
                break
            total = map_leaves(lambda leaf: np.sum(leaf, axis=0), rows)
            for number in (1, 1024):  # of one product: of one client after the other, and of all
                monkeypatch.setattr("mpifed.data.block._ROWS", number)
                for (name, one), (_, leaf) in zip(leaves(at_once()), leaves(total), strict=True):
                    assert np.shape(one) == np.shape(leaf)
                    # float64 rounding over some hundred terms
                    np.testing.assert_allclose(one, leaf, rtol=1e-11, atol=1e-13, err_msg=name)
        server, clients = play((exchange,), server, clients, now, at.ranks)


def test_what_uploads_have_in_common_is_added_with_the_same_bits(skewed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few clients at a time, of which each counts the same, with penalties and intercepts."""
    monkeypatch.setattr("mpifed.algorithms.rows._NUMBERS", 0)
    job = job_of(skewed, CASES[NAMES.index("fedavg-0")], participation={}, model=BARE | {"bias": True, "l2": 0.1})
    at, server, clients = ready(job)
    vars(at.algorithm.guard)["weights"] = np.ones(at.ranks.clients)  # type: ignore[attr-defined]
    (exchange,) = at.algorithm.exchanges
    now = round_at(job, at, 2)
    for i, some in enumerate(at.ranks.blocks):
        upload = exchange.answer(clients.take(i), exchange.ask(server, now), some, now)[1]  # type: ignore[misc]
        for (who, part), (same, apart, common) in zip(upload.parts(), upload.apart(), strict=True):
            assert np.array_equal(who, same)
            assert all(map(np.array_equal, part, map(np.add, apart, common)))


# but for clients who take part by coins of their own: how many will is known to nobody
COUNTED = [name for name, case in zip(NAMES, CASES, strict=True) if case.tables is not PEOPLE_BY_CHANCE]


@pytest.mark.parametrize("name", long_unless(FEW.__contains__, COUNTED))
def test_bytes_before_and_after(name: str, request: Any, write_job: Callable[..., Path], tmp_path: Path) -> None:
    """`mpifed check` says the bytes that a run then counts."""
    case = CASES[NAMES.index(name)]
    folders = {"rows": "digits", "columns": "scattered", "halves": "halves", "cells": "patches"}
    folder = request.getfixturevalue(folders[case.split])
    path = write_job(tmp_path / "job.toml", table(folder, case.algorithm, **case.tables))
    said = forecast(path, (), 1)
    run(Job.read(path), Solo(), tmp_path / "run")
    counted = summary(tmp_path / "run")
    assert (said["up_bytes"], said["down_bytes"]) == (counted["up_bytes"], counted["down_bytes"])


# --- methods of local steps ------------------------------------------------------------------------------------------

ADAPTIVE = [{"name": name} for name in ("adam", "yogi", "adagrad")]
OPTIMIZERS: dict[str, list[dict[str, Any]]] = {
    "client_optimizer": [{"clip_norm": 0.5}, {"local_schedule": {"initial": 1.0}}, {"name": "adamw"}],
    "server_optimizer": [{"momentum": 0.5}, *ADAPTIVE],
}


@pytest.mark.parametrize("name", [name for name in METHODS if issubclass(class_of(name), LocalMethod)])
def test_an_optimizer_is_played_or_refused(digits: Path, name: str) -> None:
    """In finite numbers, or in words."""
    settings = {**(METHODS[name].least or {}), "name": name, "batch_size": 7}
    for key, optimizers in OPTIMIZERS.items():
        for optimizer in optimizers:
            own = {"client_optimizer": {"learning_rate": 0.1}} | {key: {"learning_rate": 0.1, **optimizer}}
            try:
                assert np.isfinite(last(checked(table(digits, {**settings, **own}, rounds=1)))).all()
            except UsageError as error:
                assert f"[{key}]" in str(error)


# --- methods on columns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in CASES if "label_holder" in case.hyper], ids=str)
def test_only_the_holders_labels_matter(case: Case, scattered: Path) -> None:
    """Nor who holds them, nor who sends the head's gradient: in rounds, the set-up and all that is measured."""
    everybodys = {key: value for key, value in case.algorithm.items() if key != "label_holder"}

    def played(algorithm: dict[str, Any], wrong: bool) -> tuple[Any, dict[str, Any]]:
        job = checked(table(scattered, algorithm, compute={"dtype": "float64"}, **case.tables))
        at = prepare(job, Solo())
        for shard in (shard for block in at.ranks.blocks for shard in block.shards):
            if wrong and shard.client != case.hyper["label_holder"]:
                shard.y = (shard.y + 1 + shard.client) % 10
        now = everybody(job, at)
        server, clients = play(at.algorithm.setup, at.server, at.clients, now, at.ranks)
        for t in range(3):
            server, clients = play(at.algorithm.exchanges, server, clients, now._replace(index=t), at.ranks)
        where = at.ranks.blocks, clients, now._replace(index=2), at.ranks
        return at.algorithm.model(server), measure(at.algorithm.measures, at.algorithm, server, *where)[0]

    expected, columns = played(case.algorithm, wrong=False)
    found, again = played(case.algorithm, wrong=True)
    assert again == columns and bits(leaves(found)) == bits(leaves(expected))
    found, again = played(everybodys, wrong=False)
    for (_, one), (_, other) in zip(leaves(found), leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)  # what the holder tells is rounded
    assert again.keys() == columns.keys()
    for name, value in columns.items():
        assert again[name] == (None if value is None else pytest.approx(value, rel=1e-6, abs=1e-8)), name
    assert not np.array_equal(played(everybodys, wrong=True)[0].first, expected.first)  # there they do matter


LIMITS = {"constraint": [{"name": "loss", "classes": [1, 2], "limit": 1.0}]}


@pytest.mark.parametrize(("algorithm", "tables"), [
    ({"name": "ssca", **SIZES, "slack_cost": 20.0}, LIMITS),
    ({"name": "vertical-sgd", "batch_size": 7, "server_optimizer": {"learning_rate": 0.5}}, {}),
])  # fmt: skip
def test_data_of_one_client_give_the_same(
    algorithm: Any, tables: Any, scattered: Path, make_data: Any, tmp_path: Path
) -> None:
    """Rounds are those of somebody who has all columns."""
    whole = make_data(tmp_path / "whole", "digits", "--split", "columns", "--clients", "1")
    jobs = [checked(table(folder, algorithm, compute={"dtype": "float64"}, **tables)) for folder in (whole, scattered)]
    (*_, one), (*_, other) = (rounds(job, measured=4) for job in jobs)
    for name, leaf in one.model.items():
        np.testing.assert_allclose(other.model[name], leaf, rtol=0, atol=1e-9)  # sums are multiples of 2^-40
    for column in ("objective", "train_loss", "kkt_residual"):
        assert other.columns[column] == pytest.approx(one.columns[column], rel=1e-7)


# --- every model as one vector ---------------------------------------------------------------------------------------

MODELS = {
    f"{name}, {'penalized ' * every}{'bias' if bias else 'none'}": kind(bias=bias, penalize_bias=every)
    for name, kind in OBJECTIVES.items()
    if issubclass(kind, LinearScores)
    for bias, every in ((False, False), (True, False), (True, True))
} | {
    "of one's own, from ours": own_functions.MLP(bias=True),
    "of one's own, linear": own_functions.Absolute(),
    "of one's own, with a head": own_functions.Deep(),
    "a network of one's own": own_networks.Hidden(),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("objective", MODELS.values(), ids=MODELS)
def test_layers_are_the_leaves(objective: Any, dtype: str) -> None:
    """By name those that `start` gives, bit for bit, and none is a copy."""
    model, rng = objective.start(6, 3, np.random.default_rng(0), dtype), np.random.default_rng(1)
    layout = layout_of(objective, model)
    model = map_leaves(lambda leaf: rng.standard_normal(leaf.shape).astype(dtype), model)
    x = layout.flat(model)
    assert bits(zip(layout.shapes, layout.views(x), strict=True)) == bits(leaves(model))
    counted = bare_leaves(objective.penalized(model))
    assert [layout.at[name].stop <= layout.penalized.stop for name in layout.shapes] == counted
    for each in bare_leaves(layout.record(x, model)):
        each[...] = 7
    assert (x == 7).all()


def test_intercepts_stand_at_the_end() -> None:
    model = MLP(4, bias=True).start(6, 3, np.random.default_rng(0), "float32")
    layout = layout_of(MLP(4, bias=True), model)
    assert (layout.at["first"].start, layout.at["head.hidden_bias"].start) == (0, layout.penalized.stop)
    assert layout_of(MLP(4, bias=True, penalize_bias=True), model).penalized == slice(0, layout.size)
