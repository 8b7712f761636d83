"""A run in this process: what it leaves behind, what it refuses, how it ends and goes on."""

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
from ended import run
from jobs_in_python import SOFTMAX, checked, fedavg, job_table
from written_files import SUMMARY, contents, read_json, write_json

import mpifed as mf
from mpifed.core.errors import Interrupted, MpifedError
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


def sha256(out: Path) -> Any:
    return summary(out)["model_sha256"]


@pytest.fixture(scope="module")
def whole(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has ended."""
    run(job(digits), Solo(), out := tmp_path_factory.mktemp("whole") / "run")
    return out


def test_what_a_run_leaves_behind(digits: Path, tmp_path: Path) -> None:
    out, task = tmp_path / "a" / "run", job(digits)
    result = run(task, Solo(), out)
    assert Job.read(out / "job.toml").table() == task.resumed({"data": {"block": 4}}).table()  # half of 8 clients
    assert (result.run_dir, result.rounds) == (out, 5)
    stored, history, found, told = read_model(out / "model.safetensors"), read_history(out), *about(out)
    assert stored.keys() == {"first"}
    np.testing.assert_array_equal(stored["first"], result.model.first)
    assert history["round"].tolist() == [0, 2, 4, 5] and history["objective"][-1] < history["objective"][0]
    assert list(history)[:4] == ["round", "elapsed_s", "train_loss", "test_accuracy"]
    assert history["up_bytes"].tolist() == [t * 8 * (640 + 1) * 8 for t in (0, 2, 4, 5)]  # 8 clients, int64
    assert history["down_bytes"].tolist() == [t * 8 * (640 * 4 + 8) for t in (0, 2, 4, 5)]
    assert (np.diff(history["elapsed_s"]) >= 0).all()
    assert (found["exit"], found["rounds"], found["ranks"], found["seed"]) == (0, 5, 1, 1)
    assert found["versions"]["numpy"] == np.__version__ and found["ended"] >= found["started"]
    assert found["peak_rss_bytes"] > 2**20 and tuple(told) == SUMMARY and told["epsilon"] is None
    assert told["model_sha256"] == model_sha256(dict(leaves(result.model)))
    assert told["nonzeros"] == np.count_nonzero(stored["first"])
    json.dumps(told)


def about(out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return read_json(out / "run.json"), summary(out)


@pytest.mark.parametrize("left", [[], ["job.toml"], ["job.toml", "run.json", "history.csv"], ["checkpoint"]])
def test_a_requeued_run_without_a_checkpoint_starts_from_the_beginning(
    digits: Path, whole: Path, tmp_path: Path, left: list[str]
) -> None:
    """As it was killed at some moment before its first checkpoint; with what it had written till then."""
    out = tmp_path / "run"
    for name in left:
        out.mkdir(exist_ok=True)
        if name == "checkpoint":  # which was being written
            (out / name / "round-00000002.new").mkdir(parents=True)
        else:
            shutil.copy(whole / name, out / name)
        if name == "run.json":
            write_json(out / name, read_json(whole / name) | {"exit": None})
    run(job(digits), Solo(), out, resume=True)
    assert sha256(out) == sha256(whole)
    assert run(job(digits), Solo(), out, resume=True) is not None  # of a run that is finished


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ({}, 4),  # half of 8 clients
        ({"data": {"memory_gib": 0.0}, "server": {"dedicated": True}}, 4), ({"data": {"block": 3}}, 3),
        ({"model": SOFTMAX | {"name": "mlp", "hidden": 1024}}, 1),  # 4 rows x 75776 parameters, and a block's are 2^19
        ({"model": SOFTMAX | {"name": "mlp", "hidden": 512}}, 3),
        ({"participation": {"clients_per_round": 4}}, 4),  # two of a block, as a mean
        ({"participation": {"clients_per_round": 3}}, 1), ({"aggregation": {"arithmetic": "exact-blocks"}}, 4),
    ],
)  # fmt: skip
def test_the_block_is_of_the_job_alone(digits: Path, given: dict[str, Any], number: int) -> None:
    task = job(digits, **given | {"data": {"path": str(digits)} | given.get("data", {})})
    assert block_of(task, open_federation(digits)) == number
    assert prepare(task, Solo()).job == task.resumed({"data": {"block": number}})


def test_a_run_goes_on_with_the_block_that_it_began_with(digits: Path, tmp_path: Path) -> None:
    """Whatever a later version would choose; as of runs that began when it was 1."""
    data, out = {"data": {"path": str(digits), "block": 1}}, tmp_path / "run"
    run(job(digits, **data), Solo(), tmp_path / "whole")
    run(job(digits, rounds=3, **data), Solo(), out)
    run(job(digits), Solo(), out, resume=True)
    assert sha256(out) == sha256(tmp_path / "whole") and job_of(out)["data"]["block"] == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 2}, "seed: 1 before, 2 now"), ({"data": {"block": 3}}, "data.block: 4 before, 3 now"),
        ({"model": {"name": "softmax", "bias": False, "l2": 0.02}}, "model.l2: 0.01 before, 0.02 now"),
        ({"compute": {"dtype": "float64"}}, "float64"),
        ({"aggregation": {"arithmetic": "exact-blocks"}}, "aggregation.arithmetic: 'exact' before, 'exact-blocks' now"),
        ({"participation": {"clients_per_round": 3}}, "participation.clients_per_round: None before, 3 now"),
    ],
)  # fmt: skip
def test_resuming_another_job_is_refused(digits: Path, whole: Path, change: dict[str, Any], said: str) -> None:
    before = contents(whole)
    with pytest.raises(MpifedError, match=said):
        other = job(digits, **change | {"data": {"path": str(digits)} | change.get("data", {})})
        run(other, Solo(), whole, resume=True)
    assert contents(whole) == before


@pytest.mark.parametrize("lost", ["checkpoint", "checkpoint/round-00000005", "data"])
def test_what_is_finished_stays_though_all_else_is_lost(digits: Path, tmp_path: Path, lost: str) -> None:
    data, out = Path(shutil.copytree(digits, tmp_path / "data")), tmp_path / "run"
    task = job(data, record={"checkpoint_every": 2})
    run(task, Solo(), out)
    shutil.rmtree(tmp_path / "data" if lost == "data" else out / lost)
    before = contents(out)
    assert run(task, Solo(), out, resume=True).rounds == 5 and contents(out) == before


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


def trained(digits: Path, out: Path, *numbers: signal.Signals) -> None:
    watching, method = [Sends(*numbers)], mf.SSCA(batch_size=8)
    mf.run(method, digits, mf.Softmax(), rounds=3, observers=watching, evaluate_every=1, out=out, progress=False)


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
    own = handlers()
    try:
        with pytest.raises(error) if error is not None else contextlib.nullcontext():
            trained(digits, tmp_path / "run", *numbers)
        assert handlers() == own and not heard
        for number in NUMBERS:
            os.kill(os.getpid(), number)
        assert heard == list(NUMBERS)
    finally:
        for number, handler in zip(NUMBERS, before, strict=True):
            signal.signal(number, handler)


def test_a_process_that_ends_is_not_killed_by_a_second_signal(digits: Path, tmp_path: Path) -> None:
    """A scheduler sends them to one node a moment after the other; `mpifed run` ends by `guarded`. And nohup holds."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
    before = handlers()
    with pytest.raises(SystemExit) as ended:
        guarded(Solo(), tmp_path / "run", lambda: run(job(digits), Solo(), tmp_path / "run", max_hours=0))
    assert ended.value.code == 75 and handlers() == [*3 * [signal.SIG_IGN], before[3]]
    for number, handler in zip(NUMBERS[:3], before, strict=False):
        signal.signal(number, handler)
    with pytest.raises(Interrupted):
        run(job(digits), Solo(), tmp_path / "other", max_hours=0)
    assert handlers() == before
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        trained(digits, tmp_path / "third", signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
