"""Synchronous rounds over an unsteady network against a simulation of events that shares the draws alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from heapq import heapify, heappop
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import PRIVATE, away, gradient_of, local_job, minibatches, played, present, rows_of, start_of
from whole_runs import run

from mpifed.core.errors import DataError, UsageError
from mpifed.core.round import Round, uniform
from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.files.json_file import read_json
from mpifed.files.run_folder import summary
from mpifed.forecast.job import forecast
from mpifed.job.arrivals import available, delays
from mpifed.job.schema import SimulatedNetwork
from mpifed.testing import Job, Solo, rounds

ROUNDS, MESSAGE = 40, (650 + 1) * 8  # a model in float64, and its weight or its step
HYPER = {"name": "fedavg", "batch_size": 4, "local_steps": 2, "client_optimizer": {"learning_rate": 0.1}}
FOUR = {"clients_per_round": 4}
SGD = {"batch_size": 4, "client_optimizer": {"learning_rate": 0.1}}
EF21 = {"name": "top-k", "k": 3, "memory": "ef21"}
LOST = {"delay_s": 1.0, "delay_spread": 0.5, "loss": 0.3, "deadline_s": 3.0}
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lost": (LOST, FOUR),
    "nearly all lost": (LOST | {"loss": 0.9}, {}),
    "the first of many": ({"delay_s": 1.0, "delay_spread": 1.5, "over_selection": 1.4}, FOUR),
    "the first of equals": ({"delay_s": 1.0, "over_selection": 2.0}, FOUR),
    "a deadline": ({"delay_s": 1.0, "client_spread": 1.0, "deadline_s": 1.5}, {}),
    "away by chance": ({"delay_s": 1.0, "availability": 0.3}, FOUR),
    "long away": ({"delay_s": 1.0, "availability": 0.05, "mean_absence": 30.0}, {}),
    "all": (LOST | {"availability": 0.7, "mean_absence": 4.0, "over_selection": 1.5}, FOUR),
    "all, few may be missing": (LOST | {"availability": 0.9}, {"clients_per_round": 8, "max_dropouts": 3}),
}


def job(folder: Path, name: str, **tables: Any) -> Job:
    network, part = NETWORKS[name]
    record = {"evaluate_every": 1, "checkpoint_every": 0}
    given = {"rounds": ROUNDS, "simulated_network": network, "participation": part, "record": record}
    return local_job(folder, HYPER, **(given | tables))


def round_by_events(task: Job, asked: list[int], t: int) -> tuple[list[int], int, float]:
    """(whose answers count, how many are too late, seconds) of round t = 1, 2, ..."""
    network, turn = task.simulated_network, Round(t - 1, task.seed, np.zeros(0, bool))
    assert network is not None
    who = np.array(asked, int)
    gone = uniform(turn.words_of_clients("loss", who).view(np.uint64)) < network.loss
    by_chance = turn.words_of_clients("first", who).tolist()
    seconds = delays(network, task.seed, t - 1, who).tolist()
    events = [event for event, lost in zip(zip(seconds, by_chance, asked, strict=True), gone, strict=True) if not lost]
    heapify(events)
    until = network.deadline_s or (network.delay_s if not asked else None)
    wanted, counted = min(task.participation.clients_per_round or len(asked), len(asked)), list[int]()
    while events and len(counted) < wanted and (until is None or events[0][0] <= until):
        clock, _, client = heappop(events)
        counted.append(client)
    if asked and len(counted) == wanted:
        until = clock
    assert until is not None
    return sorted(counted), len(events), until


@pytest.mark.parametrize("name", NETWORKS)
def test_a_simulation_of_events(digits: Path, tmp_path: Path, name: str) -> None:
    """The same model to rounding; seconds, bytes and who is asked as they are; `check` knows the bytes before."""
    task, data = job(digits, name), rows_of(digits)
    network, part, N = task.simulated_network, task.participation, len(data)
    assert network is not None
    gradient, x, there = gradient_of(task, 10), start_of(task), away(task, N)
    clock, up, down, passing, most = [0.0], [0], [0], 0, part.max_dropouts
    for t in range(1, ROUNDS + 1):
        asked, here = present(task, N, t), there(t - 1)
        enough = len(here) >= (2 * most + 2 if most else 1)
        of = int(np.ceil((part.clients_per_round or N) * network.over_selection - 1e-9)) if enough else 0
        assert set(asked) <= here and len(asked) == min(of, len(here))
        counted, late, seconds = round_by_events(task, asked, t)
        clock.append(clock[-1] + seconds)
        up.append(up[-1] + MESSAGE * (len(counted) + late))
        down.append(down[-1] + MESSAGE * len(asked))
        if not counted or (most and len(asked) - len(counted) > most):
            passing += 1
            continue
        moved, weight = np.zeros_like(x), sum(len(data[i][1]) for i in counted)
        for i in counted:
            (X, y), y_i = data[i], x
            for batch in minibatches(task, i, len(y), t):
                y_i = y_i - 0.1 * gradient(y_i, X[batch], y[batch])
            moved += len(y) / weight * (y_i - x)
        x = x + moved
    run(task, Solo(), tmp_path / "run")
    history = read_history(tmp_path / "run")
    np.testing.assert_allclose(played(task).model, x, rtol=0, atol=1e-9)
    np.testing.assert_allclose(history["simulated_s"], clock)
    assert (np.diff(history["simulated_s"]) > 0).all()
    assert (history["up_bytes"].tolist(), history["down_bytes"].tolist()) == (up, down)
    said = forecast(task, 1)
    assert (said["up_bytes"], said["down_bytes"]) == (up[-1], down[-1])
    assert any(f"in {passing} of {ROUNDS} too few" in warning for warning in said["warnings"])
    assert bool(passing) == (name in ("nearly all lost", "long away", "all, few may be missing")) or name == "all"


def test_what_is_the_same_in_every_channel(digits: Path, tmp_path: Path) -> None:
    """Lost answers are dropouts of masks, and ciphertexts that never come; `check` knows the bytes."""
    hashes = set()
    for security in ("plain", "masked", "encrypted"):
        task, out = (
            job(digits, "all, few may be missing", aggregation={"security": security}, rounds=12),
            tmp_path / security,
        )
        run(task, Solo(), out)
        found, said = read_json(out / "run.json"), forecast(task, 1)
        hashes.add((out / "model.safetensors").read_bytes()[-5000:])
        assert [found[key] for key in ("up_bytes", "down_bytes")] == [said[key] for key in ("up_bytes", "down_bytes")]
    assert len(hashes) == 1


@pytest.mark.launch
def test_the_same_bits_on_any_number_of_ranks(digits: Path, tmp_path: Path, write_job: Any, launch: Any) -> None:
    """One run on one rank; another that begins on two, and goes on on three."""
    path, ends = write_job(tmp_path / "job.toml", job(digits, "all").table()), list[Any]()
    for out, legs in ("one", [(None, ROUNDS)]), ("more", [(2, 15), (3, ROUNDS)]):
        for ranks, to in legs:
            resume = ["--resume"] if (tmp_path / out).exists() else []
            ended = launch(ranks, "run", path, "--out", tmp_path / out, "--set", f"rounds={to}", *resume)
            assert ended.code == 0, ended.text
        found = summary(tmp_path / out)
        ends.append([found[key] for key in ("model_sha256", "simulated_s", "up_bytes", "down_bytes")])
    assert ends[0] == ends[1]


def test_where_no_answer_ever_comes(digits: Path, tmp_path: Path) -> None:
    run(job(digits, "a deadline", simulated_network={"delay_s": 1.0, "deadline_s": 0.5}), Solo(), tmp_path / "run")
    said = read_json(tmp_path / "run" / "run.json")
    assert any("no round had enough answers" in warning for warning in said["warnings"])
    assert said["simulated_s"] == ROUNDS * 0.5


def test_how_often_and_how_long_clients_are_away() -> None:
    for a, L in (0.8, 2.0), (0.3, 10.0), (0.3, 1 / 0.3), (0.5, 100.0):
        network = SimulatedNetwork(availability=a, mean_absence=L)
        states = np.array([available(network, 5, 1000, t) for t in range(300)])
        assert states.mean() == pytest.approx(a, abs=0.03)
        came, went = (states[1:] & ~states[:-1]).sum(), (~states[1:] & states[:-1]).sum()
        assert (~states[:-1]).sum() / came == pytest.approx(L, rel=0.1)
        assert states[:-1].sum() / went == pytest.approx(a * L / (1 - a), rel=0.1)
    np.testing.assert_array_equal(states, [available(network, 5, 1000, t) for t in range(300)])


# --- traces ----------------------------------------------------------------------------------------------------------

HEADER = "client,first,last\n"


def traced(folder: Path, trace: Path, text: str, **tables: Any) -> Job:
    trace.write_text(text)
    return local_job(folder, HYPER, **({"rounds": 8, "simulated_network": {"trace": str(trace)}} | tables))


def test_a_trace_says_who_is_there(digits: Path, tmp_path: Path) -> None:
    lines = "2,1,3\n2,3,4\n0, 4,4\n7,6,100\n"
    task = traced(digits, tmp_path / "trace.csv", HEADER + lines)
    there: list[list[int]] = [[2], [2], [2], [0, 2], [], [7], [7], [7]]
    N = open_federation(digits).clients
    assert [present(task, N, t) for t in range(1, 9)] == there
    models = [played.model for played in rounds(task)]
    same = [all((a[name] == b[name]).all() for name in a) for a, b in pairwise(models)]
    assert same == [not who for who in there]
    tables = {"asynchrony": {"buffer": 1, "concurrency": 2}, "rounds": 6}
    late = traced(digits, tmp_path / "late.csv", HEADER + lines, **tables, simulated_network={
        "trace": str(tmp_path / "late.csv"), "delay_s": 2.0})  # fmt: skip
    assert [present(late, N, t) for t in range(1, 7)] == [[2], [2], [2], [0], [2], [7]]


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".own"))
    path.symlink_to(path.with_suffix(".own"))


@pytest.mark.parametrize(("spoil", "said"), [
    (lambda path: path.unlink(), "No such file"),
    (linked, "is a link, which is not followed"),
    (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    (lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()), "codec can't decode"),
    (lambda path: path.write_text(""), "has no client"),
    (lambda path: path.write_text(HEADER), "has no client"),
    (lambda path: path.write_text("0,1,2\n1,1,2\n"), "begins with '0,1,2'"),
    (lambda path: path.write_text(HEADER + "0,1\n"), "expected 3, got 2"),
    (lambda path: path.write_text(HEADER + "0,1,2\n1,1\n"), "number of columns changed"),
    (lambda path: path.write_text(HEADER + "0,1,2\n1,one,2\n"), "'one' to int64"),
    (lambda path: path.write_text(HEADER + "0,1,nan\n"), "'nan' to int64"),
    (lambda path: path.write_text(HEADER + f"0,1,{10**30}\n"), "to int64"),
    (lambda path: path.write_text(HEADER + "0,1,2\n0,0,2\n"), "says 0,0,2"),
    (lambda path: path.write_text(HEADER + "0,5,2\n"), "says 0,5,2"),
    (lambda path: path.write_text(HEADER + "-1,1,2\n"), "says -1,1,2"),
    (lambda path: path.write_text(HEADER + "99,1,2\n"), "has a client 99, and"),
    (lambda path: path.write_text(HEADER + "0,1,3\n"), "after round 3 nobody who could start is there any more"),
])  # fmt: skip
def test_traces_that_are_none(digits: Path, tmp_path: Path, spoil: Callable[[Path], object], said: str) -> None:
    path = tmp_path / "trace.csv"
    late = {"trace": str(path), "delay_s": 1.0}
    asynchrony = {"buffer": 1, "concurrency": 1}
    task = traced(digits, path, HEADER + "0,1,9\n", simulated_network=late, asynchrony=asynchrony)
    forecast(task, 1)  # though it was read before
    spoil(path)
    with pytest.raises((DataError, UsageError), match=re.escape(said)):
        run(task, Solo(), tmp_path / "run")
    with pytest.raises((DataError, UsageError), match=re.escape(said)):
        forecast(task, 1)


def test_a_run_is_resumed_with_its_own_trace(digits: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "trace.csv", tmp_path / "run"
    run(traced(digits, path, HEADER + "0,1,9\n", rounds=2), Solo(), out)
    with pytest.raises(UsageError, match=r"--resume with other \[simulated_network\] trace"):
        run(traced(digits, path, HEADER + "0,1,8\n", rounds=4), Solo(), out, resume=True)
    run(traced(digits, path, HEADER + "0,1,9\n", rounds=4), Solo(), out, resume=True)


# --- what does not go together ---------------------------------------------------------------------------------------

TIMED = {"delay_s": 1.0, "delay_spread": 0.5, "deadline_s": 2.0}
MASKED = {"aggregation": {"security": "masked"}}
FEW_MASKED = MASKED | {"participation": FOUR | {"max_dropouts": 3}}


@pytest.mark.parametrize(("network", "tables", "said"), [
    ({"availability": 0.0}, {}, "availability = 0.0: expected a number of at least 0.01"),
    ({"availability": 1.1}, {}, "availability = 1.1: expected a number of at most 1"),
    ({"availability": float("nan")}, {}, "availability"),
    ({"availability": 0.5, "mean_absence": 1.5}, {}, "who is away is so for 2 rounds at least"),
    ({"availability": 0.5, "mean_absence": 101.0}, {}, "mean_absence = 101.0: expected a number of at most 100"),
    ({"mean_absence": 5.0, "delay_s": 1.0}, {}, "give availability below 1"),
    ({"availability": 0.5, "trace": "trace.csv"}, {}, "trace and availability: each says who is there"),
    ({"trace": ""}, {}, "trace"),
    ({"availability": 0.5, "latency_s": 0.1}, {}, "up_bytes_per_s, down_bytes_per_s: missing"),
    ({"availability": 0.5, "loss": 0.1}, {}, "of delays, of which there are none"),
    ({"delay_s": 1.0, "loss": 0.1}, {}, "a round would wait for ever"),
    ({"delay_s": 1.0, "loss": 1.0, "deadline_s": 2.0}, {}, "loss = 1.0: expected a number of at most 0.99"),
    ({"delay_s": 1.0, "deadline_s": 0.0}, {}, "deadline_s = 0.0"),
    (TIMED | {"speeds": [1.0]}, {}, "delay_s and speeds: a delay has the whole time"),
    (TIMED | {"over_selection": 1.5}, {}, "all clients are asked already"),
    (TIMED | {"over_selection": 0.5}, {}, "over_selection = 0.5: expected a number of at least 1"),
    (TIMED | {"over_selection": 4.0}, {"participation": FOUR}, "clients; lower it, or over_selection"),
    (TIMED, {"participation": {"dropout_rate": 0.1, "max_dropouts": 2}}, "says whose answers do not come"),
    (TIMED, {"asynchrony": {"buffer": 2, "concurrency": 3}}, "the first answers fill the buffer"),
    (TIMED, MASKED, "of which there will be 1 or more"),
    (TIMED | {"over_selection": 2.0}, FEW_MASKED, "of which there will be 4 or more"),
    (TIMED, PRIVATE["gradients"], "no accounting is proven of clients who are away"),
    ({"availability": 0.5}, PRIVATE["gradients"], "no accounting is proven of clients who are away"),
    ({"availability": 0.5}, {"algorithm": HYPER | {"name": "fedsplit", "s": 1.0}}, "needs all"),
    (TIMED, {"algorithm": {"name": "proxskip", "p": 0.5, **SGD}}, "must hear what became of their uploads"),
    ({"availability": 0.5}, {"algorithm": {"name": "tamuna", "p": 0.5, **SGD}}, "must have equally many clients"),
    ({"availability": 0.5}, {"algorithm": HYPER | {"name": "scaffold"}, "compression": EF21}, "that of all is known"),
])  # fmt: skip
def test_refused(digits: Path, network: dict[str, Any], tables: dict[str, Any], said: str) -> None:
    given = {"algorithm": HYPER, "simulated_network": network} | tables
    with pytest.raises(UsageError, match=re.escape(said)):
        next(rounds(local_job(digits, given.pop("algorithm"), **given)))
