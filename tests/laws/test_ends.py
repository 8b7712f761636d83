"""However a run ends, and on whatever rank: every rank ends, with one message and the right exit code."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from launching import environment
from own_states import WRONG
from registry import table
from written_files import points_of, read_json

from mpifed.files.ends import ENDS, end_of
from mpifed.files.run_folder import summary

pytestmark = pytest.mark.launch

AVERAGING = {"name": "fedavg", "batch_size": 5, "client_optimizer": {"learning_rate": 0.3}}
SSCA = 'algorithm={name = "ssca", batch_size = 5, rho = [0.9, 0.3], gamma = [0.9, 0.35], slack_cost = %s}'
OF_NOBODY = (SSCA % "9.0", 'constraint=[{name = "own_algorithms:OfNobody", limit = 1.0}]')
NOISE = '{clip = 1.0, noise_multiplier = 1.0, delta = 1e-4, noise = "test", public_preparation = true}'
LEFT = r"the program was left, by sys.exit\(%d\) in .+own_algorithms.py, line \d+; raise an exception"


class Row(NamedTuple):
    """How a command ends."""

    code: int | None  # None: whatever the launcher makes of it, but no success
    said: tuple[str, ...]  # patterns, once each
    changes: tuple[str, ...] = ()  # of the job, or other options
    trouble: str = ""  # what happens to client 6 in round 2, or at the start
    ranks: tuple[int | None, ...] = (None, 3)
    long: tuple[int | None, ...] = ()  # other numbers of ranks
    job: str = "troubled"  # its file, of those that `folder` has


def blows_up(trouble: str, said: str, **more: Any) -> Row:
    return Row(68, ("changes.value: client 6", said), trouble=trouble, **more)


ROWS = {
    # what all ranks refuse in order
    "unknown keys": Row(
        2, (r'\[algorithm\] batches: unknown key; did you mean "batch_size"\?', 'rounds = "many"'),
        ("algorithm.batches=1", "rounds=many"), ranks=(None, 0, 1, 3),
    ),
    "a misspelt key": Row(2, ("seeed: unknown key",), ("seeed=1",), ranks=(None,)),
    "settings that do not fit the data": Row(
        2,
        (r"\[algorithm\] local_steps and local_epochs: each says how many", r"\[participation\] clients_per_round = 9"),
        ("algorithm.local_steps=2", "algorithm.local_epochs=2", "participation.clients_per_round=9"),
    ),
    "a problem that does not fit the data": Row(
        2,
        (
            r"\[algorithm\] label_holder = 1: is for data split by columns",
            r"\[algorithm\] slack_cost = \[9.0, 1.0\]: a penalty sequence", r"\[participation\] clients_per_round = 30",
            r"\[constraint 1\] limit - margin = 0", r"\[constraint 2\] classes = \[11\]",
        ),
        (
            SSCA % "[9.0, 1.0], stage_rounds = 2, label_holder = 1", "participation.clients_per_round=30",
            'constraint=[{name = "loss", limit = 0.0}, {name = "loss", classes = [11], limit = 1.0}]',
        ), job="bare",
    ),
    "a constraint that is not there": Row(
        2, ("error: constraint.9.limit: is not there; a table of a list has a number from 1, as in",),
        ('constraint=[{name = "loss", limit = 1.0}]', "constraint.9.limit=2.0"),
    ),
    "a term that counts no sample": Row(3, ("none of the 1438 samples counts",), OF_NOBODY, job="bare"),
    "a term that counts no sample, of columns": Row(  # which ends the world
        3, ("none of the 1438 samples counts",), (*OF_NOBODY, "data.path='SIDES'"), ranks=(None,), long=(3,),
        job="bare",
    ),
    "no file": Row(2, ("FOLDER/missing.toml",), job="missing"),
    "no job": Row(2, ("FOLDER/no.toml",), job="no"),
    "a bit": Row(3, ("FOLDER/bit/federation.h5",), ("data.path='FOLDER/bit'",)),
    "a short file": Row(3, ("FOLDER/short/federation.h5",), ("data.path='FOLDER/short'",)),
    "a missing file": Row(3, ("FOLDER/gone/federation.h5",), ("data.path='FOLDER/gone'",)),
    "nothing there": Row(3, ("FOLDER/nothing there: no such folder",), ("data.path='FOLDER/nothing there'",)),
    "no such module": Row(2, ("No module named 'no_such_module'",), ("algorithm.name=no_such_module:Mine",)),
    "a module that leaves": Row(2, ("importing left_early: SystemExit: 0",), ("algorithm.name=left_early:Mine",)),
    "a module that is broken": Row(
        2, ("name 'undefined' is not defined",), ("algorithm.name=broken_module:Mine",), ranks=(0, 3)
    ),
    "a class of a wrong shape": Row(
        2, (r"\[model\] name = .*loss\(\) has shape",), ("model={name = 'own_functions:WrongShape'}",), ranks=(None, 2)
    ),
    "a point of a sweep that failed": Row(
        2, (r"\[participation\] clients_per_round = 900",), ("sweep={'participation.clients_per_round' = [900, 5]}",)
    ),
    "states that no checkpoint can hold": Row(
        2, (re.escape(WRONG["ClientsBecomeWide"]),), ("algorithm.name=own_states:ClientsBecomeWide",), ranks=(2,),
        job="bare",
    ),
    # numbers that blow up
    "nan": blows_up("nan", "not finite"),
    "inf": blows_up("inf", "not finite", ranks=(None,)),
    "large": blows_up("large", "outside the bound", ranks=(None,), long=(2,)),
    "of columns": Row(  # partial scores out of their bound, at the first client who has any
        68, ("outside the bound",),
        (
            "data.path='SIDES'", 'algorithm={name = "vertical-sgd", batch_size = 5}', "rounds=50",
            "server_optimizer={learning_rate = 1e6}",
        ), job="bare",
    ),
    "a large step": Row(68, (), ("client_optimizer.learning_rate=1e30",), ranks=(None,)),
    # an end on one rank
    "an exception at the start": Row(
        1, ("RuntimeError: trouble at the start", r"on rank 2 of 3"), trouble="start", ranks=(3,)
    ),
    "an exception": Row(1, ("RuntimeError: trouble in a round", r"on rank 2 of 3"), trouble="raise", ranks=(3,)),
    "an exception alone": Row(1, ("RuntimeError: trouble in a round",), trouble="raise", ranks=(0,)),
    "an exception in a model": Row(
        1, ("RuntimeError: trouble in a loss",), ("model={name = 'own_functions:Raises'}",), ranks=(0, 2)
    ),
    # one rank must not end the others before the first has spoken: a race, seen in one of 12
    "an exception on every rank": Row(
        1, ("RuntimeError: trouble everywhere",), ("algorithm.name=own_algorithms:Everywhere",), ranks=(3,),
        long=(3, 3, 3),
    ),
    "sys.exit(0)": Row(1, (LEFT % 0,), trouble="sys.exit 0", ranks=(3,), long=(0,)),
    "sys.exit(3)": Row(1, (LEFT % 3,), trouble="sys.exit 3", ranks=(0,), long=(3,)),
    "a key of the keyboard": Row(130, ("mpifed: stopped",), trouble="interrupt", ranks=(3,), long=(0,)),
    "no memory": Row(1, ("error: not enough memory",), trouble="memory", ranks=(0,), long=(3,)),
    "no such file": Row(3, ("error: /no/such/file: No such file",), trouble="file", ranks=(0,), long=(3,)),
    "a process of its own": Row(0, (), trouble="forked", ranks=(2,)),  # which may end as it likes
    "an abort": Row(None, (), trouble="abort", ranks=(3,)),
    "a kill": Row(None, (), trouble="SIGKILL", ranks=(3,)),
    "os._exit": Row(None, (), trouble="_exit", ranks=(3,)),
    # the other codes
    "done": Row(0, (r"done \(exit 0\)",), ranks=(None,)),
    "too many leave": Row(
        1, ("in each of 2 attempts",), ("participation={dropout_rate = 0.9, max_dropouts = 1, attempts = 2}",),
        ranks=(None,),
    ),
    "not reached": Row(
        69, ("not reached in 4 rounds",), ('stop={reached = ["test_accuracy>=1.0"]}',), ranks=(None,)
    ),
    "a budget": Row(
        70, ("goes on only with a larger budget",), (f"privacy={NOISE}", "stop.epsilon=1.0", "rounds=400"),
        ranks=(None,),
    ),
    "no time": Row(75, ("interrupted after",), ("--max-hours", "0"), ranks=(None,)),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(digits: Path, write_job: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With everything there that the rows name."""
    folder = tmp_path_factory.mktemp("ends")
    troubled = AVERAGING | {"name": "own_algorithms:Troubled", "at_round": 2}
    text = write_job(folder / "troubled.toml", table(digits, troubled)).read_text()
    bare = text.replace("[client_optimizer]\nlearning_rate = 0.3\n", "").replace("at_round = 2\n", "")
    (folder / "bare.toml").write_text(bare)
    (folder / "no.toml").write_text("rounds = = 3")
    (folder / "broken_module.py").write_text("import numpy as np\n\nstep = undefined\n")
    (folder / "left_early.py").write_text("import sys\n\nsys.exit(0)\n")
    for damage in ("bit", "short", "gone"):
        shutil.copytree(digits, folder / damage)
        arrays = folder / damage / "federation.h5"
        stored, places = bytearray(arrays.read_bytes()), json.loads((folder / damage / "federation.json").read_text())
        end = places["arrays"]["X"]["offset"] + places["arrays"]["X"]["shape"][0] * places["arrays"]["X"]["shape"][1]
        stored[end - 100] ^= 1  # of the last client
        arrays.write_bytes(stored if damage == "bit" else stored[: end - 100])
        if damage == "gone":
            arrays.unlink()
    return folder


