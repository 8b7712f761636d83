"""A run in this process: what it leaves behind, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from ended import run
from jobs_in_python import SOFTMAX, checked, fedavg, job_table
from written_files import SUMMARY, contents, read_json, write_json

import mpifed as mf
from mpifed.cli import main
from mpifed.core.errors import Interrupted, MpifedError, UsageError
from mpifed.core.record import leaves
from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.files.model_file import model_sha256, read_model
from mpifed.files.run_folder import job_of, summary
from mpifed.observers import Observer
from mpifed.run.launch import guarded
from mpifed.run.setup import block_of, prepare
from mpifed.testing import Job, Solo


def job(folder: Path, **changes: Any) -> Job:
    base = {"algorithm": fedavg(4, 0.2), "record": {"evaluate_every": 2, "checkpoint_every": 0}}
    return checked(job_table(folder, **{"name": "loop", "rounds": 5, "model": SOFTMAX | {"l2": 0.01}} | base | changes))


def test_what_a_run_leaves_behind(digits: Path, tmp_path: Path) -> None:
    out, task = tmp_path / "a" / "run", job(digits)
    result = run(task, Solo(), out)
    assert Job.read(out / "job.toml").table() == task.resumed({"data": {"block": 4}}).table()  # half of 8 clients
    assert (result.run_dir, result.rounds) == (out, 5)
    stored = read_model(out / "model.safetensors")
    assert stored.keys() == {"first"}
    np.testing.assert_array_equal(stored["first"], result.model.first)
    history = read_history(out)
    assert history["round"].tolist() == [0, 2, 4, 5]
    assert list(history)[:4] == ["round", "elapsed_s", "train_loss", "test_accuracy"]
    assert {"objective", "test_loss", "up_bytes", "down_bytes"} < set(history)
    assert history["objective"][-1] < history["objective"][0]
    assert history["up_bytes"].tolist() == [t * 8 * (640 + 1) * 8 for t in (0, 2, 4, 5)]  # 8 clients, int64
    assert history["down_bytes"].tolist() == [t * 8 * (640 * 4 + 8) for t in (0, 2, 4, 5)]
    assert (np.diff(history["elapsed_s"]) >= 0).all()
    found = read_json(out / "run.json")
    assert (found["exit"], found["rounds"], found["ranks"], found["seed"]) == (0, 5, 1, 1)
    assert found["versions"]["numpy"] == np.__version__
    assert found["ended"] >= found["started"]
    assert found["peak_rss_bytes"] > 2**20
    told = summary(out)
    assert tuple(told) == SUMMARY
    assert told["model_sha256"] == model_sha256(dict(leaves(result.model)))
    assert told["nonzeros"] == np.count_nonzero(stored["first"])
    assert told["epsilon"] is None
    json.dumps(told)


def test_a_run_that_failed_before_its_first_checkpoint_may_be_replaced(digits: Path, tmp_path: Path) -> None:
    """There is nothing to lose; what else has begun stays as it is."""
    run(job(digits), Solo(), tmp_path / "whole")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/job.toml").write_text("")
    with pytest.raises(UsageError, match="holds a run already"):
        run(job(digits), Solo(), tmp_path / "run")
    (tmp_path / "run/failure.txt").write_text("it diverged")
    (tmp_path / "run/history.csv").write_text("round\n0\n")
    run(job(digits), Solo(), tmp_path / "run")
    assert (tmp_path / "run/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert not (tmp_path / "run/failure.txt").exists()
    (tmp_path / "whole/failure.txt").write_text("later")
    with pytest.raises(UsageError, match="holds a run already"):
        run(job(digits), Solo(), tmp_path / "whole")


@pytest.mark.parametrize("left", [[], ["job.toml"], ["job.toml", "run.json", "history.csv"], ["checkpoint"]])
def test_a_requeued_run_without_a_checkpoint_starts_from_the_beginning(
    digits: Path, tmp_path: Path, left: list[str]
) -> None:
    """As it was killed at some moment before its first checkpoint; with what it had written till then."""
    run(job(digits), Solo(), tmp_path / "whole")
    for name in left:
        (tmp_path / "run").mkdir(exist_ok=True)
        if name == "checkpoint":  # which was being written
            (tmp_path / "run" / name / "round-00000002.new").mkdir(parents=True)
        else:
            shutil.copy(tmp_path / "whole" / name, tmp_path / "run" / name)
        if name == "run.json":
            write_json(tmp_path / "run" / name, read_json(tmp_path / "whole" / name) | {"exit": None})
    run(job(digits), Solo(), tmp_path / "run", resume=True)
    assert summary(tmp_path / "run")["model_sha256"] == summary(tmp_path / "whole")["model_sha256"]
    once_more = run(job(digits), Solo(), tmp_path / "run", resume=True)  # of a run that is finished
    assert once_more is not None
    assert summary(tmp_path / "run")["exit"] == 0


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ({}, 4),  # half of 8 clients
        ({"data": {"memory_gib": 0.0}, "server": {"dedicated": True}}, 4),
        ({"data": {"block": 3}}, 3),
        ({"model": SOFTMAX | {"name": "mlp", "hidden": 1024}}, 1),  # 4 rows x 75776 parameters, and a block's are 2^19
        ({"model": SOFTMAX | {"name": "mlp", "hidden": 512}}, 3),
        ({"participation": {"clients_per_round": 4}}, 4),  # two of a block, as a mean
        ({"participation": {"clients_per_round": 3}}, 1),
        ({"aggregation": {"arithmetic": "exact-blocks"}}, 4),
    ],
    ids=str,
)
def test_the_block_is_of_the_job_alone(digits: Path, given: dict[str, Any], number: int) -> None:
    given = given | {"data": {"path": str(digits)} | given.get("data", {})}
    task = job(digits, **given)
    assert block_of(task, open_federation(digits)) == number
    assert prepare(task, Solo()).job == task.resumed({"data": {"block": number}})


def test_a_run_goes_on_with_the_block_that_it_began_with(digits: Path, tmp_path: Path) -> None:
    """Whatever a later version would choose; as of runs that began when it was 1."""
    data = {"data": {"path": str(digits), "block": 1}}
    run(job(digits, **data), Solo(), tmp_path / "whole")
    run(job(digits, rounds=3, **data), Solo(), tmp_path / "run")
    run(job(digits), Solo(), tmp_path / "run", resume=True)
    assert summary(tmp_path / "run")["model_sha256"] == summary(tmp_path / "whole")["model_sha256"]
    assert job_of(tmp_path / "run")["data"]["block"] == 1
    with pytest.raises(UsageError, match=r"data\.block: 1 before, 4 now"):
        run(job(digits, data={"path": str(digits), "block": 4}), Solo(), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 2}, "seed: 1 before, 2 now"),
        ({"model": {"name": "softmax", "bias": False, "l2": 0.02}}, "model.l2: 0.01 before, 0.02 now"),
        ({"compute": {"dtype": "float64"}}, ""),
        ({"aggregation": {"arithmetic": "exact-blocks"}}, "aggregation.arithmetic: 'exact' before, 'exact-blocks' now"),
        ({"participation": {"clients_per_round": 3}}, "participation.clients_per_round: None before, 3 now"),
    ],
)
def test_resuming_another_job_is_refused(digits: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    run(job(digits), Solo(), tmp_path / "run")
    with pytest.raises(MpifedError, match=said or "float64"):
        run(job(digits, **change), Solo(), tmp_path / "run", resume=True)


def test_so_does_the_command_which_says_so(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(job(digits).text())
    command = ["run", str(tmp_path / "job.toml"), "--out", str(tmp_path / "run"), "--resume"]
    assert CliRunner().invoke(main, command).exit_code == 0
    before = contents(tmp_path / "run")
    ended = CliRunner().invoke(main, command)
    assert (ended.exit_code, contents(tmp_path / "run")) == (0, before)
    assert "finished already; nothing was changed" in ended.output
    assert CliRunner().invoke(main, [*command, "--set", "rounds=6"]).exit_code == 0
    assert read_json(tmp_path / "run" / "run.json")["rounds"] == 6


@pytest.mark.parametrize("lost", ["checkpoint", "checkpoint/round-00000005", "data"])
def test_what_is_finished_stays_though_all_else_is_lost(digits: Path, tmp_path: Path, lost: str) -> None:
    data, out = Path(shutil.copytree(digits, tmp_path / "data")), tmp_path / "run"
    task = job(data, record={"checkpoint_every": 2})
    run(task, Solo(), out)
    shutil.rmtree(tmp_path / "data" if lost == "data" else out / lost)
    before = contents(out)
    with pytest.raises(SystemExit) as caught:
        guarded(Solo(), out, lambda: run(task, Solo(), out, resume=True))
    assert caught.value.code == (3 if lost == "data" else 2)
    assert contents(out) == before


NUMBERS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)


class Sends(Observer):
    """Sends a signal, or two, to this process when round 1 is measured."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self.numbers = numbers

    def measured(self, row: Mapping[str, float]) -> None:
        for number in self.numbers if row["round"] == 1 else ():
            os.kill(os.getpid(), number)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in NUMBERS]


