"""A run in this process: what it leaves behind, on the disk before it goes on, and how its process ends."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import run
from jobs_in_python import SOFTMAX, checked, fedavg, job_table
from launching import environment
from written_files import SUMMARY, read_json

import mpifed as mf
from mpifed.core.errors import Interrupted
from mpifed.core.record import leaves
from mpifed.data.partition import Partition
from mpifed.data.scaling import IDENTITY
from mpifed.data.store import make_federation, open_federation
from mpifed.files.history import read_history
from mpifed.files.model_file import model_sha256, read_model
from mpifed.files.run_folder import summary
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
    assert result is not None and (result.run_dir, result.rounds) == (out, 5)
    stored, history, found = read_model(out / "model.safetensors"), read_history(out), read_json(out / "run.json")
    assert stored.keys() == {"first"} and np.array_equal(stored["first"], result.model.first)
    assert history["round"].tolist() == [0, 2, 4, 5] and history["objective"][-1] < history["objective"][0]
    assert list(history)[:4] == ["round", "elapsed_s", "train_loss", "test_accuracy"]
    assert history["up_bytes"].tolist() == [t * 8 * (640 + 1) * 8 for t in (0, 2, 4, 5)]  # 8 clients, int64
    assert history["down_bytes"].tolist() == [t * 8 * (640 * 4 + 8) for t in (0, 2, 4, 5)]
    assert (np.diff(history["elapsed_s"]) >= 0).all()
    assert (found["exit"], found["rounds"], found["ranks"], found["seed"]) == (0, 5, 1, 1)
    assert found["versions"]["numpy"] == np.__version__ and found["ended"] >= found["started"]
    told = summary(out)
    assert found["peak_rss_bytes"] > 2**20 and tuple(told) == SUMMARY and told["epsilon"] is None
    assert told["model_sha256"] == model_sha256(dict(leaves(result.model)))
    assert told["nonzeros"] == np.count_nonzero(stored["first"])
    json.dumps(told)


@pytest.mark.parametrize(
    ("given", "number"),
    [
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


CLIENTS = 10**5


@pytest.mark.parametrize(("most", "each"), [(1, 30), (2, 40)])
def test_a_hosted_client_takes_few_bytes_beside_its_rows(most: int, each: int, tmp_path: Path) -> None:
    """Placed and ready for the first round, in blocks of one; with as many rows as the others, and with more."""
    counts = np.arange(CLIENTS) % most + 1
    rows = np.split(np.arange(counts.sum()), np.cumsum(counts)[:-1])
    who = Partition("rows", rows, [np.arange(1)], np.stack([np.arange(CLIENTS), np.zeros(CLIENTS, int)], axis=1))
    y, X = np.arange(counts.sum()) % 2, np.zeros((counts.sum(), 1), "u1")
    make_federation(who, y, X, IDENTITY, tmp_path, classes=2, seed=0, provenance={})
    table = job_table(
        tmp_path, data={"path": str(tmp_path), "block": 1}, participation={"clients_per_round": 5},
        algorithm=fedavg(1, local_steps=1),
    )  # fmt: skip
    task = checked(table)
    prepare(task, Solo())  # what it imports is no client's
    tracemalloc.start()
    ready = prepare(task, Solo())
    assert ready.algorithm.problem.weights[1] == counts[1] / counts.mean()
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    of_a_row = 1 + 8  # its value and its label
    assert taken - of_a_row * counts.sum() < each * CLIENTS
    assert len(ready.ranks.blocks) == CLIENTS


# --- the disk --------------------------------------------------------------------------------------------------------

LISTENING = """
import atexit, json, os, sys

done = []


def heard(name, act):
    def call(first, *others, **named):
        path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else os.path.abspath(first)
        size = os.stat(path).st_size if os.path.isfile(path) else None
        result = act(first, *others, **named)
        done.append([name, path, size, *map(os.path.abspath, others)])
        return result

    return call


for name in ("fsync", "rename", "replace"):
    setattr(os, name, heard(name, getattr(os, name)))
atexit.register(lambda: json.dump(done, open("done.json", "w")))
from mpifed.cli import main

main(sys.argv[1:])
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux says which file is synced")
def test_write_sync_rename_sync(tmp_path: Path, classes: Path, write_job: Callable[..., Path]) -> None:
    """A checkpoint is on the disk before it has its name, and its name before the run goes on."""
    algorithm = {"name": "scaffold", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}}
    record = {"checkpoint_every": 1, "evaluate_every": 2}
    job = write_job(tmp_path / "job.toml", job_table(classes, rounds=2, algorithm=algorithm, record=record))
    command = [sys.executable, "-c", LISTENING, "run", str(job), "--out", "run"]
    subprocess.run(command, cwd=tmp_path, env=environment({}), capture_output=True, check=True)
    written = (tmp_path / "done.json").read_text()
    done: list[list[Any]] = json.loads(re.sub(r"\.(manifest\.json)\.\w+\.new", r"\1.part", written))
    for number in (1, 2):
        final = tmp_path.resolve() / "run" / "checkpoint" / f"round-{number:08d}"
        aside, sizes = f"{final}.new", {path.name: path.stat().st_size for path in final.iterdir()}
        clients = f"clients-{number:08d}-00000.states"
        first = next(i for i, (_, path, *_) in enumerate(done) if path.startswith(aside))
        assert done[first : first + 7] == [
            ["fsync", f"{aside}/server.states", sizes["server.states"]],  # all of it has been written by then
            ["fsync", f"{aside}/{clients}", sizes[clients]],
            ["fsync", f"{aside}/manifest.json.part", sizes["manifest.json"]],
            ["replace", f"{aside}/manifest.json.part", sizes["manifest.json"], f"{aside}/manifest.json"],
            ["fsync", aside, None],  # the names in it
            ["rename", aside, None, str(final)],
            ["fsync", str(final.parent), None],
        ]
        assert done[first - 1][:2] == ["fsync", str(tmp_path.resolve() / "run" / "history.csv")]  # its rows, before


HEADER = "# A job.\n# Make the shards:  mpifed data mnist --split rows \\\n#   --clients 10 --out data/mnist-rows-10\n"


def test_data_that_are_not_there_are_named_with_the_command(tmp_path: Path, launch: Any) -> None:
    (tmp_path / "job.toml").write_text(HEADER + job(Path("data/mnist-rows-10")).text())
    for command in ("run", "check"):
        ended = launch(None, command, "job.toml", cwd=tmp_path)
        assert ended.code == 3 and "data/mnist-rows-10: no such folder; as job.toml says" in ended.text
        assert "`mpifed data mnist --split rows --clients 10 --out data/mnist-rows-10`" in ended.text
    ended = launch(None, "run", "job.toml", "--set", "data.path=elsewhere", cwd=tmp_path)
    assert ended.code == 3 and "`mpifed data SOURCE ... --out elsewhere`" in ended.text


# --- the end of a process, whatever own classes do -------------------------------------------------------------------


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
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        trained(digits, tmp_path / "third", signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