CASES = [
    *((name, ranks) for name, row in ROWS.items() for ranks in row.ranks),
    *(pytest.param(name, ranks, marks=pytest.mark.long) for name, row in ROWS.items() for ranks in row.long),
]


@pytest.mark.parametrize(("name", "ranks"), CASES)
def test_one_message_and_the_right_code(
    name: str, ranks: int | None, folder: Path, sides: Path, launch: Callable[..., Any], tmp_path: Path
) -> None:
    row, out = ROWS[name], tmp_path / "run"
    changes = [one.replace("FOLDER", str(folder)).replace("SIDES", str(sides)) for one in row.changes]
    words = changes if changes[:1] == ["--max-hours"] else [word for change in changes for word in ("--set", change)]
    job = folder / f"{row.job}.toml"
    ended = launch(ranks, "run", job, "--out", out, *words, env={"MPIFED_TEST_TROUBLE": row.trouble}, cwd=folder)
    if row.code is None:
        assert ended.code not in (0, 75), ended.text
        return
    assert ended.code == row.code, ended.text
    for said in row.said:
        assert len(re.findall(said.replace("FOLDER", str(folder)), ended.text)) == 1, (said, ended.text)
    assert len(re.findall("^mpifed: (?!warning)", ended.text, re.MULTILINE)) == (row.code != 0), ended.text
    assert "Traceback" not in ended.text or ended.text.count("mpifed: unexpected error") == 1, ended.text
    assert "Abort(" not in ended.text
    if (out / "run.json").exists():
        assert read_json(out / "run.json")["exit"] in ((row.code, None) if row.code == 2 else (end_of(row.code).code,))
    if out.exists() and row.code in (1, 3, 68) and ended.text.count("mpifed: error"):
        assert ended.text.count((out / "failure.txt").read_text().strip()) == 1
    if row.code == 2 and "key" in name:
        assert not out.exists()
    if "sweep" in name:
        assert (points_of(out)[1] / "model.safetensors").exists()


