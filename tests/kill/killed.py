"""What kill tests share: their jobs, what must hold after every kill, and how a process ends itself at a given step."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from click.testing import CliRunner
from jobs_in_python import as_in_a_file
from launching import OWN
from whole_runs import run

from mpifed.cli import main
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.job.sweep import points
from mpifed.testing import Job, Solo

sys.path.append(str(OWN))
NAMES = ("model_sha256", "rounds", "exit", "objective", "train_loss", "up_bytes", "down_bytes", "epsilon")
BYTES = {"up_bytes", "down_bytes"}
TIMES = {"elapsed_s", "seconds_per_round", "rss_bytes"}
NOTHING_YET = ("is neither a run nor a sweep", "no such folder", "No such file or directory")  # what is said so early


class Task(NamedTuple):
    """A job that is killed: checkpoints after every round, and as many moments as there are to be hit."""

    algorithm: dict[str, Any]
    tables: dict[str, Any]
    kills: int = 0  # at least, of launches

    def table(self, data: Path, rounds: int) -> dict[str, Any]:
        """The job."""
        found: dict[str, Any] = {
            "name": "killed", "seed": 3, "rounds": rounds,
            "data": {"path": str(data)} | self.tables.get("data", {}),
            "model": {"name": "softmax", "bias": False, "l2": 1e-3},
            "algorithm": self.algorithm,
            "record": {"evaluate_every": 2, "checkpoint_every": 1},
        }  # fmt: skip
        return as_in_a_file(found | {name: table for name, table in self.tables.items() if name != "data"})


SOME = {"participation": {"clients_per_round": 3}}
TIGHT = {"data": {"state_gib": 1e-6, "memory_gib": 1e-6}}  # about one client's: the rest is out of core
PRIVATE = {
    "delta": 1e-5,
    "clip": 0.5,
    "noise_multiplier": 1.0,
    "noise": "test",
    "level": "client",
    "public_preparation": True,
}
PDM = {
    "name": "fedpdm",
    "batch_size": 5,
    "client_optimizer": {"learning_rate": {"initial": 0.3, "exponent": 0.2}},
    "rho": 2.0,
    "local_steps": 2,
    "start": "own",
}
NETWORK = {
    "delay_s": 1.0, "delay_spread": 1.0, "client_spread": 0.5, "loss": 0.2, "availability": 0.7, "mean_absence": 3.0,
}  # fmt: skip
TASKS = {
    "states out of core": Task(PDM, SOME | TIGHT),
    "private": Task(PDM, SOME | {"privacy": PRIVATE, "record": {"evaluate_every": 8, "checkpoint_every": 1}}),
    "control variates": Task({"name": "scaffold", "batch_size": 5,
    "client_optimizer": {"learning_rate": {"initial": 0.3, "exponent": 0.2}}, "local_steps": 2}, SOME),
    "last answers": Task(
        {"name": "hyfdca", "rule": "theory"},
        SOME | {"model": {"name": "hinge", "bias": False, "l2": 1e-3},
        "aggregation": {"security": "plain"}},  # no keys each time
    ),
    "encrypted": Task({"name": "fedavg", "batch_size": 5,
    "client_optimizer": {"learning_rate": {"initial": 0.3, "exponent": 0.2}}},
    {"aggregation": {"security": "encrypted"}}),
    "asynchronous": Task({"name": "fedbuff", "batch_size": 5, "client_optimizer": {"learning_rate": 0.3}},
    {"asynchrony": {"buffer": 2, "concurrency": 4}, "simulated_network": NETWORK}, kills=10),
    "unsteady": Task({"name": "scaffold", "batch_size": 5, "client_optimizer": {"learning_rate": 0.3}},
    SOME | {"simulated_network": NETWORK | {"deadline_s": 2.0, "over_selection": 1.4}}, kills=10),
    "own": Task({"name": "own_algorithms:Troubled", "batch_size": 5,
    "client_optimizer": {"learning_rate": {"initial": 0.3, "exponent": 0.2}}}, {"aggregation": {"security": "masked"}}),
}  # fmt: skip


def measured(run_dir: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """What a run has come to, without its times."""
    found = summary(run_dir)
    history = {name: column.tolist() for name, column in read_history(run_dir).items() if name not in TIMES}
    return {name: found[name] for name in NAMES}, history


def assert_same(one: Path, other: Path) -> None:
    """Two runs have the same bits; certificates are measured at an end alone, and a killed run may have had others.

    One that was resumed has agreed on new keys, and counts their bytes.
    """
    (first, history), (second, expected) = measured(one), measured(other)
    keys = set() if Job.read(one / "job.toml").channel == "plain" else BYTES
    assert {name: value for name, value in first.items() if name not in keys or value < second[name]} == {
        name: value for name, value in second.items() if name not in keys
    }
    assert list(history) == list(expected)
    for name, column in history.items():
        if name in keys:
            continue
        there = np.array(column, float)
        np.testing.assert_array_equal(there, np.array(expected[name], float), err_msg=name)


def assert_readable(run_dir: Path) -> None:
    """`mpifed show` says what there is, and all that stands under its own name can be read."""
    shown = CliRunner().invoke(main, ["show", str(run_dir)])
    if (run_dir / "run.json").exists():
        assert shown.exit_code == 0, shown.output
        summary(run_dir)
        if (run_dir / "history.csv").exists():
            read_history(run_dir)
    else:
        said = "next: " in shown.output if shown.exit_code == 0 else any(words in shown.output for words in NOTHING_YET)
        assert said, (shown.output, shown.exception)


def forked(work: Callable[[], None]) -> int:
    """How a copy of this process ends that does some work: its exit code, or minus a signal's number."""
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            work()
        except BaseException as error:  # nothing of pytest goes on here
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def play(table: dict[str, Any], out: Path, resume: bool = False) -> None:
    """Run a job in this process."""
    run(points(table, "job")[0].job, Solo(), out, resume=resume)


STEPS = ("rename", "replace", "fsync", "link", "unlink", "mkdir", "rmdir", "ftruncate", "pwrite")  # of `os`


def end_before_step(number: int) -> list[str]:
    """Have this process end itself before its `number`-th step that changes something on the disk; the steps so far."""
    done: list[str] = []

    def counted(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def act(*given: Any, **named: Any) -> Any:
            done.append(name)
            if len(done) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*given, **named)

        return act

    for name in STEPS:
        setattr(os, name, counted(name, getattr(os, name)))
    return done
