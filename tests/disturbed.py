"""Runs that are disturbed: their jobs, how a process dies at a step on the disk, and disks that fail from one on."""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ended
from click.testing import CliRunner
from jobs_in_python import as_in_a_file
from launching import OWN
from methods import private

from mpifed.cli import main
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.job.sweep import points
from mpifed.testing import Solo

if str(OWN) not in sys.path:
    sys.path.append(str(OWN))


class Task(NamedTuple):
    """A job that is disturbed: checkpoints after every round."""

    algorithm: dict[str, Any]
    tables: dict[str, Any]
    data: str = "digits"  # a fixture
    launches: int = 3  # that are killed at random moments, at least
    every: int = 5  # of the steps on its disk, those that are tried

    def table(self, data: Path, rounds: int) -> dict[str, Any]:
        """The job."""
        found: dict[str, Any] = {
            "name": "disturbed", "seed": 3, "rounds": rounds,
            "data": {"path": str(data)} | self.tables.get("data", {}),
            "model": {"name": "softmax", "bias": False, "l2": 1e-3},
            "algorithm": self.algorithm,
            "record": {"evaluate_every": 1, "checkpoint_every": 1},
        }  # fmt: skip
        return as_in_a_file(found | {name: table for name, table in self.tables.items() if name != "data"})


def local(name: str, rate: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "batch_size": 5, "client_optimizer": {"learning_rate": rate}, **more}


SOME = {"participation": {"clients_per_round": 3}}
TIGHT = {"data": {"state_gib": 1e-6, "memory_gib": 1e-6}}  # about one client's: the rest is out of core
FALLING = {"name": "power", "initial": 0.3, "exponent": 0.2}
COSINE = {"name": "cosine", "initial": 0.3, "rounds": 7, "final": 0.01}
STEPWISE = {"name": "step", "initial": 0.3, "factor": 0.5, "every": 2}
PDM = local("fedpdm", FALLING, rho=2.0, local_steps=2, start="own")
PEOPLE = private(level="client", noise_multiplier=1.0)
NETWORK = {
    "delay_s": 1.0, "delay_spread": 1.0, "client_spread": 0.5, "loss": 0.2, "availability": 0.7, "mean_absence": 3.0,
}  # fmt: skip
TASKS = {
    "states out of core": Task(PDM, SOME | TIGHT, every=2),
    "private": Task(PDM, SOME | PEOPLE, every=2),
    "compressed": Task(
        PDM,
        SOME | PEOPLE | {
            "compression": {"name": "rand-k", "fraction": 0.2, "memory": "error-feedback"},
            "regularizer": {"name": "l1", "weight": 1e-3},
        },
    ),
    "control variates": Task(
        local("scaffold", COSINE, local_steps=2, server_optimizer={"learning_rate": STEPWISE}), SOME
    ),
    "last answers": Task(
        {"name": "hyfdca", "rule": "theory"},
        SOME | {"model": {"name": "hinge", "bias": False, "l2": 1e-3}, "aggregation": {"security": "plain"}}, "halves",
    ),
    "encrypted": Task(local("fedavg", FALLING), {"aggregation": {"security": "encrypted"}}, every=9),
    "asynchronous": Task(
        local("fedbuff", 0.3), {"asynchrony": {"buffer": 2, "concurrency": 4}, "simulated_network": NETWORK},
        launches=10,
    ),
    "unsteady": Task(
        local("scaffold", 0.3), SOME | {"simulated_network": NETWORK | {"deadline_s": 2.0, "over_selection": 1.4}},
        launches=10,
    ),
    "own states": Task({"name": "own_states:Adam", "batch_size": 5}, SOME),
    "limits": Task(
        {"name": "ssca", "batch_size": 7, "rho": [0.9, 0.6], "gamma": [0.5, 0.7]},
        {"constraint": [{"name": "norm", "limit": 4.0}], "aggregation": {"arithmetic": "exact-blocks"}},
    ),
    "noisy gradients": Task(local("fedavg", FALLING, local_steps=2), private()),
    "own": Task(local("own_algorithms:Troubled", FALLING), {"aggregation": {"security": "masked"}}),
}  # fmt: skip


def play(table: dict[str, Any], out: Path, resume: bool = False) -> None:
    """Run a job in this process."""
    ended.run(points(table, "job")[0].job, Solo(), out, resume=resume)


def forked(work: Callable[[], None]) -> int:
    """How a copy of this process ends that does some work: its exit code, or minus a signal's number."""
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            work()
        except SystemExit as end:
            os._exit(int(end.code or 0))
        except BaseException as error:  # nothing of pytest goes on here
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


NOTHING_YET = ("is neither a run nor a sweep", "no such folder", "No such file or directory")  # what is said so early


def assert_readable(run: Path) -> None:
    """`mpifed show` says what there is, and all that stands under its own name can be read."""
    shown = CliRunner().invoke(main, ["show", str(run)])
    if (run / "run.json").exists():
        assert shown.exit_code == 0, shown.output
        summary(run)
        if (run / "history.csv").exists():
            read_history(run)
    else:
        said = "next: " in shown.output if shown.exit_code == 0 else any(words in shown.output for words in NOTHING_YET)
        assert said, (shown.output, shown.exception)


STEPS = ("rename", "replace", "fsync", "link", "unlink", "mkdir", "rmdir", "ftruncate", "pwrite")  # of `os`


def end_before_step(number: int) -> None:
    """Have this process end itself before its `number`-th step that changes something on the disk."""
    done = 0

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def act(*given: Any, **named: Any) -> Any:
            nonlocal done
            done += 1
            if done == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*given, **named)

        return act

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))


_GROWING = ("fsync", "link", "mkdir", "pwrite", "posix_fallocate")  # of `os`: what takes room on a disk
_ALL = (*_GROWING, "rename", "replace", "unlink", "rmdir")
FAULTS = {  # by the error, what ends in it
    errno.ENOSPC: _GROWING, errno.EDQUOT: _GROWING, errno.EFBIG: ("pwrite", "posix_fallocate"), errno.EIO: _ALL,
    errno.EROFS: _ALL, errno.ESTALE: _ALL,
}  # fmt: skip


def fail_from(number: int, fault: int, below: Path) -> None:
    """Let the `number`-th step that writes below a folder fail in this process, and all later ones; for ever."""
    steps = 0

    def step(path: object) -> None:
        nonlocal steps
        if str(below) in str(path):
            steps += 1
            if steps >= number:
                raise OSError(fault, os.strerror(fault))

    class Failing:
        """An open file; HDF5's are written through Python as well."""

        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def __enter__(self) -> Failing:
            self._file.__enter__()
            return self

        def __exit__(self, *given: Any) -> Any:
            return self._file.__exit__(*given)

        def write(self, content: Any) -> Any:
            step(self._file.name)
            return self._file.write(content)

    def opened(path: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        file = open_before(path, mode, *given, **named)
        return Failing(file) if set(mode) & set("wax+") else file

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def act(first: Any, *given: Any, **named: Any) -> Any:
            step(os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else first)
            return call(first, *given, **named)

        return act

    open_before = builtins.open
    builtins.open = io.open = opened  # type: ignore[assignment]
    for name in FAULTS[fault]:
        setattr(os, name, failing(getattr(os, name)))
