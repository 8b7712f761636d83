"""Private runs: what they have spent, by hand; budgets; and that nothing takes back what was released."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import private_algorithms
import pytest
from jobs_in_python import checked
from lengths import long_unless
from registry import table
from whole_runs import run
from written_files import SUMMARY, read_json, write_json

from mpifed.core.errors import BudgetSpent, Interrupted, UsageError
from mpifed.files.history import read_history
from mpifed.files.model_file import read_model
from mpifed.files.run_folder import summary
from mpifed.job.participation import round_of
from mpifed.maths.privacy import accounting
from mpifed.privacy import ledger
from mpifed.results.show import run_text
from mpifed.testing import Job, Solo

CLIENTS, DELTA = 8, 1e-4
NOISE = {"name": "private_algorithms:Noise"}


def private(folder: Path, /, **changes: Any) -> dict[str, Any]:
    """Three of eight clients in each round; noise of the test, so that runs can be compared."""
    base = {
        "rounds": 10,
        "model": {"name": "softmax", "bias": False},
        "participation": {"clients_per_round": 3},
        "privacy": privacy(noise="test"),
        "aggregation": {"bounds": {"noise": 64.0}},
    }
    algorithm = NOISE | changes.pop("algorithm", {})
    return table(folder, algorithm, **(base | changes))


def privacy(**changes: Any) -> dict[str, Any]:
    return {"delta": DELTA, "clip": 1.0, "noise_multiplier": 5.0} | changes


def ended_with(job: dict[str, Any], out: Path, **how: Any) -> int:
    try:
        run(checked(job), Solo(), out, **how)
    except (BudgetSpent, Interrupted) as error:
        assert error.agreed
        return error.exit_code
    return 0


def parts(job: dict[str, Any], rounds: int) -> Any:
    """[N] in how many of the first rounds each client takes part."""
    job_ = checked(job)
    return sum(round_of(job_, CLIENTS, t).present.astype(int) for t in range(rounds))


def cost(multiplier: float, rate: float, count: int, delta: float = DELTA, **how: Any) -> float:
    """Epsilon of what is drawn as integers, for which a billionth of delta is set aside."""
    return accounting.epsilon(multiplier, rate, count, delta * (1 - 1e-9), **how)


def unamplified_cost(multiplier: float, count: int, delta: float = DELTA) -> float:
    return accounting.unamplified(multiplier, count, delta * (1 - 1e-9))


def spent_of(told: Any) -> Any:
    """The epsilon of a run, which with noise of a test is only what it would be."""
    assert told["epsilon"] is None or told.get("epsilon_if_secret") is None
    return told["epsilon_if_secret"] if told["epsilon"] is None else told["epsilon"]


def spent_in(out: Path) -> Any:
    return spent_of(summary(out))


def plain(mechanisms: int, multiplier: float = 5.0) -> float:
    """Epsilon of so many Gaussian mechanisms."""
    return cost(multiplier, 1.0, mechanisms, DELTA) if mechanisms else 0.0


def lines_of(out: Path) -> list[dict[str, Any]]:
    """The ledger without its header."""
    return [json.loads(line) for line in (out / ledger.LEDGER).read_text().splitlines()[1:]]


def rounds_in(out: Path) -> list[int]:
    """The rounds in the ledger, in their order."""
    return [line["round"] for line in lines_of(out)]


# --- what is spent -----------------------------------------------------------------------------------------------


def test_history_says_what_was_released(digits: Path, tmp_path: Path) -> None:
    job = private(digits, algorithm={"mechanisms": 2, "rate": 0.2}, privacy=privacy())
    out = tmp_path / "run"
    assert ended_with(job, out) == 0
    history = read_history(out)
    assert history["round"].tolist() == [0, 2, 4, 6, 8, 10]
    for row, t in enumerate(history["round"]):
        costs = {count: cost(5.0, 0.2, 2 * count, DELTA) if count else 0.0 for count in range(1 + int(t))}
        counts = np.sort(parts(job, t)) if t else np.zeros(CLIENTS, int)
        assert history["epsilon"][row] == costs[counts[-1]]
        most = 2 * int(counts[-1])
        assert history["epsilon_unamplified"][row] == (unamplified_cost(5.0, most, DELTA) if most else 0)
    told = summary(out)
    assert tuple(told) == SUMMARY
    assert (told["epsilon"], told["delta"]) == (history["epsilon"][-1], DELTA)


def test_who_takes_part_by_a_coin_and_in_secret(digits: Path, tmp_path: Path) -> None:
    """At level "client" everybody counts in every round, and the ledger does not say who was there."""
    client = privacy(level="client", trust="central", sampling="poisson", noise="secure", delta=1e-3)
    job = private(digits, privacy=client, algorithm={"rates_by_participation": True}, rounds=3)
    ended_with(job, tmp_path / "run")
    expected = cost(5.0, 3 / 8, 3, 1e-3, sampling="poisson")
    assert spent_in(tmp_path / "run") == expected
    assert [line["clients"] for line in lines_of(tmp_path / "run")] == ["all"] * 3


# --- noise for an epsilon ----------------------------------------------------------------------------------------


def test_noise_is_computed_from_epsilon_and_kept(digits: Path, tmp_path: Path) -> None:
    asked = privacy(epsilon=2.0, noise="test")
    del asked["noise_multiplier"]
    job, out = private(digits, privacy=asked, algorithm={"rate": 0.5}), tmp_path / "run"
    assert ended_with(job, out) == 0
    most = int(parts(job, 10).max())
    multiplier = read_json(out / "run.json")["noise_multiplier"]

    def once(of: float) -> float:
        return cost(of, 0.5, most, DELTA)

    assert spent_in(out) == once(multiplier) <= 2.0 < once(multiplier * 0.999)
    assert "noise_multiplier" not in Job.read(out / "job.toml").table()["privacy"]
    # more rounds cost more; the noise is that of the rounds before, and if the job says so, they may
    larger = job | {"rounds": 14, "stop": {"epsilon": 3.0}}
    assert ended_with(larger, out, resume=True) == 0
    assert read_json(out / "run.json")["noise_multiplier"] == multiplier
    most = int(parts(job, 14).max())
    assert spent_in(out) == once(multiplier) > 2.0


def test_noise_by_the_papers_formula(digits: Path, tmp_path: Path) -> None:
    asked = privacy(epsilon=0.5, noise="paper")
    del asked["noise_multiplier"]
    job, out = private(digits, privacy=asked, algorithm={"rate": 0.5}), tmp_path / "run"
    ended_with(job, out)
    told = read_json(out / "run.json")
    assert told["epsilon_paper"] == pytest.approx(0.5, rel=1e-9)
    most, m = int(parts(job, 10).max()), told["noise_multiplier"]
    assert m == pytest.approx(2 * 0.5 * np.sqrt(most * np.log(1 / DELTA) / (1 - 0.5)) / 0.5)
    assert told["epsilon"] is None
    assert told["epsilon_if_secret"] == cost(m, 0.5, most, DELTA)
    assert read_json(out / "run.json")["epsilon_paper"] == pytest.approx(0.5, rel=1e-9)


# --- budgets -----------------------------------------------------------------------------------------------------


def first_over(job: dict[str, Any], budget: float) -> int:
    """The rounds that the budget allows, asking before every one of them."""
    return next(t for t in range(100) if plain(int(parts(job, t + 1).max())) > budget)


@pytest.mark.parametrize("budget", [1.2, 1.5, 2.0])
def test_a_budget_ends_the_run_before_it_is_exceeded(budget: float, digits: Path, tmp_path: Path) -> None:
    job, out = private(digits, rounds=50, stop={"epsilon": budget}), tmp_path / "run"
    assert ended_with(job, out) == 70
    told, rounds = summary(out), first_over(job, budget)
    assert 0 < rounds < 50
    assert (told["exit"], told["rounds"]) == (70, rounds)
    assert spent_of(told) == plain(int(parts(job, rounds).max())) <= budget
    assert rounds_in(out) == list(range(rounds))
    assert (out / "model.safetensors").exists()
    assert read_history(out)["round"][-1] == rounds
    # it does not go on
    assert ended_with(job, out, resume=True) == 70
    assert summary(out) == told | {"elapsed_s": told["elapsed_s"]} | {
        name: summary(out)[name] for name in ("seconds_per_round", "peak_rss_bytes")
    }
    # unless it may spend more
    assert ended_with(job | {"stop": {"epsilon": budget + 0.5}}, out, resume=True) == 70
    more = summary(out)
    assert more["rounds"] == first_over(job, budget + 0.5) > rounds
    assert ended_with(job | {"stop": {"epsilon": budget + 0.5}}, tmp_path / "whole") == 70
    assert more["model_sha256"] == summary(tmp_path / "whole")["model_sha256"]


# --- the epsilon from which the noise is computed is a budget -------------------------------------------------------

CALIBRATED = {"delta": DELTA, "clip": 1.0, "epsilon": 2.0, "noise": "test"}


def test_more_rounds_than_the_noise_was_computed_for(digits: Path, tmp_path: Path) -> None:
    """Of twice as many at once the noise would be another: refused, unless the job says what they may spend."""
    job, out = private(digits, privacy=CALIBRATED, algorithm={"rate": 0.5}), tmp_path / "run"
    assert ended_with(job, out) == 0
    told = summary(out)
    for rounds in (9, 40):
        said = rf"rounds = {rounds}: the noise of \[privacy\] epsilon was computed for 10 rounds.* stop\.epsilon="
        with pytest.raises(UsageError, match=said):
            run(checked(job | {"rounds": rounds}), Solo(), out, resume=True)
    assert summary(out) == told and 1.99 < spent_of(told) <= 2.0
    most = parts(job, 10).max()  # of the client who spent most: its budget is spent when it would take part again
    rounds = next(t for t in range(10, 40) if parts(job, t + 1).max() > most)
    assert ended_with(job | {"rounds": 40, "stop": {"epsilon": 2.0}}, out, resume=True) == 70
    assert rounds_in(out) == list(range(rounds))
    # the job as written says the same again; and that it may spend more, where it does
    before = summary(out)["model_sha256"]
    assert ended_with(Job.read(out / "job.toml").table(), out, resume=True) == 70
    assert summary(out)["model_sha256"] == before
    assert ended_with(job | {"rounds": 40, "stop": {"epsilon": 2.5}}, out, resume=True) == 70
    assert 2.0 < spent_in(out) <= 2.5
    assert ended_with(Job.read(out / "job.toml").table(), out, resume=True) == 70


@pytest.mark.parametrize(("noise", "code", "rounds"), [("secure", 70, 8), ("test", 0, 10)])
def test_rounds_that_are_played_again(noise: str, code: int, rounds: int, digits: Path, tmp_path: Path) -> None:
    """After a kill, with a checkpoint of round 8: fresh noise has nothing left to spend."""
    record = {"evaluate_every": 10, "checkpoint_every": 8}
    job = private(digits, privacy=CALIBRATED | {"noise": noise}, participation={}, record=record)
    assert ended_with(job, tmp_path / "run") == 0
    shutil.rmtree(tmp_path / "run" / "checkpoint" / "round-00000010")
    told = read_json(tmp_path / "run" / "run.json")
    write_json(tmp_path / "run" / "run.json", told | {"exit": None})  # as a kill leaves it
    assert ended_with(job, tmp_path / "run", resume=True) == code
    told = summary(tmp_path / "run")
    assert told["rounds"] == rounds and spent_of(told) <= 2.0


# --- interrupted, killed, resumed --------------------------------------------------------------------------------


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"round": 1')


@pytest.mark.parametrize(("noise", "counted"), [("secure", 11), ("test", 10)])
def test_a_torn_last_line_is_a_round(noise: str, counted: int, digits: Path, tmp_path: Path) -> None:
    """Of everybody, since nobody knows whose; noise of a test has not been drawn but again."""
    job, out = private(digits, privacy=privacy(noise=noise), participation={}, rounds=6), tmp_path / "run"
    assert ended_with(job, out) == 0
    torn(out / ledger.LEDGER)
    for _ in range(2):  # it is mended once, and stays mended
        assert ended_with(job | {"rounds": 10}, out, resume=True) == 0
        assert spent_in(out) == plain(counted)
        assert rounds_in(out) == [*range(6), *([6] if noise == "secure" else []), *range(6, 10)]


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("change", [{"noise_multiplier": 50.0}, {"delta": 1e-3}, {"noise": "secure"}])
def test_another_job_does_not_reset_it(saved: bool, change: dict[str, Any], digits: Path, tmp_path: Path) -> None:
    """Nor where no checkpoint was written yet."""
    job, out = private(digits, rounds=4), tmp_path / "run"
    assert ended_with(job, out) == 0
    if not saved:
        for path in sorted((out / "checkpoint").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    other = job | {"privacy": privacy(noise="test") | change}
    with pytest.raises(UsageError, match=rf"--resume with another job \(privacy\.{next(iter(change))}"):
        run(checked(other), Solo(), out, resume=True)
    without = {key: value for key, value in job.items() if key != "privacy"}
    with pytest.raises(UsageError, match="--resume with another job"):
        run(checked(without), Solo(), out, resume=True)
    (out / "job.toml").unlink()
    with pytest.raises(UsageError, match="holds a run already"):
        run(checked(job), Solo(), out)


@pytest.mark.parametrize(("noise", "synced"), [("secure", True), ("test", False)])
def test_what_is_noted_is_on_the_disk_before_the_round(
    noise: str, synced: bool, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, answer = os.fdatasync, private_algorithms.Noise.answer
    monkeypatch.setattr(os, "fdatasync", lambda file: (events.append("synced"), sync(file)))
    monkeypatch.setattr(
        private_algorithms.Noise, "answer", lambda *given: (events.append("answered"), answer(*given))[1]
    )
    job = private(digits, privacy=privacy(noise=noise), participation={"clients_per_round": 1}, rounds=4)
    ended_with(job, tmp_path / "run")
    assert events == (["synced", "answered"] if synced else ["answered"]) * 4


@pytest.mark.launch
@pytest.mark.parametrize(
    ("noise", "checkpoint_every"),
    long_unless(lambda *one: one == ("secure", 3), [("secure", 3), ("test", 3), ("secure", 0)]),
)
def test_a_kill_takes_nothing_back(
    noise: str, checkpoint_every: int, digits: Path, launch: Callable[..., Any], write_job: Any, tmp_path: Path
) -> None:
    """Killed in round 5 with a checkpoint of round 3, or with none: with secure noise the rounds count twice."""
    job = private(
        digits, algorithm={"killed_in": 5}, participation={}, privacy=privacy(noise=noise), rounds=8,
        record={"evaluate_every": 1, "checkpoint_every": checkpoint_every},
    )  # fmt: skip
    path, out = write_job(tmp_path / "job.toml", job), tmp_path / "run"
    ended = launch(2, "run", path, "--out", out, env={"MPIFED_TEST_KILL": "yes"})
    assert ended.code not in (0, 75), ended.text
    assert rounds_in(out) == list(range(6))
    assert spent_in(out) == plain(5)  # of the last measured round
    assert f"{plain(6):<8.6g} against" in run_text(out)  # also of that in which it was killed
    ended = launch(None, "run", path, "--out", out, "--resume")
    assert ended.code == 0, ended.text
    history, again = read_history(out), checkpoint_every or 0
    assert history["round"].tolist() == list(range(9))
    if noise == "secure":
        assert rounds_in(out) == [*range(6), *range(again, 8)]
        assert spent_in(out) == history["epsilon"][-1] == plain(6 + 8 - again)
        assert history["epsilon"][again + 1] == plain(6 + 1)
    else:
        assert rounds_in(out) == list(range(8))
        assert history["epsilon_if_secret"].tolist() == [plain(t) for t in range(9)]
        assert ended_with(job, tmp_path / "whole") == 0
        assert summary(out)["model_sha256"] == summary(tmp_path / "whole")["model_sha256"]


@pytest.mark.launch
def test_a_budget_ends_every_rank(digits: Path, launch: Callable[..., Any], write_job: Any, tmp_path: Path) -> None:
    """In secret rounds too, of which every rank must know the same: else masks would be left in the sum."""
    client = privacy(level="client", trust="central", sampling="poisson", noise="secure", delta=1e-3)
    counted = {"name": "private_algorithms:Count", "rates_by_participation": True}
    masked = {"bounds": {"noise": 64.0}, "security": "masked", "min_clients": 1}
    job = private(digits, privacy=client, algorithm=counted, rounds=8, stop={"epsilon": 0.5}, aggregation=masked)
    path, out = write_job(tmp_path / "job.toml", job), tmp_path / "run"
    for ranks in (3, None):
        ended = launch(ranks, "run", path, "--out", out, *(["--resume"] if ranks is None else []))
        assert ended.code == 70, ended.text
        said = "[stop] epsilon = 0.5: " if ranks == 3 else "finished already; nothing was changed"
        assert ended.text.count(said) == 1, ended.text
        assert "Traceback" not in ended.text
    told = summary(out)
    costs = [cost(5.0, 3 / 8, t, 1e-3, sampling="poisson") for t in range(1, 8)]
    assert told["rounds"] == sum(one <= 0.5 for one in costs) > 1
    assert told["epsilon"] == costs[told["rounds"] - 1]
    counts = np.unique(read_model(out / "model.safetensors")["first"])
    assert len(counts) == 1 and counts == np.rint(counts) and 0 <= counts[0] <= 8 * told["rounds"]


# --- what is said ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "private_", "said"),
    [
        ({"noise": "secure"}, True, None),
        ({"noise": "test"}, False, 'noise = "test" can be computed from the job\'s seed by anybody: this run is not'),
        ({"noise": "secure", "noise_multiplier": 0}, False, "noise_multiplier = 0: there is clipping and no noise"),
    ],
)
def test_what_is_not_private_says_so(
    changes: dict[str, Any], private_: bool, said: str | None, digits: Path, tmp_path: Path
) -> None:
    job = private(digits, privacy=privacy(**changes), record={"evaluate_every": 5, "released_only": True}, rounds=2)
    ended_with(job, tmp_path / "run")
    told = read_json(tmp_path / "run" / "run.json")
    assert told["private"] is private_
    assert len(told["warnings"]) == (said is not None)
    text = run_text(tmp_path / "run")
    assert ("NOT private" in text) == (not private_)
    assert said is None or said in text
    if changes.get("noise_multiplier") == 0:
        assert spent_in(tmp_path / "run") is None
        assert "infinite: there is no noise" in text
        assert np.isnan(read_history(tmp_path / "run")["epsilon"][-1])
    else:
        assert f"{plain(int(parts(job, 2).max())):<8.6g} against " in text
        assert (told["epsilon"] is None) == (told["epsilon_if_secret"] is not None) == (not private_)
