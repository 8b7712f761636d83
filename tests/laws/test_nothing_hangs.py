"""Whatever goes wrong on whatever rank: every rank ends, with one message and the right exit code."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from lengths import long_unless
from registry import table
from written_files import points_of, read_json

pytestmark = pytest.mark.launch


@pytest.fixture(scope="module")
def job_in(digits: Path, write_job: Any) -> Callable[[Path], Path]:
    """job_in(folder): the file of a job whose client 6 may have trouble in round 2."""
    own = {
        "name": "own_algorithms:Troubled",
        "batch_size": 5,
        "client_optimizer": {"learning_rate": 0.3},
        "at_round": 2,
    }
    return lambda folder: write_job(folder / "job.toml", table(digits, own))


@pytest.fixture
def job(job_in: Callable[[Path], Path], tmp_path: Path) -> Path:
    return job_in(tmp_path)


def run(launch: Callable[..., Any], ranks: int | None, job: Path, trouble: str = "", *more: object) -> Any:
    return launch(ranks, "run", job, "--out", job.parent / "run", *more, env={"MPIFED_TEST_TROUBLE": trouble})


@pytest.mark.parametrize("ranks", [None, 0, 1, 3])
def test_a_bad_job(launch: Callable[..., Any], job: Path, ranks: int | None) -> None:
    ended = run(launch, ranks, job, "", "--set", "algorithm.batches=1", "--set", "rounds=many")
    assert ended.code == 2, ended.text
    assert ended.text.count("mpifed: error") == 1, ended.text
    assert ended.text.count('[algorithm] batches: unknown key; did you mean "batch_size"?') == 1
    assert ended.text.count('rounds = "many"') == 1
    assert "Traceback" not in ended.text
    assert not (job.parent / "run").exists()


# --- refused, or ended, by all ranks in order ------------------------------------------------------------------------

SSCA = 'algorithm={name = "ssca", batch_size = 5, rho = [0.9, 0.3], gamma = [0.9, 0.35], slack_cost = %s}'
OF_NOBODY = (SSCA % "9.0", 'constraint=[{name = "own_algorithms:OfNobody", limit = 1.0}]')


class Ends(NamedTuple):
    """How a command ends."""

    job: str  # its file, of those that `commands` writes
    changes: tuple[str, ...]
    said: tuple[str, ...]  # once each
    code: int = 2


REFUSED = {
    "settings that do not fit the data": Ends(
        "job", ("algorithm.local_steps=2", "algorithm.local_epochs=2", "participation.clients_per_round=9"),
        ("[algorithm] local_steps and local_epochs: each says how many", "[participation] clients_per_round = 9"),
    ),
    "a problem that does not fit the data": Ends(
        "bare",
        (
            SSCA % "[9.0, 1.0], stage_rounds = 2, label_holder = 1", "participation.clients_per_round=30",
            'constraint=[{name = "loss", limit = 0.0}, {name = "loss", classes = [11], limit = 1.0}]',
        ),
        (
            "[algorithm] label_holder = 1: is for data split by columns",
            "[algorithm] slack_cost = [9.0, 1.0]: a penalty sequence",
            "[participation] clients_per_round = 30", "[constraint 1] limit - margin = 0",
            "[constraint 2] classes = [11]",
        ),
    ),
    "a constraint that is not there": Ends(
        "job", ('constraint=[{name = "loss", limit = 1.0}]', "constraint.9.limit=2.0"),
        ("mpifed: error: constraint.9.limit: is not there; a table of a list has a number from 1, as in",),
    ),
    "a term that counts no sample": Ends("bare", OF_NOBODY, ("none of the 1438 samples counts",), 3),
    "a term that counts no sample, of columns": Ends(
        "bare", (*OF_NOBODY, "data.path=SIDES"), ("none of the 1438 samples counts",), 3
    ),
    # partial scores out of their bound, at the first client who has any
    "numbers that blow up on columns": Ends(
        "bare",
        (
            "data.path=SIDES", 'algorithm={name = "vertical-sgd", batch_size = 5}', "rounds=50",
            "server_optimizer={learning_rate = 1e6}",
        ), ("outside the bound",), 68,
    ),
    "no file": Ends("missing", (), ("FOLDER/missing.toml",)),
    "no job": Ends("no", (), ("FOLDER/no.toml",)),
    "a bit": Ends("job", ("data.path='FOLDER/bit'",), ("FOLDER/bit/federation.h5",), 3),
    "a short file": Ends("job", ("data.path='FOLDER/short'",), ("FOLDER/short/federation.h5",), 3),
    "a missing file": Ends("job", ("data.path='FOLDER/missing'",), ("FOLDER/missing/federation.h5",), 3),
    "nothing there": Ends("job", ("data.path='FOLDER/nothing there'",), ("FOLDER/nothing there: no such folder",), 3),
    "no such module": Ends("job", ("algorithm.name=no_such_module:Mine",), ("No module named 'no_such_module'",)),
    "a point of a sweep that failed": Ends(
        "job", ("sweep={'participation.clients_per_round' = [900, 5]}",), ("[participation] clients_per_round = 900",)
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def command(
    job_in: Callable[[Path], Path], digits: Path, sides: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Path], list[str]]:
    """command(name, out): its arguments, with everything there that it names."""
    folder = tmp_path_factory.mktemp("refused")
    text = job_in(folder).read_text()
    (folder / "bare.toml").write_text(text.replace("[client_optimizer]\nlearning_rate = 0.3\n", ""))
    (folder / "no.toml").write_text("rounds = = 3")
    for damage in ("bit", "short", "missing"):
        shutil.copytree(digits, folder / damage)
        arrays = folder / damage / "federation.h5"
        stored, places = bytearray(arrays.read_bytes()), json.loads((folder / damage / "federation.json").read_text())
        end = places["arrays"]["X"]["offset"] + places["arrays"]["X"]["shape"][0] * places["arrays"]["X"]["shape"][1]
        stored[end - 100] ^= 1  # of the last client
        arrays.write_bytes(stored if damage == "bit" else stored[: end - 100])
        if damage == "missing":
            arrays.unlink()

    def command(name: str, out: Path) -> list[str]:
        changes = [one.replace("FOLDER", str(folder)).replace("SIDES", str(sides)) for one in REFUSED[name].changes]
        settings = [word for change in changes for word in ("--set", change)]
        return ["run", str(folder / f"{REFUSED[name].job}.toml"), *settings, "--out", str(out)]

    return command


@pytest.mark.parametrize(
    ("name", "ranks"),
    long_unless(
        lambda name, ranks: not (ranks and name == "a term that counts no sample, of columns"),  # which ends the world
        itertools.product(REFUSED, (None, 3)),
    ),
)
def test_refused(
    name: str, ranks: int | None, command: Callable[[str, Path], list[str]], launch: Callable[..., Any], tmp_path: Path
) -> None:
    """One message, and the right code."""
    arguments = command(name, tmp_path / "run")
    ended = launch(ranks, *arguments)
    assert ended.code == REFUSED[name].code, ended.text
    assert ended.text.count("mpifed: error") == 1, ended.text
    assert "Traceback" not in ended.text, ended.text
    for said in REFUSED[name].said:
        assert ended.text.count(said.replace("FOLDER", str(Path(arguments[1]).parent))) == 1, (said, ended.text)
    if ended.code == 3 and (tmp_path / "run").exists():
        assert ended.text.count((tmp_path / "run" / "failure.txt").read_text().strip()) == 1
    if "sweep" in name:
        assert (points_of(tmp_path / "run")[1] / "model.safetensors").exists()


# --- ended in the middle ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "trouble", "said"),
    [
        (None, "nan", "not finite"), (None, "inf", "not finite"), (None, "large", "outside the bound"),
        (3, "nan", "not finite"), pytest.param(2, "large", "outside the bound", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_numbers_that_blow_up_at_one_client(
    launch: Callable[..., Any], job: Path, ranks: int | None, trouble: str, said: str
) -> None:
    ended = run(launch, ranks, job, trouble)
    assert ended.code == 68, ended.text
    assert ended.text.count("mpifed: error: changes.value: client 6") == 1, ended.text
    assert ended.text.count(said) == 1, ended.text
    assert "Traceback" not in ended.text


@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (0, 2))])
@pytest.mark.parametrize("trouble", ["start", "raise"])
def test_an_exception_on_one_rank(launch: Callable[..., Any], job: Path, ranks: int, trouble: str) -> None:
    own = "trouble at the start" if trouble == "start" else "trouble in a round"
    ended = run(launch, ranks, job, trouble)
    assert ended.code == 1, ended.text
    assert ended.text.count("mpifed: unexpected error") == 1, ended.text
    assert ended.text.count(f"RuntimeError: {own}") == 1, ended.text
    if ranks > 1:
        assert f"on rank {ranks - 1} of {ranks}" in ended.text  # client 6 of 8 lives on the last one


LEFT = r"the program was left, by sys.exit\(%d\) in .+own_algorithms.py, line \d+; raise an exception"
# how a rank ends: the exit code, what is said, and on how many ranks; on one instead of three, or the reverse: long
ENDS = {
    "sys.exit 0": (1, LEFT % 0, 3),
    "sys.exit 3": (1, LEFT % 3, 0),
    "interrupt": (130, "mpifed: stopped", 3),
    "memory": (1, "error: not enough memory", 0),
    "file": (3, "error: /no/such/file: No such file", 0),
}


@pytest.mark.parametrize(
    ("trouble", "ranks"),
    [
        *((trouble, ranks) for trouble, (_, _, ranks) in ENDS.items()),
        *(pytest.param(trouble, 3 - ranks, marks=pytest.mark.long) for trouble, (_, _, ranks) in ENDS.items()),
    ],
)
def test_however_one_rank_ends_all_do(launch: Callable[..., Any], job: Path, trouble: str, ranks: int) -> None:
    code, said, _ = ENDS[trouble]
    ended = run(launch, ranks, job, trouble)
    assert ended.code == code, ended.text
    assert len(re.findall(said, ended.text)) == 1, ended.text
    assert ended.text.count("mpifed: ") == 1, ended.text
    assert "Abort(" not in ended.text
    assert read_json(job.parent / "run" / "run.json")["exit"] == code


@pytest.mark.parametrize("ranks", [None, 3])
def test_an_exit_at_the_start(launch: Callable[..., Any], job: Path, ranks: int | None) -> None:
    """Before any round all ranks agree, and end in order."""
    (job.parent / "leaving.py").write_text("import sys\n\nsys.exit(0)\n")
    ended = launch(
        ranks, "run", job, "--out", job.parent / "run", "--set", "algorithm.name=leaving:Mine", cwd=job.parent,
    )  # fmt: skip
    assert ended.code == 2, ended.text
    assert ended.text.count("importing leaving: SystemExit: 0") == 1, ended.text


def test_a_process_of_its_own_may_end(launch: Callable[..., Any], job: Path) -> None:
    ended = run(launch, 2, job, "forked")
    assert ended.code == 0, ended.text


def test_a_rank_that_aborts_ends_the_others(launch: Callable[..., Any], job: Path) -> None:
    assert run(launch, 3, job, "abort").code not in (0, 75)


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.long)])
def test_an_exception_on_every_rank_is_told_once(launch: Callable[..., Any], job: Path, times: int) -> None:
    for number in range(
        times
    ):  # one rank must not end the others before the first has spoken: a race, seen in one of 12
        ended = run(launch, 3, job, "", "--set", "algorithm.name=own_algorithms:Everywhere")
        assert ended.code == 1, ended.text
        assert ended.text.count("RuntimeError: trouble everywhere") == 1, ended.text
        (job.parent / "run").rename(job.parent / f"run-{number}")


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_users_module_that_cannot_be_imported(launch: Callable[..., Any], job: Path, ranks: int) -> None:
    (job.parent / "broken_module.py").write_text("import numpy as np\n\nstep = undefined\n")
    ended = launch(
        ranks, "run", job, "--out", job.parent / "run", "--set", "algorithm.name=broken_module:Mine", cwd=job.parent,
    )  # fmt: skip
    assert ended.code != 0
    assert ended.text.count("name 'undefined' is not defined") == 1, ended.text


def test_a_rank_that_is_killed_ends_the_others(launch: Callable[..., Any], job: Path) -> None:
    ended = run(launch, 3, job, "SIGKILL")
    assert ended.code not in (0, 75), ended.text


def test_separate_worlds_are_told_from_one(launch: Callable[..., Any], job: Path) -> None:
    """A launcher that says 3 ranks, to processes that MPI does not join."""
    ended = launch(0, "run", job, env={"OMPI_COMM_WORLD_SIZE": "3"})
    assert ended.code == 2, ended.text
    assert "an MPI_COMM_WORLD of size 1" in ended.text
    assert "mpiexec" in ended.text
