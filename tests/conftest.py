"""Data, launches and MPI guards that all tests share."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy is loaded: the bits depend on it

import numpy as np
import pytest
from hypothesis import settings
from launching import environment, mpiexec
from quick import quick_disk_and_pools
from standing import World

settings.register_profile("mpifed", deadline=None)  # how long an example takes depends on who else is on the machine
settings.load_profile("mpifed")

LAUNCH_LIMIT_S = 600.0  # only what hangs takes as long, whoever else is on the machine
_HERE = Path(__file__).parent
STANDING = [("-m", "mpifed"), (str(_HERE / "laws/sweeps.py"),)]
MARKED_FOLDERS = {"models": "models", "kill": "kill", "slurm": "slurm", "fuzz": "long"}  # with the marker of all tests
OF_A_COMMAND = ("MPIFED_", "CUDA_", "MPICH_GPU_")  # variables that mpifed reads when it is called
GRACE_S = 5.0  # how long a rank that failed waits for the others before it ends them

# --- loops over memory, compiled and not ------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["compiled", "numpy"])
def loops_by(request: pytest.FixtureRequest) -> Iterator[str]:
    """The tests of a module twice: with the compiled loops, where they could be built, and with NumPy's calls."""
    from mpifed.core import loops

    if request.param == "compiled" and loops.compiled is None:
        pytest.skip("there was no C compiler when mpifed was installed")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(loops, "compiled", None)
        yield request.param


# --- several ranks in one pytest: who fails alone ends all -------------------------------------------------------


class _Guard:
    """Keeps ranks that run the same tests together.

    After each test the ranks wait for each other on a communicator of their own. A rank that failed and is left
    alone there has broken a collective call of the test: it ends all ranks, which would wait for ever.
    """

    def __init__(self, world: Any, config: pytest.Config) -> None:
        self.world, self.config = world, config
        self.comm = world.Dup()
        self.failed = False
        self.failures = 0

    def meet(self) -> None:
        """Wait for the other ranks at the end of a test."""
        mine = np.array([self.failed], dtype=np.int64)
        total = np.zeros(1, dtype=np.int64)
        request, waited = self.comm.Iallreduce(mine, total), time.monotonic()
        while not request.Test():
            if self.failed and time.monotonic() - waited > GRACE_S:
                self.end(f"rank {self.world.rank} failed while others wait: ending all ranks")
            time.sleep(0.001)
        self.failures += int(total[0])

    def uncapture(self) -> None:
        """What is written from here on is seen."""
        capture = self.config.pluginmanager.get_plugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture(in_=True)

    def end(self, why: str) -> None:
        """End every rank."""
        self.uncapture()
        print(f"\n{why}", file=sys.__stderr__, flush=True)
        self.world.Abort(1)
        os._exit(1)


_guard: _Guard | None = None


