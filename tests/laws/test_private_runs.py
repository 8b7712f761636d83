"""Private runs: what they have spent, by hand; budgets; and that nothing takes back what was released."""

from __future__ import annotations

import json
import math
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

import mpifed as mf
from mpifed.core.errors import BudgetSpent, Interrupted, UsageError
from mpifed.files.history import read_history
from mpifed.files.model_file import read_model
from mpifed.files.run_folder import summary
from mpifed.job.participation import round_of
from mpifed.maths.privacy import accounting
from mpifed.results.show import run_summary, run_text
from mpifed.testing import Job, Solo
from mpifed.text import rounded_up

CLIENTS, DELTA = 8, 1e-4
CALIBRATED = {"delta": DELTA, "clip": 1.0, "epsilon": 2.0, "noise": "test"}


def privacy(**changes: Any) -> dict[str, Any]:
    return {"delta": DELTA, "clip": 1.0, "noise_multiplier": 5.0} | changes


COINS = privacy(level="client", trust="central", sampling="poisson", noise="secure", delta=1e-3)


def private(folder: Path, algorithm: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Three of eight clients in each round; noise of the test, so that runs can be compared."""
    base = {
        "rounds": 10, "model": {"name": "softmax", "bias": False}, "participation": {"clients_per_round": 3},
        "privacy": privacy(noise="test"), "aggregation": {"bounds": {"noise": 64.0}},
    }  # fmt: skip
    return table(folder, {"name": "private_algorithms:Noise"} | (algorithm or {}), **(base | changes))


def ended_with(job: dict[str, Any], out: Path, **how: Any) -> int:
    try:
        run(checked(job), Solo(), out, **how)
    except (BudgetSpent, Interrupted) as error:
        assert error.agreed
        return error.exit_code
    return 0


def most(job: dict[str, Any], rounds: int) -> int:
    """In how many of the first rounds the client takes part who takes part most often."""
    job_ = checked(job)
    return int(sum((round_of(job_, CLIENTS, t).present.astype(int) for t in range(rounds)), np.zeros(1)).max())


def cost(multiplier: float, rate: float, count: int, delta: float = DELTA, **how: Any) -> float:
    """Epsilon of what is drawn as integers, for which a billionth of delta is set aside."""
    return accounting.epsilon(multiplier, rate, count, delta * (1 - 1e-9), **how)


def plain(mechanisms: int) -> float:
    """Epsilon of so many Gaussian mechanisms."""
    return cost(5.0, 1.0, mechanisms)


def spent_in(out: Path) -> Any:
    """The epsilon of a run, which with noise of a test is only what it would be."""
    told = summary(out)
    assert told["epsilon"] is None or told.get("epsilon_if_secret") is None
    return told["epsilon_if_secret"] if told["epsilon"] is None else told["epsilon"]


def lines_of(out: Path, key: str = "round") -> list[Any]:
    """The ledger without its header."""
    return [json.loads(line)[key] for line in (out / "ledger.jsonl").read_text().splitlines()[1:]]


# --- what is spent -----------------------------------------------------------------------------------------------


def test_history_says_what_was_released(digits: Path, tmp_path: Path) -> None:
    job, out = private(digits, {"mechanisms": 2, "rate": 0.2}, privacy=privacy()), tmp_path / "run"
    assert ended_with(job, out) == 0
    history, told = read_history(out), summary(out)
    assert history["round"].tolist() == [0, 2, 4, 6, 8, 10]
    counts = [2 * most(job, int(t)) for t in history["round"]]
    assert history["epsilon"].tolist() == [cost(5.0, 0.2, count) for count in counts]
    unamplified = [accounting.unamplified(5.0, count, DELTA * (1 - 1e-9)) for count in counts]
    assert history["epsilon_unamplified"].tolist() == unamplified
    assert tuple(told) == SUMMARY
    assert (told["epsilon"], told["delta"]) == (history["epsilon"][-1], DELTA)


def test_a_comparison_says_the_largest_epsilon(digits: Path, tmp_path: Path) -> None:
    """Of seeds whose busiest clients do not take part equally often; and of too little noise that none is finite."""
    jobs = {seed: private(digits, privacy=privacy(), rounds=10, seed=seed) for seed in range(8)}
    counts = {seed: most(job, 10) for seed, job in jobs.items()}
    few, many = (pick(counts, key=lambda seed: counts[seed]) for pick in (min, max))
    assert counts[few] < counts[many]
    little = private(digits, privacy=privacy(noise_multiplier=1e-4), aggregation={"bounds": {"noise": 64.0}})
    for name, job in {"few": jobs[few], "many": jobs[many], "little": little}.items():
        assert ended_with(job, tmp_path / name) == 0
    frame = mf.compare(tmp_path / "few", tmp_path / "many", tmp_path / "little").frame
    told = frame[frame["column"] == "epsilon"]
    assert told["mean"].tolist() == [plain(counts[many]), math.inf] and told["std"].isna().all()


# --- noise for an epsilon, which is a budget -------------------------------------------------------------------------


def test_noise_is_computed_from_epsilon_and_kept(digits: Path, tmp_path: Path) -> None:
    """Of more rounds at once the noise would be another: refused, unless the job says what they may spend."""
    job, out = private(digits, {"rate": 0.5}, privacy=CALIBRATED), tmp_path / "run"
    assert ended_with(job, out) == 0
    told, count = read_json(out / "run.json"), most(job, 10)
    z = told["noise_multiplier"]
    assert spent_in(out) == cost(z, 0.5, count) <= 2.0 < cost(z * 0.999, 0.5, count)
    assert "noise_multiplier" not in Job.read(out / "job.toml").table()["privacy"]
    for rounds in (9, 40):
        said = rf"rounds = {rounds}: the noise of \[privacy\] epsilon was computed for 10 rounds.* stop\.epsilon="
        with pytest.raises(UsageError, match=said):
            run(checked(job | {"rounds": rounds}), Solo(), out, resume=True)
    assert read_json(out / "run.json") == told
    # the budget of who spent most is spent when it would take part again
    rounds = next(t for t in range(10, 40) if most(job, t + 1) > count)
    assert ended_with(job | {"rounds": 40, "stop": {"epsilon": 2.0}}, out, resume=True) == 70
    assert lines_of(out) == list(range(rounds))
    # the job as written says the same again; and that it may spend more, where it does
    for stop in (2.0, 2.5, 2.5):
        before = summary(out)["model_sha256"], spent_in(out)
        written = Job.read(out / "job.toml").table()
        assert ended_with(written | {"stop": {"epsilon": stop}}, out, resume=True) == 70
        assert read_json(out / "run.json")["noise_multiplier"] == z and spent_in(out) <= stop
        same = (summary(out)["model_sha256"], spent_in(out)) == before
        assert same == (written["stop"]["epsilon"] == stop)
    assert spent_in(out) > 2.0


def test_noise_by_the_papers_formula(digits: Path, tmp_path: Path) -> None:
    job = private(digits, {"rate": 0.5}, privacy=CALIBRATED | {"epsilon": 0.5, "noise": "paper"})
    ended_with(job, tmp_path / "run")
    told, count = read_json(tmp_path / "run" / "run.json"), most(job, 10)
    z = told["noise_multiplier"]
    assert z == pytest.approx(2 * 0.5 * np.sqrt(count * np.log(1 / DELTA) / (1 - 0.5)) / 0.5)
    assert told["epsilon_paper"] == pytest.approx(0.5, rel=1e-9) and told["epsilon"] is None
    assert told["epsilon_if_secret"] == cost(z, 0.5, count)


@pytest.mark.parametrize("budget", [1.2, 1.5, 2.0])
def test_a_budget_ends_the_run_before_it_is_exceeded(budget: float, digits: Path, tmp_path: Path) -> None:
    """It does not go on, unless it may spend more: then as a run that might from the beginning."""
    job, out = private(digits, rounds=50), tmp_path / "run"

    def allowed(epsilon: float) -> int:
        return next(t for t in range(100) if plain(most(job, t + 1)) > epsilon)

    for spend, resume in ((budget, False), (budget, True), (budget + 0.5, True)):
        before = summary(out) if resume else {}
        assert ended_with(job | {"stop": {"epsilon": spend}}, out, resume=resume) == 70
        told, rounds = summary(out), allowed(spend)
        assert (told["exit"], told["rounds"]) == (70, rounds) and 0 < rounds < 50
        assert spent_in(out) == plain(most(job, rounds)) <= spend
        assert lines_of(out) == list(range(rounds))
        assert (out / "model.safetensors").exists() and read_history(out)["round"][-1] == rounds
        if resume and spend == budget:
            times = {name: told[name] for name in ("elapsed_s", "seconds_per_round", "peak_rss_bytes")}
            assert told == before | times
    assert ended_with(job | {"stop": {"epsilon": budget + 0.5}}, tmp_path / "whole") == 70
    assert told["model_sha256"] == summary(tmp_path / "whole")["model_sha256"]


@pytest.mark.parametrize(("noise", "code", "rounds"), [("secure", 70, 8), ("test", 0, 10)])
def test_rounds_that_are_played_again(noise: str, code: int, rounds: int, digits: Path, tmp_path: Path) -> None:
    """After a kill, with a checkpoint of round 8: fresh noise has nothing left to spend."""
    record, out = {"evaluate_every": 10, "checkpoint_every": 8}, tmp_path / "run"
    job = private(digits, privacy=CALIBRATED | {"noise": noise}, participation={}, record=record)
    assert ended_with(job, out) == 0
    shutil.rmtree(out / "checkpoint" / "round-00000010")
    write_json(out / "run.json", read_json(out / "run.json") | {"exit": None})  # as a kill leaves it
    assert ended_with(job, out, resume=True) == code
    assert summary(out)["rounds"] == rounds and spent_in(out) <= 2.0


# --- interrupted, killed, resumed --------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "counted"), [("secure", 11), ("test", 10)])
def test_a_torn_last_line_is_a_round(noise: str, counted: int, digits: Path, tmp_path: Path) -> None:
    """Of everybody, since nobody knows whose; noise of a test has not been drawn but again."""
    job, out = private(digits, privacy=privacy(noise=noise), participation={}, rounds=6), tmp_path / "run"
    assert ended_with(job, out) == 0
    with open(out / "ledger.jsonl", "ab") as file:
        file.write(b'{"round": 1')
    told = run_summary(out)  # what `mpifed show` prints
    assert plain(7 if noise == "secure" else 6) in (told["epsilon"], told.get("epsilon_if_secret"))
    for _ in range(2):  # it is mended once, and stays mended
        assert ended_with(job | {"rounds": 10}, out, resume=True) == 0
        assert spent_in(out) == plain(counted)
        assert lines_of(out) == [*range(6), *([6] if noise == "secure" else []), *range(6, 10)]


@pytest.mark.parametrize("change", [{"noise_multiplier": 50.0}, {"delta": 1e-3}, {"noise": "secure"}, None])
def test_another_job_does_not_reset_it(change: Any, digits: Path, tmp_path: Path) -> None:
    """Nor where no checkpoint was written yet; nor one without [privacy]."""
    job, out = private(digits, rounds=4), tmp_path / "run"
    assert ended_with(job, out) == 0
    other = {key: value for key, value in job.items() if key != "privacy"}
    if change:
        other["privacy"] = privacy(noise="test") | change
    for _ in range(2):
        with pytest.raises(UsageError, match=r"--resume with another job \(privacy\." + "".join(change or ())):
            run(checked(other), Solo(), out, resume=True)
        shutil.rmtree(out / "checkpoint", ignore_errors=True)
    (out / "job.toml").unlink()
    with pytest.raises(UsageError, match="holds a run already"):
        run(checked(job), Solo(), out)


@pytest.mark.parametrize(("noise", "each"), [("secure", ["synced", "answered"]), ("test", ["answered"])])
def test_what_is_noted_is_on_the_disk_before_the_round(
    noise: str, each: list[str], digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, sync, answer = list[str](), os.fdatasync, private_algorithms.Noise.answer
    monkeypatch.setattr(os, "fdatasync", lambda *given: events.append("synced") or sync(*given))
    monkeypatch.setattr(private_algorithms.Noise, "answer", lambda *given: events.append("answered") or answer(*given))
    job = private(digits, privacy=privacy(noise=noise), participation={"clients_per_round": 1}, rounds=4)
    ended_with(job, tmp_path / "run")
    assert events == each * 4


@pytest.mark.launch
@pytest.mark.parametrize(("noise", "checkpoint_every"), long_unless(
    lambda *one: one == ("secure", 3), [("secure", 3), ("test", 3), ("secure", 0)]
))  # fmt: skip
def test_a_kill_takes_nothing_back(
    noise: str, checkpoint_every: int, digits: Path, launch: Callable[..., Any], write_job: Any, tmp_path: Path
) -> None:
    """Killed in round 5 with a checkpoint of round 3, or with none: with secure noise the rounds count twice."""
    job = private(
        digits, {"killed_in": 5}, participation={}, privacy=privacy(noise=noise), rounds=8,
        record={"evaluate_every": 1, "checkpoint_every": checkpoint_every},
    )  # fmt: skip
    path, out = write_job(tmp_path / "job.toml", job), tmp_path / "run"
    ended = launch(2, "run", path, "--out", out, env={"MPIFED_TEST_KILL": "yes"})
    assert ended.code not in (0, 75), ended.text
    assert lines_of(out) == list(range(6))
    assert spent_in(out) == plain(5)  # of the last measured round
    assert f"{rounded_up(plain(6)):<8.6g} against" in run_text(out)  # also of that in which it was killed
    ended = launch(None, "run", path, "--out", out, "--resume")
    assert ended.code == 0, ended.text
    history = read_history(out)
    assert history["round"].tolist() == list(range(9))
    if noise == "secure":
        assert lines_of(out) == [*range(6), *range(checkpoint_every, 8)]
        assert spent_in(out) == history["epsilon"][-1] == plain(6 + 8 - checkpoint_every)
        assert history["epsilon"][checkpoint_every + 1] == plain(6 + 1)
    else:
        assert lines_of(out) == list(range(8))
        assert history["epsilon_if_secret"].tolist() == [plain(t) for t in range(9)]
        assert ended_with(job, tmp_path / "whole") == 0
        assert summary(out)["model_sha256"] == summary(tmp_path / "whole")["model_sha256"]


@pytest.mark.launch
def test_a_budget_ends_every_rank(digits: Path, launch: Callable[..., Any], write_job: Any, tmp_path: Path) -> None:
    """In secret rounds too, of which every rank must know the same: else masks would be left in the sum."""
    masked = {"bounds": {"noise": 64.0}, "security": "masked", "min_clients": 1}
    job = private(
        digits, {"rates_by_participation": True}, privacy=COINS, rounds=8, stop={"epsilon": 0.5}, aggregation=masked
    )
    path, out = write_job(tmp_path / "job.toml", job), tmp_path / "run"
    for ranks, more, said in ((3, [], "[stop] epsilon = 0.5: "), (None, ["--resume"], "finished already; nothing was")):
        ended = launch(ranks, "run", path, "--out", out, *more)
        assert ended.code == 70 and "Traceback" not in ended.text, ended.text
        assert ended.text.count(said) == 1, ended.text
        assert ("is spent after" in ended.text) == (ranks == 3)
    costs = [cost(5.0, 3 / 8, t, 1e-3, sampling="poisson") for t in range(1, 8)]
    rounds = sum(one <= 0.5 for one in costs)
    assert summary(out)["rounds"] == rounds > 1 and summary(out)["epsilon"] == costs[rounds - 1]
    assert set(map(str, lines_of(out, "clients"))) == {"all"}  # who was there is secret
    (count,) = np.unique(read_model(out / "model.safetensors")["first"])
    assert count == np.rint(count) and 0 <= count <= 8 * rounds


@pytest.mark.parametrize(("changes", "said"), [
    ({"noise": "secure"}, None),
    ({"noise": "test"}, 'noise = "test" can be computed from the job\'s seed by anybody: this run is not'),
    ({"noise": "secure", "noise_multiplier": 0}, "noise_multiplier = 0: there is clipping and no noise"),
])  # fmt: skip
def test_what_is_not_private_says_so(changes: dict[str, Any], said: str | None, digits: Path, tmp_path: Path) -> None:
    record = {"evaluate_every": 5, "released_only": True}
    job, out = private(digits, privacy=privacy(**changes), record=record, rounds=2), tmp_path / "run"
    ended_with(job, out)
    told, text = read_json(out / "run.json"), run_text(out)
    assert told["private"] is (said is None) and len(told["warnings"]) == (said is not None)
    assert ("NOT private" in text) == (said is not None) and (said or "") in text
    if changes.get("noise_multiplier") == 0:
        assert spent_in(out) is None and "infinite: there is no noise" in text
        assert np.isnan(read_history(out)["epsilon"][-1])
    else:
        assert f"{rounded_up(plain(most(job, 2))):<8.6g} against " in text
        assert (told["epsilon"] is None) == (told["epsilon_if_secret"] is not None) == (said is not None)
