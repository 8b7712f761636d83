"""Whatever goes wrong on whatever rank: every rank ends, with one message and the right exit code."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from registry import table

from mpifed.files.json_file import read_json

pytestmark = pytest.mark.launch
LEFT = "the program was left, by"
LIMIT_S = 30.0  # a world that ends takes 2 s; one that hangs takes for ever


@pytest.fixture
def job(digits: Path, write_job: Any, tmp_path: Path) -> Path:
    own = {
        "name": "own_algorithms:Troubled",
        "batch_size": 5,
        "client_optimizer": {"learning_rate": 0.3},
        "at_round": 2,
    }
    return write_job(tmp_path / "job.toml", table(digits, own))


def run(launch: Callable[..., Any], ranks: int, job: Path, trouble: str = "", *more: object) -> Any:
    return launch(
        ranks, "run", job, "--out", job.parent / "run", *more, limit_s=LIMIT_S, env={"MPIFED_TEST_TROUBLE": trouble}
    )


@pytest.mark.parametrize("ranks", [0, 1, 3])
def test_a_bad_job(launch: Callable[..., Any], job: Path, ranks: int) -> None:
    ended = run(launch, ranks, job, "", "--set", "algorithm.batches=1", "--set", "rounds=many")
    assert ended.code == 2, ended.text
    assert ended.text.count("mpifed: error") == 1, ended.text
    assert ended.text.count('[algorithm] batches: unknown key; did you mean "batch_size"?') == 1
    assert ended.text.count('rounds = "many"') == 1
    assert "Traceback" not in ended.text
    assert not (job.parent / "run").exists()


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_job_that_does_not_fit_the_data(launch: Callable[..., Any], job: Path, ranks: int) -> None:
    ended = run(
        launch, ranks, job, "", "--set", "algorithm.batch_size=10000", "--set", "participation.clients_per_round=9"
    )
    assert ended.code == 2, ended.text
    assert ended.text.count("mpifed: error") == 1, ended.text
    assert ended.text.count("[algorithm] batch_size = 10000: the smallest shard") == 1
    assert ended.text.count("[participation] clients_per_round = 9") == 1


def without_optimizer(job: Path) -> None:
    """SSCA takes none."""
    job.write_text(job.read_text().replace("[client_optimizer]\nlearning_rate = 0.3\n", ""))


SSCA = (
    '{name = "NAME", batch_size = 5, rho = [0.9, 0.3], gamma = [0.9, 0.35], slack_cost = [9.0, 1.0], stage_rounds = 2}'
)


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_problem_that_does_not_fit_the_data(launch: Callable[..., Any], job: Path, ranks: int) -> None:
    changes = (
        f"algorithm={SSCA.replace('NAME', 'ssca').replace('}', ', label_holder = 1}')}",
        "participation.clients_per_round=30",
        'constraint=[{name = "loss", limit = 0.0}, {name = "loss", classes = [11], limit = 1.0}]',
    )  # fmt: skip
    without_optimizer(job)
    ended = run(launch, ranks, job, "", *(part for change in changes for part in ("--set", change)))
    assert ended.code == 2, ended.text
    assert ended.text.count("mpifed: error") == 1, ended.text
    for said in (
        "[algorithm] label_holder = 1: is for data split by columns",
        "[algorithm] slack_cost = [9.0, 1.0]: a penalty sequence",
        "[participation] clients_per_round = 30", "[constraint 1] limit - margin = 0", "[constraint 2] classes = [11]",
    ):  # fmt: skip
        assert ended.text.count(said) == 1, (said, ended.text)


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_constraint_that_is_not_there(launch: Callable[..., Any], job: Path, ranks: int) -> None:
    changes = ("--set", 'constraint=[{name = "loss", limit = 1.0}]', "--set", "constraint.9.limit=2.0")
    ended = run(launch, ranks, job, "", *changes)
    assert ended.code == 2, ended.text
    assert ended.text.count("mpifed: error: constraint.9.limit: there is no number 9") == 1, ended.text


@pytest.mark.parametrize("ranks", [0, 3])
@pytest.mark.parametrize("split", ["rows", "columns"])
def test_a_term_that_counts_no_sample(
    launch: Callable[..., Any], job: Path, digits: Path, sides: Path, split: str, ranks: int
) -> None:
    algorithm = SSCA.replace("NAME", "ssca").replace("[9.0, 1.0]", "9.0")
    limit = 'constraint=[{name = "own_algorithms:OfNobody", limit = 1.0}]'
    changes = (f"data.path={sides if split == 'columns' else digits}", f"algorithm={algorithm}", limit)
    without_optimizer(job)
    ended = run(launch, ranks, job, "", *(part for change in changes for part in ("--set", change)))
    assert ended.code == 3, ended.text
    assert ended.text.count("none of the 1438 samples counts") == 1, ended.text
    assert "Traceback" not in ended.text


@pytest.mark.parametrize("ranks", [0, 3])
def test_numbers_that_blow_up_on_columns(launch: Callable[..., Any], job: Path, sides: Path, ranks: int) -> None:
    """Partial scores out of their bound, at the first client who has any."""
    algorithm = '{name = "vertical-sgd", batch_size = 5}'
    job.write_text(job.read_text().replace("[client_optimizer]", "[server_optimizer]"))
    changes = (f"data.path={sides}", f"algorithm={algorithm}", "server_optimizer.learning_rate=1e6", "rounds=50")
    ended = run(launch, ranks, job, "", *(part for change in changes for part in ("--set", change)))
    assert ended.code == 4, ended.text
    assert ended.text.count("mpifed: error: ") == 1, ended.text
    assert "outside the bound" in ended.text or "not finite" in ended.text
    assert "Traceback" not in ended.text


@pytest.mark.parametrize("ranks", [0, 3])
@pytest.mark.parametrize("name", ["missing.toml", "no.toml"])
def test_no_job(launch: Callable[..., Any], tmp_path: Path, ranks: int, name: str) -> None:
    (tmp_path / "no.toml").write_text("rounds = = 3")
    ended = run(launch, ranks, tmp_path / name)
    assert ended.code == 2, ended.text
    assert ended.text.count("mpifed: error") == 1, ended.text
    assert ended.text.count(str(tmp_path / name)) == 1


@pytest.mark.parametrize("ranks", [0, 3])
@pytest.mark.parametrize("damage", ["bit", "short", "missing", "nothing there"])
def test_damaged_data(launch: Callable[..., Any], digits: Path, job: Path, ranks: int, damage: str) -> None:
    copy = job.parent / "copy"
    shutil.copytree(digits, copy)
    shard = copy / "shard-00006.h5"
    stored = bytearray(shard.read_bytes())
    if damage == "bit":
        stored[-100] ^= 1
        shard.write_bytes(stored)
    elif damage == "short":
        shard.write_bytes(stored[:-100])
    elif damage == "missing":
        shard.unlink()
    else:
        shutil.rmtree(copy)
        shard = copy
    ended = run(launch, ranks, job, "", "--set", f"data.path='{copy}'")
    assert ended.code == 3, ended.text
    assert ended.text.count("mpifed: error") == 1, ended.text
    assert str(shard) in ended.text
    assert "Traceback" not in ended.text


@pytest.mark.parametrize("ranks", [0, 2, 3])
@pytest.mark.parametrize(
    ("trouble", "said"), [("nan", "not finite"), ("inf", "not finite"), ("large", "outside the bound")]
)
def test_numbers_that_blow_up_at_one_client(
    launch: Callable[..., Any], job: Path, ranks: int, trouble: str, said: str
) -> None:
    ended = run(launch, ranks, job, trouble)
    assert ended.code == 4, ended.text
    assert ended.text.count("mpifed: error: changes.value.first: client 6") == 1, ended.text
    assert ended.text.count(said) == 1, ended.text
    assert "Traceback" not in ended.text


@pytest.mark.parametrize("trouble", ["nan", "inf"])
def test_numbers_that_blow_up_in_float_sums(launch: Callable[..., Any], job: Path, trouble: str) -> None:
    ended = run(launch, 3, job, trouble, "--set", "aggregation.arithmetic=float", "--set", "algorithm.local_steps=2")
    assert ended.code == 4, ended.text
    assert ended.text.count("mpifed: error: changes.value.first") == 1, ended.text


@pytest.mark.parametrize("ranks", [0, 2, 3])
@pytest.mark.parametrize("trouble", ["start", "raise"])
def test_an_exception_on_one_rank(launch: Callable[..., Any], job: Path, ranks: int, trouble: str) -> None:
    own = "trouble at the start" if trouble == "start" else "trouble in a round"
    ended = run(launch, ranks, job, trouble)
    assert ended.code == 1, ended.text
    assert ended.text.count("mpifed: unexpected error") == 1, ended.text
    assert ended.text.count(f"RuntimeError: {own}") == 1, ended.text
    if ranks > 1:
        assert f"on rank {ranks - 1} of {ranks}" in ended.text  # client 6 of 8 lives on the last one


@pytest.mark.parametrize("ranks", [0, 3])
@pytest.mark.parametrize(
    ("trouble", "code", "said"),
    [
        ("sys.exit 0", 1, rf"{LEFT} sys.exit\(0\) in \S+own_algorithms.py, line \d+; raise an exception"),
        ("sys.exit 3", 1, rf"{LEFT} sys.exit\(3\) in \S+own_algorithms.py, line \d+; raise an exception"),
        ("os._exit 0", 1, rf"{LEFT} os._exit\(0\) in \S+own_algorithms.py, line \d+; raise an exception"),
        ("os._exit 3", 1, rf"{LEFT} os._exit\(3\) in \S+own_algorithms.py, line \d+; raise an exception"),
        ("thread", 1, "ZeroDivisionError"),
        ("interrupt", 130, "mpifed: stopped"),
        ("memory", 1, "error: not enough memory"),
        ("file", 1, "unexpected error(.*\n)+.*FileNotFoundError"),  # a defect of the user's own class
    ],
)
def test_however_one_rank_ends_all_do(
    launch: Callable[..., Any], job: Path, ranks: int, trouble: str, code: int, said: str
) -> None:
    ended = run(launch, ranks, job, trouble)
    assert ended.code == code, ended.text
    assert len(re.findall(said, ended.text)) == 1, ended.text
    assert ended.text.count("mpifed: ") == 1, ended.text
    assert "Abort(" not in ended.text
    assert read_json(job.parent / "run" / "run.json")["exit"] == code


@pytest.mark.parametrize("ranks", [0, 3])
def test_an_exit_at_the_start(launch: Callable[..., Any], job: Path, ranks: int) -> None:
    """Before any round all ranks agree, and end in order."""
    (job.parent / "leaving.py").write_text("import sys\n\nsys.exit(0)\n")
    ended = launch(
        ranks, "run", job, "--out", job.parent / "run", "--set", "algorithm.name=leaving:Mine", cwd=job.parent,
        limit_s=LIMIT_S,
    )  # fmt: skip
    assert ended.code == 2, ended.text
    assert ended.text.count("importing leaving leaves the program (sys.exit)") == 1, ended.text


def test_a_process_of_its_own_may_end(launch: Callable[..., Any], job: Path) -> None:
    ended = run(launch, 2, job, "forked")
    assert ended.code == 0, ended.text


def test_a_rank_that_aborts_ends_the_others(launch: Callable[..., Any], job: Path) -> None:
    assert run(launch, 3, job, "abort").code not in (0, 75)


def test_an_exception_on_every_rank_is_told_once(launch: Callable[..., Any], job: Path) -> None:
    for number in range(4):  # one rank must not end the others before the first has spoken: a race, seen in one of 12
        ended = run(launch, 3, job, "", "--set", "algorithm.name=own_algorithms:Everywhere")
        assert ended.code == 1, ended.text
        assert ended.text.count("RuntimeError: trouble everywhere") == 1, ended.text
        (job.parent / "run").rename(job.parent / f"run-{number}")


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_users_module_that_cannot_be_imported(launch: Callable[..., Any], job: Path, ranks: int) -> None:
    (job.parent / "broken_module.py").write_text("import numpy as np\n\nstep = undefined\n")
    ended = launch(
        ranks, "run", job, "--out", job.parent / "run", "--set", "algorithm.name=broken_module:Mine", cwd=job.parent,
        limit_s=LIMIT_S,
    )  # fmt: skip
    assert ended.code != 0
    assert ended.text.count("name 'undefined' is not defined") == 1, ended.text


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_users_module_that_does_not_exist(launch: Callable[..., Any], job: Path, ranks: int) -> None:
    ended = run(launch, ranks, job, "", "--set", "algorithm.name=no_such_module:Mine")
    assert ended.code == 2, ended.text
    assert ended.text.count("No module named 'no_such_module'") == 1, ended.text
    assert ended.text.count("mpifed: error") == 1, ended.text


def test_a_rank_that_is_killed_ends_the_others(launch: Callable[..., Any], job: Path) -> None:
    ended = run(launch, 3, job, "SIGKILL")
    assert ended.code not in (0, 75), ended.text


def test_separate_worlds_are_told_from_one(launch: Callable[..., Any], job: Path) -> None:
    """A launcher that says 3 ranks, to processes that MPI does not join."""
    ended = launch(0, "run", job, limit_s=LIMIT_S, env={"OMPI_COMM_WORLD_SIZE": "3"})
    assert ended.code == 2, ended.text
    assert "an MPI_COMM_WORLD of size 1" in ended.text
    assert "mpiexec" in ended.text


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_sweep_goes_on_after_a_point_that_failed_on_all_ranks(
    launch: Callable[..., Any], digits: Path, write_job: Any, tmp_path: Path, ranks: int
) -> None:
    job = table(digits, {"name": "fedavg", "batch_size": 5, "client_optimizer": {"learning_rate": 0.3}})
    job["sweep"] = {"algorithm.batch_size": [10000, 5]}
    ended = launch(ranks, "run", write_job(tmp_path / "job.toml", job), "--out", tmp_path / "run", limit_s=LIMIT_S)
    assert ended.code == 2, ended.text
    assert ended.text.count("mpifed: error") == 1
    assert (tmp_path / "run" / "point-0001" / "model.h5").exists()