def pytest_configure(config: pytest.Config) -> None:
    """Under `mpiexec ... pytest --with-mpi`: the guard, and a terminal of rank 0 alone."""
    global _guard
    gc.disable()  # until all is collected: a quarter of the time
    config.addinivalue_line("markers", "launch: starts mpiexec")
    if config.getoption("--with-mpi", False):
        from mpi4py import MPI

        if MPI.COMM_WORLD.size > 1:
            _guard = _Guard(MPI.COMM_WORLD, config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders of which `-m` takes nothing: for the others nobody imports PyTorch, JAX and scikit-learn."""
    marker, chosen = MARKED_FOLDERS.get(collection_path.name), config.getoption("markexpr")
    of_its_own = marker is not None and collection_path.parent == _HERE
    return True if of_its_own and chosen and (marker not in chosen or chosen.startswith("not (")) else None


def pytest_collection_finish() -> None:
    """What 10,000 collected tests hold is not looked through again by the garbage collector."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000)  # they make much that is no garbage: a tenth of the time


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Only rank 0 writes reports; the failures of the others are written by `pytest_runtest_makereport`."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if _guard is not None and _guard.world.rank and reporter is not None:
        reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115 - until the process ends


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """One test, and then all ranks meet; signals that an interrupted run has left ignored are heard again."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)}
    if _guard is not None:
        _guard.failed = False
    result = yield
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) != handler:  # None: not set by Python
            signal.signal(number, handler)
    if _guard is not None:
        _guard.meet()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """Every rank's failures are seen."""
    report = yield
    if _guard is not None and report.failed:
        _guard.failed = True
        print(
            f"\nrank {_guard.world.rank}: {report.nodeid} ({report.when}) failed\n{report.longreprtext}",
            file=sys.__stderr__,
            flush=True,
        )
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A failure on any rank is one of all ranks."""
    if _guard is not None and _guard.failures and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """The time limit of pytest-timeout ends all ranks, where there are several."""
    if _guard is None:
        return None

    def late(guard: _Guard = _guard) -> None:
        guard.uncapture()
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        guard.end(f"rank {guard.world.rank}: {item.nodeid} took more than {settings.timeout:g} s: ending all ranks")

    timer = threading.Timer(settings.timeout, late)
    timer.daemon = True
    timer.start()
    item.stash[_TIMER] = timer
    return True


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """In time."""
    timer = item.stash.get(_TIMER, None)
    if timer is None:
        return None
    timer.cancel()
    return True


_TIMER = pytest.StashKey[threading.Timer]()


# --- data --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def quick_runs() -> Iterator[None]:
    """Runs of this process look for libraries once, and wait for no disk; public names alone are replaced.

    Nor do they count what `pytest_collection_finish` has made permanent, half a million objects.
    """
    with quick_disk_and_pools(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", lambda: 1)
        yield


@pytest.fixture(scope="session")
def shared_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all ranks of this session share."""
    if _guard is None:
        return tmp_path_factory.mktemp("shared")
    return Path(_guard.comm.bcast(str(tmp_path_factory.mktemp("shared")) if _guard.comm.rank == 0 else None))


@pytest.fixture
def shared_tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for one test, the same on all ranks."""
    if _guard is None:
        return tmp_path_factory.mktemp("test")
    return Path(_guard.comm.bcast(str(tmp_path_factory.mktemp("test")) if _guard.comm.rank == 0 else None))


@pytest.fixture(scope="module")
def without_torch() -> None:
    """tensorboardX would import PyTorch where it finds it, for seconds."""
    with pytest.MonkeyPatch.context() as patch:
        if "torch" not in sys.modules:
            patch.setitem(sys.modules, "torch", None)
        importlib.import_module("tensorboardX")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for one test, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _make_data(out: Path, *arguments: str) -> Path:
    """A data folder, made by `mpifed data` on rank 0."""
    from click.testing import CliRunner
    from mapped import with_map

    from mpifed.cli import main

    failed = None
    if _guard is None or _guard.comm.rank == 0:
        done = CliRunner().invoke(main, ["data", *with_map(arguments), "--out", str(out)])
        failed = done.output if done.exit_code else None
    if _guard is not None:
        failed = _guard.comm.bcast(failed)
    assert failed is None, failed
    return out


@pytest.fixture(scope="session")
def make_data() -> Callable[..., Path]:
    """make_data(out, *arguments): a data folder, made by `mpifed data` on rank 0."""
    return _make_data


@pytest.fixture
def real_data() -> Path:
    """The folder of real data sets."""
    folder = os.environ.get("MPIFED_DATA")
    if not folder:
        pytest.skip("the environment variable MPIFED_DATA does not name the folder of real data")
    return Path(folder)


def _data(words: str, rectangles: Sequence[str] = ()) -> Any:
    """A fixture: the folder that `mpifed data` makes of these words, and of a map with these lines, if any."""

    @pytest.fixture(scope="session")
    def made(shared_path: Path, request: pytest.FixtureRequest) -> Path:
        folder = shared_path / str(request.fixturename)
        if rectangles and (_guard is None or _guard.comm.rank == 0):
            folder.with_suffix(".csv").write_text("\n".join(["client,rows,columns", *rectangles, ""]), encoding="utf-8")
        given = ["--map", str(folder.with_suffix(".csv"))] if rectangles else []
        return _make_data(folder, *words.split(), *given)

    return made


_BINARY = "--labels even-odd --scale unit-rows"
_CLASSES = "synthetic --samples 240 --features 6 --task classification --classes 3 --noise 0.5"
_HELD = [[5], range(0, 64, 8), [c for c in range(64) if c % 3 == 1 and c % 8]]
_HELD.append([c for c in range(64) if not any(c in one for one in _HELD)])

# 8 clients with 179 or 180 rows each, and test rows
digits = _data("digits --split rows --clients 8 --test-fraction 0.2")
# 11 clients of very different sizes and classes, several in a file
skewed = _data("digits --split rows --clients 11 --skew 2 --partition dirichlet:1 --seed 3")
# 7 clients of very different sizes, several in a file, with real targets, and test rows of their own
tested = _data("synthetic --split rows --clients 7 --samples 120 --features 5 --skew 0.7 --client-test-fraction 0.3")
# 5 clients with 13 or 12 columns each of the same 1438 rows of the digits, and test rows
sides = _data("digits --split columns --clients 5 --test-fraction 0.2")
# 4 clients with 1, 8, 19 and 36 columns of the digits' rows, hardly any side by side, two in a file
scattered = _data(
    "digits --split grid", [f"{client},all,{' '.join(map(str, columns))}" for client, columns in enumerate(_HELD)]
)
# 6 clients with 239 or 240 rows each of even and odd digits, and test rows
halves = _data(f"digits --split rows --clients 6 --test-fraction 0.2 {_BINARY}")
# 2 groups of rows times 3 of columns of even and odd digits, and test rows
patches = _data(f"digits --split grid --grid 2x3 --test-fraction 0.2 {_BINARY}")
# 7 clients with rectangles of even and odd digits that share rows, or columns, in part; several in a file
patchwork = _data(
    f"digits --split grid {_BINARY}",
    [
        "0,0-899,0-20", "1,900-1796,0-10", "2,900-1796,11-20", "3,0-499,21-63", "4,500-1499,21-40",
        "5,500-1499,41-63", "6,1500-1796,21-63",
    ],
)  # fmt: skip
# 5 clients with 3 or 2 columns each of the same 60 rows, for a regression
columns = _data("synthetic --split columns --clients 5 --samples 60 --features 13")
# 6 clients of different sizes with rows of a regression
regression = _data("synthetic --split rows --clients 6 --samples 300 --features 7 --skew 5")
# 4 clients with rows of 3 classes, 6 features
classes = _data(f"{_CLASSES} --split rows --clients 4")
# 3 clients with 2 columns each of 240 rows of 3 classes
by_columns = _data(f"{_CLASSES} --split columns --clients 3")


class ArrayShard:
    """A client's rows given as an array; see `mpifed.data.block.ClientData`."""

    joint = None

    def __init__(self, client: int, X: Any, y: Any) -> None:
        self.client, self.X, self.y = client, X, np.asarray(y)
        self.samples, self.features = X.shape
        self.sparse = not isinstance(X, np.ndarray)
        self.rows, self.columns = np.arange(self.samples), np.arange(self.features)

    def take(self, at: Any, out: Any) -> None:
        """Put rows into `out`."""
        out[...] = self.X[at]

    def take_sparse(self, at: Any, dtype: Any) -> Any:
        """Rows as CSR."""
        return self.X[at].astype(dtype)


@pytest.fixture(scope="session")
def array_shard() -> type[ArrayShard]:
    """The class of shards in memory."""
    return ArrayShard


# --- launches ----------------------------------------------------------------------------------------------------


class Ended(NamedTuple):
    """How a launch ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All that was written."""
        return self.out + self.err


def _called(arguments: list[str], cwd: Path | None, env: dict[str, str]) -> Ended:
    """How the command ends in this process."""
    from click.testing import CliRunner

    from mpifed.cli import main

    with pytest.MonkeyPatch.context() as patch:
        if cwd is not None:
            patch.chdir(cwd)
            patch.syspath_prepend(cwd)
            for module in cwd.glob("*.py"):  # not one of the tests' own modules of that name
                patch.delitem(sys.modules, module.stem, raising=False)
        done = CliRunner().invoke(main, arguments, env=env)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ended(done.exit_code, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def launch() -> Iterator[Callable[..., Ended]]:
    """launch(ranks, *arguments): `python -m mpifed arguments` under mpiexec; ranks = 0 is without it.

    ranks = None calls the same command in this process, which is ten times as quick: for messages, codes and results.
    Processes that stand call it, as long as they do, but for programs and environments that ranks must start with: they
    run those of `STANDING` alone.
    """
    worlds: dict[int, World] = {}

    def launch(
        ranks: int | None,
        *arguments: object,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        program: Sequence[str] = ("-m", "mpifed"),
    ) -> Ended:
        if ranks is None:
            return _called([str(one) for one in arguments], cwd, env or {})
        words = [*program, *map(str, arguments)]
        env = env or {}
        if not ranks or (program in STANDING and all(name.startswith(OF_A_COMMAND) for name in env)):
            said = worlds.setdefault(ranks, World(ranks)).call(words, LAUNCH_LIMIT_S, cwd, env)
            if said is None:
                pytest.fail(f"hangs on {ranks} ranks: {arguments}")
            return Ended(*said)
        command = [mpiexec(), "-n", str(ranks), sys.executable, *words]
        try:
            done = subprocess.run(
                command, cwd=cwd, env=environment(env), capture_output=True, text=True, timeout=LAUNCH_LIMIT_S
            )
        except subprocess.TimeoutExpired as late:
            pytest.fail(f"hangs: {late}\n{late.stdout}\n{late.stderr}")
        return Ended(done.returncode, done.stdout, done.stderr)

    yield launch
    for world in worlds.values():
        world.end()


@pytest.fixture(scope="session")
def write_job() -> Callable[..., Path]:
    """write_job(path, table): the job file."""
    import tomli_w
    from jobs_in_python import as_in_a_file

    def write_job(path: Path, table: dict[str, Any]) -> Path:
        path.write_text(tomli_w.dumps(as_in_a_file(table)), encoding="utf-8")
        return path

    return write_job