def test_every_code_has_a_row(folder: Path, launch: Callable[..., Any], tmp_path: Path) -> None:
    """That of an audit is no run's."""
    assert {end.code for end in ENDS} == {row.code for row in ROWS.values()} - {None, 130} | {71}
    assert launch(None, "run", folder / "troubled.toml", "--out", tmp_path / "run").code == 0
    ended = launch(None, "audit", tmp_path / "run")
    assert ended.code == 71 and "leak" in ended.text, ended.text


@pytest.mark.parametrize("name", WRONG)
def test_a_state_that_no_checkpoint_can_hold(name: str, folder: Path, launch: Any, tmp_path: Path) -> None:
    change = f"algorithm.name=own_states:{name}"
    ended = launch(None, "run", folder / "bare.toml", "--out", tmp_path / "run", "--set", change)
    assert ended.code == 2, ended.text
    assert f'mpifed: error: [algorithm] name = "own_states:{name}": {WRONG[name]}' in ended.text


def test_separate_worlds_are_told_from_one(launch: Callable[..., Any], folder: Path) -> None:
    """A launcher that says 3 ranks, to processes that MPI does not join."""
    ended = launch(0, "run", folder / "troubled.toml", env={"OMPI_COMM_WORLD_SIZE": "3"})
    assert ended.code == 2, ended.text
    assert "an MPI_COMM_WORLD of size 1" in ended.text and "mpiexec" in ended.text


def test_a_run_goes_on_where_nobody_reads_what_it_says(folder: Path, tmp_path: Path) -> None:
    """As by `mpifed run JOB | head`; other commands have nothing else to do, and end."""
    for words, code in ((("run", folder / "troubled.toml", "--out", tmp_path / "run"), 0), (("show", tmp_path), 1)):
        read, write = os.pipe()
        os.close(read)
        command = [sys.executable, "-m", "mpifed", *map(str, words)]
        ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=environment({}))
        os.close(write)
        assert (ended.returncode, ended.stderr) == (code, ""), words
    assert (summary(tmp_path / "run")["exit"], summary(tmp_path / "run")["rounds"]) == (0, 4)