@pytest.mark.parametrize(
    ("numbers", "error"),
    [((number,), Interrupted) for number in NUMBERS]
    + [((signal.SIGINT, signal.SIGINT), KeyboardInterrupt), ((), None)],
)
def test_signals_are_given_back(
    numbers: tuple[signal.Signals, ...], error: type[BaseException] | None, digits: Path, tmp_path: Path
) -> None:
    """To the handlers of whoever called, once a run has ended, however it did."""
    heard: list[int] = []
    before = [signal.signal(number, lambda number, frame: heard.append(number)) for number in NUMBERS]
    own, watching = handlers(), Sends(*numbers)
    try:
        with pytest.raises(error) if error is not None else contextlib.nullcontext():
            mf.run(mf.SSCA(batch_size=8), digits, mf.Softmax(), rounds=3, observers=[watching], evaluate_every=1,
                   out=tmp_path / "run", progress=False)  # fmt: skip
        assert handlers() == own and not heard
        for number in NUMBERS:
            os.kill(os.getpid(), number)
        assert heard == list(NUMBERS)
    finally:
        for number, handler in zip(NUMBERS, before, strict=True):
            signal.signal(number, handler)


def test_a_process_that_ends_is_not_killed_by_a_second_signal(digits: Path, tmp_path: Path) -> None:
    """A scheduler sends them to one node a moment after the other; `mpifed run` and all ranks end by `guarded`."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
    before = handlers()
    assert signal.SIG_IGN not in before[:3]  # of another test
    with pytest.raises(SystemExit) as ended:
        guarded(Solo(), tmp_path / "run", lambda: run(job(digits), Solo(), tmp_path / "run", max_hours=0))
    assert ended.value.code == 75 and handlers() == [*3 * [signal.SIG_IGN], before[3]]
    for number, handler in zip(NUMBERS[:3], before, strict=False):
        signal.signal(number, handler)
    with pytest.raises(Interrupted):
        run(job(digits), Solo(), tmp_path / "other", max_hours=0)
    assert handlers() == before


def test_nohup_holds(digits: Path, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        mf.run(mf.SSCA(batch_size=8), digits, mf.Softmax(), rounds=3, observers=[Sends(signal.SIGHUP)],
               evaluate_every=1, out=tmp_path / "run", progress=False)  # fmt: skip
    finally:
        signal.signal(signal.SIGHUP, before)
