"""Rounds in virtual time, synchronous or not, against simulations of events that share the draws alone.

And who does a part of the local work: stragglers are those of FedProx's experiments (arXiv:1812.06127, Section 5.2).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import long_unless
from loops import Objective, close, local_job, played, present, rows_of, step_size
from whole_runs import run

import mpifed as mf
from mpifed.core.errors import DataError, UsageError
from mpifed.core.round import Round, uniform
from mpifed.files.history import read_history
from mpifed.files.json_file import read_json
from mpifed.forecast.job import forecast
from mpifed.job.arrivals import available, delays
from mpifed.job.participation import round_of, virtual_seconds
from mpifed.job.schema import SimulatedNetwork
from mpifed.testing import Job, Solo, minibatches, rounds

N = 8  # clients of `digits`
MESSAGE = (650 + 1) * 8  # a model in float64, and its weight or its step
HYPER = {"name": "fedavg", "batch_size": 4, "local_steps": 2, "client_optimizer": {"learning_rate": 0.1}}
EVERY = {"record": {"evaluate_every": 1, "checkpoint_every": 0}}


class Simulated:
    """What clients do, and what becomes of their answers."""

    def __init__(self, task: Job) -> None:
        assert task.simulated_network is not None
        self.task, self.network, self.data, objective = (
            task,
            task.simulated_network,
            rows_of(task.data.path),
            Objective(task),
        )
        self.gradient, self.start, self.periods = objective.gradient, objective.start, list[Any]()

    def there(self, period: int) -> set[int]:
        """Who is there by `availability` and `mean_absence`: two states, one period after the other."""
        a, absence = self.network.availability, self.network.mean_absence or 1 / self.network.availability
        while len(self.periods) <= period:
            turn = Round(len(self.periods), self.task.seed, np.zeros(0, bool))
            u = uniform(turn.words_of_clients("availability", np.arange(len(self.data))).view(np.uint64))
            stays, comes = u < 1 - (1 - a) / a / absence, u < 1 / absence
            self.periods.append(np.where(self.periods[-1], stays, comes) if self.periods else u < a)
        return set(np.flatnonzero(self.periods[period]).tolist())

    def walk(self, i: int, t: int, x: Any, step: float, rho: float = 0.0) -> Any:
        """Where client i's steps of round t end that begin at x."""
        (X, y), at = self.data[i], x
        for batch in minibatches(self.task, t, i):
            at = at - step * (self.gradient(at, X[batch], y[batch]) + rho * (at - x))
        return at

    def lost(self, words: Any) -> Any:
        return uniform(words) < self.network.loss

    def round(self, asked: list[int], t: int) -> tuple[list[int], int, float]:
        """(whose answers count, how many are too late, seconds) of the synchronous round t = 1, 2, ..."""
        turn, who = Round(t - 1, self.task.seed, np.zeros(0, bool)), np.array(asked, int)
        gone = self.lost(turn.words_of_clients("loss", who).view(np.uint64))
        by_chance = turn.words_of_clients("first", who).tolist()
        seconds = delays(self.network, self.task.seed, t - 1, who).tolist()
        events = [one for one, lost in zip(zip(seconds, by_chance, asked, strict=True), gone, strict=True) if not lost]
        heapify(events)
        until = self.network.deadline_s or (self.network.delay_s if not asked else None)
        wanted, counted = min(self.task.participation.clients_per_round or len(asked), len(asked)), list[int]()
        while events and len(counted) < wanted and (until is None or events[0][0] <= until):
            clock, _, client = heappop(events)
            counted.append(client)
        if asked and len(counted) == wanted:
            until = clock
        assert until is not None
        return sorted(counted), len(events), until

    def rounds(self) -> tuple[list[tuple[float, list[int], list[int]]], Counter[str]]:
        """(seconds, who, models) of each asynchronous round, and how many answers were lost or late."""
        table, seed, found = self.task.asynchrony, self.task.seed, []
        assert table is not None
        events: list[tuple[float, int, int, int, bool]] = []
        idle, buffer, asked, counted = set(range(len(self.data))), dict[int, int](), 0, Counter[str]()
        clock, unit = 0.0, self.network.delay_s or 0.0
        while len(found) < self.task.rounds:
            period = int(Fraction(clock) / Fraction(unit))
            while (some := sorted(idle & self.there(period))) and len(events) < table.concurrency:
                turn = Round(asked, seed, np.zeros(0, bool))
                who = some[int(uniform(turn.words("who starts", -1)(1))[0] * len(some))]
                (delay,) = delays(self.network, seed, asked, np.array([who])).tolist()
                gone = self.lost(turn.words("loss", -1)(1))[0]
                heappush(events, (clock + delay, asked, who, len(found), gone))
                idle.remove(who)
                asked += 1
            clock = min([event[0] for event in events[:1]] + [(period + 1) * unit])
            while events and events[0][0] == clock:
                _, _, who, version, gone = heappop(events)
                if gone or len(found) - version > table.max_staleness:
                    counted["lost" if gone else "late"] += 1
                    idle.add(who)
                    continue
                buffer[who] = version
                if len(buffer) == table.buffer:
                    found.append((clock, sorted(buffer), [buffer[i] for i in sorted(buffer)]))
                    idle |= set(buffer)
                    buffer.clear()
        return found[: self.task.rounds], counted  # an instant may end several rounds


# --- synchronous rounds ----------------------------------------------------------------------------------------------

ROUNDS = 40
FOUR = {"clients_per_round": 4}
LOST = {"delay_s": 1.0, "delay_spread": 0.5, "loss": 0.3, "deadline_s": 3.0}
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "slow": ({"delay_s": 2.0, "delay_spread": 1.0}, FOUR),
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


def unsteady(folder: Path, name: str, **tables: Any) -> Job:
    network, part = NETWORKS[name]
    return local_job(
        folder, HYPER, **({"rounds": ROUNDS, "simulated_network": network, "participation": part} | EVERY | tables)
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_synchronous_rounds(digits: Path, tmp_path: Path, name: str) -> None:
    """The same model to rounding; seconds, bytes and who is asked as they are; `check` knows the bytes before."""
    task = unsteady(digits, name)
    loop, part = Simulated(task), task.participation
    x, clock, up, down, passing, most = loop.start, [0.0], [0], [0], 0, part.max_dropouts
    for t in range(1, ROUNDS + 1):
        asked, here = present(task, t), loop.there(t - 1)
        enough = len(here) >= (2 * most + 2 if most else 1)
        of = int(np.ceil((part.clients_per_round or N) * loop.network.over_selection - 1e-9)) if enough else 0
        assert set(asked) <= here and len(asked) == min(of, len(here))
        counted, late, seconds = loop.round(asked, t)
        clock.append(clock[-1] + seconds)
        up.append(up[-1] + MESSAGE * (len(counted) + late))
        down.append(down[-1] + MESSAGE * len(asked))
        if not counted or (most and len(asked) - len(counted) > most):
            passing += 1
            continue
        rows = {i: len(loop.data[i][1]) for i in counted}
        x = x + sum(rows[i] / sum(rows.values()) * (loop.walk(i, t, x, 0.1) - x) for i in counted)
    run(task, Solo(), tmp_path / "run")
    history, said = read_history(tmp_path / "run"), forecast(task, 1)
    close(played(task).model, x, 1e-9)
    np.testing.assert_allclose(history["simulated_s"], clock)
    assert (history["up_bytes"].tolist(), history["down_bytes"].tolist()) == (up, down)
    assert (said["up_bytes"], said["down_bytes"]) == (up[-1], down[-1])
    if passing:
        assert any(f"in {passing} of {ROUNDS} too few" in warning for warning in said["warnings"])
    assert bool(passing) == (name in ("nearly all lost", "long away", "all, few may be missing")) or name == "all"


def test_what_is_the_same_in_every_channel(digits: Path, tmp_path: Path) -> None:
    """Lost answers are dropouts of masks, and ciphertexts that never come; `check` knows the bytes."""
    hashes = set()
    for security in ("plain", "masked", "encrypted"):
        task = unsteady(digits, "all, few may be missing", aggregation={"security": security}, rounds=12)
        run(task, Solo(), out := tmp_path / security)
        found, said = read_json(out / "run.json"), forecast(task, 1)
        hashes.add((out / "model.safetensors").read_bytes()[-5000:])
        assert [found[key] for key in ("up_bytes", "down_bytes")] == [said[key] for key in ("up_bytes", "down_bytes")]
    assert len(hashes) == 1


def test_where_no_answer_ever_comes(digits: Path, tmp_path: Path) -> None:
    run(unsteady(digits, "a deadline", simulated_network={"delay_s": 1.0, "deadline_s": 0.5}), Solo(), tmp_path / "run")
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


# --- asynchronous rounds ---------------------------------------------------------------------------------------------

DELAYS: dict[str, dict[str, float]] = {
    "constant": {},
    "heavy tails": {"delay_spread": 1.5, "loss": 0.2},
    "slow clients": {"client_spread": 1.0, "delay_spread": 0.1},
    "away": {"availability": 0.3, "mean_absence": 5.0, "delay_spread": 0.5},
    "away, of equal delays": {"availability": 0.3, "loss": 0.1},
}


def late(buffer: int, concurrency: int, rounds: int, max_staleness: int = 20, **network: float) -> dict[str, Any]:
    """Tables of a job."""
    return {
        "rounds": rounds,
        "asynchrony": {"buffer": buffer, "concurrency": concurrency, "max_staleness": max_staleness},
        "simulated_network": {"delay_s": 2.0, **network},
    }


def weight_of(table: Any, missed: int) -> float:
    """s(t)"""
    if table["name"] == "fedbuff":
        return (1 + missed) ** -0.5
    if table["staleness"] == "constant":
        return 1.0
    if table["staleness"] == "polynomial":
        return float((missed + 1) ** -table["a"])
    return 1.0 if missed <= table["b"] else 1 / (table["a"] * (missed - table["b"]) + 1)


@pytest.mark.parametrize("delay", long_unless(lambda delay: delay == "heavy tails", DELAYS))
@pytest.mark.parametrize(("name", "settings"), [
    ("fedbuff", {}), ("fedasync", {"staleness": "constant"}), ("fedasync", {"staleness": "polynomial", "a": 0.7}),
    ("fedbuff", {"client_optimizer": {"learning_rate": {"initial": 0.5, "exponent": 0.6}}}),
    ("fedasync", {"staleness": "hinge", "a": 10.0, "b": 1.0, "rho": 0.5}),
])  # fmt: skip
def test_asynchronous_rounds(digits: Path, name: str, settings: dict[str, Any], delay: str) -> None:
    """200 rounds of the same clients, models and seconds, to rounding."""
    hyper, buffer = HYPER | {"name": name, **settings}, 1 if name == "fedasync" else 3
    task = local_job(digits, hyper, **late(buffer, 5, 200, 4, **DELAYS[delay]))
    loop, table, rate = Simulated(task), task.algorithm, hyper["client_optimizer"]["learning_rate"]
    (rounds, counted), x, sent = loop.rounds(), loop.start, [loop.start]
    for t, (_, who, versions) in enumerate(rounds, 1):
        assert present(task, t) == who
        moved = np.zeros_like(x)
        for i, version in zip(who, versions, strict=True):
            end = loop.walk(i, t, sent[version], step_size(rate, version + 1), table.get("rho", 0.0))
            moved += weight_of(table, t - 1 - version) * (end - (x if name == "fedasync" else sent[version]))
        x = x + table.get("alpha", 1.0) / buffer * moved
        sent.append(x)
    assert bool(counted["lost"]) == ("loss" in DELAYS[delay])
    clock = [virtual_seconds(task, N, t) for t in range(201)]
    assert clock == sorted(clock) == [0.0, *(seconds for seconds, _, _ in rounds)]
    assert max(t - version for t, (_, _, versions) in enumerate(rounds) for version in versions) > 0
    close(played(task).model, x, 1e-9)


def test_equal_delays_of_all_clients_are_synchronous_rounds(digits: Path) -> None:
    alone, together = (played(local_job(digits, HYPER, **more)).model for more in ({"rounds": 6}, late(N, N, 6)))
    assert alone.tobytes() == together.tobytes()


def test_equal_delays_prefer_nobody(digits: Path) -> None:
    task = local_job(digits, HYPER | {"name": "fedbuff"}, **late(1, 5, 60, 0))
    assert {present(task, t)[0] for t in range(1, 61)} == set(range(N))


@pytest.mark.parametrize(("own", "concurrency", "rate"), [
    ({"local_steps": 1}, 1, 0.1),  # one client at work is sequential SGD
    ({"name": "fedcm", "alpha": 0.5, "local_steps": 1}, 5, {"initial": 0.5, "exponent": 1.0}),  # of the clients' rates
])  # fmt: skip
def test_one_answer_a_round(digits: Path, own: dict[str, Any], concurrency: int, rate: Any) -> None:
    hyper = HYPER | {"client_optimizer": {"learning_rate": rate}, **own}
    task = local_job(digits, hyper, **late(1, concurrency, 30, delay_spread=1.0))
    loop, a = Simulated(task), own.get("alpha", 1.0)
    sent = [(loop.start, 0.0)]
    for t, (_, (i,), (version,)) in enumerate(loop.rounds()[0], 1):
        x, m = sent[version]
        direction = a * (x - loop.walk(i, t, x, 1.0)) + (1 - a) * m
        sent.append((sent[-1][0] - step_size(rate, version + 1) * direction, direction))
    close(played(task).model, sent[-1][0], 1e-9)


@pytest.mark.parametrize("security", ["plain", "masked", "encrypted"])
def test_bytes_of_answers_that_are_lost_or_late_count(digits: Path, tmp_path: Path, security: str) -> None:
    task = local_job(digits, HYPER, aggregation={"security": security}, **late(2, 7, 8, 1, delay_spread=2.0, loss=0.3))
    run(task, Solo(), tmp_path / "run")
    _, counted = Simulated(task).rounds()
    spent, said = read_json(tmp_path / "run" / "run.json"), forecast(task, 1)
    assert counted["lost"] and counted["late"]
    more = {key: spent[key] - said["keys"][key] - 8 * said[f"{key}_per_round"] for key in ("up_bytes", "down_bytes")}
    if security != "encrypted":  # where an upload is ciphertexts
        assert more["up_bytes"] == counted["late"] * MESSAGE
    assert more["down_bytes"] == counted.total() * MESSAGE
    assert [spent[key] for key in more] == [said[key] for key in more]


def test_weights_are_as_exact_beside_large_targets(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    y, found = X @ rng.normal(size=3), []
    for scale in (1.0, 2.0**30):
        folder = tmp_path / f"{scale:g}"
        mf.FederatedDataset.from_arrays(X, y * scale, clients=8, out=folder)
        hyper = HYPER | {"name": "fedasync", "local_steps": 1}
        task = local_job(folder, hyper, model={"name": "least-squares"}, **late(2, 4, 30, delay_spread=1.0))
        found.append(played(task).model / scale)
    np.testing.assert_allclose(*found, rtol=1e-8)


# --- a part of the work ----------------------------------------------------------------------------------------------


def working(folder: Path, own: dict[str, Any], /, **tables: Any) -> Job:
    return local_job(folder, {**HYPER, "local_steps": None, **own}, data={"path": str(folder), "block": 5}, **tables)


def test_stragglers_and_how_much_they_do(digits: Path) -> None:
    sizes = [len(y) for _, y in rows_of(digits)]

    def passes(task: Job, t: int) -> dict[int, float]:
        return {i: sum(map(len, minibatches(task, t, i))) / sizes[i] for i in present(task, t)}

    slow: dict[str, Any] = {"clients_per_round": 6, "stragglers": 0.5}
    tasks = [working(digits, {"name": name, "local_epochs": 6}, participation=slow) for name in ("fedavg", "scaffold")]
    dropped = working(digits, {"local_epochs": 6}, participation=slow | {"drop_stragglers": True})
    drawn = []
    for t in range(1, 25):
        one, other = (passes(task, t) for task in tasks)
        late = {i for i, count in one.items() if count < 6}
        assert one == other and len(one) == 6 and len(late) == 3
        assert set(present(dropped, t)) == one.keys() - late
        drawn += [one[i] for i in late]
    assert set(drawn) == {1, 2, 3, 4, 5} and 2.5 < np.mean(drawn) < 3.5
    least = working(digits, {"name": "fednova", "local_epochs": 5, "local_least": 2})
    assert {count for t in range(1, 20) for count in passes(least, t).values()} == {2, 3, 4, 5}
    assert round_of(least, N, 0).slow is None


@pytest.mark.parametrize("work", ["local_epochs", "local_steps"])
def test_what_time_allows(digits: Path, work: str) -> None:
    """29 steps of .01 s, of 29 times .01 s exactly; passes are done whole; and nobody does nothing."""
    late = {"simulated_network": {"deadline_s": 0.29, "speeds": [100.0, 99.9, 5.0, 2000.0] * 2}}
    for i, (in_time, (_, y)) in enumerate(zip([29, 28, 1, 580] * 2, rows_of(digits), strict=True)):
        of_one = -(-len(y) // 4) if work == "local_epochs" else 1
        steps = minibatches(working(digits, {work: 40}, **late), 1, i)
        assert len(steps) == of_one * min(max(in_time // of_one, 1), 40)
    few = working(digits, {"local_steps": 40}, simulated_network={"deadline_s": 1.0, "speeds": [3.0, 7.0]})
    counts = [[len(minibatches(few, t, i)) for i in range(N)] for t in (1, 2)]
    assert counts[0] == counts[1] and set(counts[0]) == {3, 7}


# --- traces ----------------------------------------------------------------------------------------------------------

HEADER = "client,first,last\n"


def traced(folder: Path, trace: Path, text: str, network: dict[str, Any] = {}, **tables: Any) -> Job:  # noqa: B006
    trace.write_text(HEADER + text)
    return local_job(folder, HYPER, **{"rounds": 8, "simulated_network": {"trace": str(trace), **network}} | tables)


def test_a_trace_says_who_is_there(digits: Path, tmp_path: Path) -> None:
    lines = "2,1,3\n2,3,4\n0, 4,4\n7,6,100\n"
    task = traced(digits, tmp_path / "trace.csv", lines)
    there: list[list[int]] = [[2], [2], [2], [0, 2], [], [7], [7], [7]]
    assert [present(task, t) for t in range(1, 9)] == there
    models = [played.model for played in rounds(task)]
    same = [all((a[name] == b[name]).all() for name in a) for a, b in pairwise(models)]
    assert same == [not who for who in there]
    tables = {"asynchrony": {"buffer": 1, "concurrency": 2}, "rounds": 6}
    late = traced(digits, tmp_path / "late.csv", lines, {"delay_s": 2.0}, **tables)
    assert [present(late, t) for t in range(1, 7)] == [[2], [2], [2], [0], [2], [7]]


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".own"))
    path.symlink_to(path.with_suffix(".own"))


def text(lines: str, header: str = HEADER) -> Callable[[Path], object]:
    return lambda path: path.write_text(header + lines)


@pytest.mark.parametrize(("spoil", "said"), [
    (lambda path: path.unlink(), "No such file"),
    (linked, "is a link, which is not followed"),
    (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    (lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()), "codec can't decode"),
    (text("", ""), "has no client"),
    (text(""), "has no client"),
    (text("0,1,2\n1,1,2\n", ""), "begins with '0,1,2'"),
    (text("0,1\n"), "expected 3, got 2"),
    (text("0,1,2\n1,1\n"), "number of columns changed"),
    (text("0,1,2\n1,one,2\n"), "'one' to int64"),
    (text("0,1,nan\n"), "'nan' to int64"),
    (text(f"0,1,{10**30}\n"), "to int64"),
    (text("0,1,2\n0,0,2\n"), "says 0,0,2"),
    (text("0,5,2\n"), "says 0,5,2"),
    (text("-1,1,2\n"), "says -1,1,2"),
    (text("99,1,2\n"), "has a client 99, and"),
    (text("0,1,3\n"), "after round 3 nobody who could start is there any more"),
])  # fmt: skip
def test_traces_that_are_none(digits: Path, tmp_path: Path, spoil: Callable[[Path], object], said: str) -> None:
    path = tmp_path / "trace.csv"
    task = traced(digits, path, "0,1,9\n", {"delay_s": 1.0}, asynchrony={"buffer": 1, "concurrency": 1})
    forecast(task, 1)  # though it was read before
    spoil(path)
    for use in (lambda: run(task, Solo(), tmp_path / "run"), lambda: forecast(task, 1)):
        with pytest.raises((DataError, UsageError), match=re.escape(said)):
            use()


def test_a_run_is_resumed_with_its_own_trace(digits: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "trace.csv", tmp_path / "run"
    run(traced(digits, path, "0,1,9\n", rounds=2), Solo(), out)
    with pytest.raises(UsageError, match=r"--resume with other \[simulated_network\] trace"):
        run(traced(digits, path, "0,1,8\n", rounds=4), Solo(), out, resume=True)
    run(traced(digits, path, "0,1,9\n", rounds=4), Solo(), out, resume=True)
