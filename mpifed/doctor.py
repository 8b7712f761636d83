"""`mpifed doctor`: checks MPI, BLAS, GPUs, the folder and Slurm, and says what to do about problems.

Under a launcher every rank sends its host and cores to rank 0, which runs all other checks and prints.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from threadpoolctl import threadpool_info

from mpifed.batch.plugin import plugin, plugins
from mpifed.batch.slurm import has, misconfigured
from mpifed.comm.mpi import Solo, connect, launched_rank, launched_ranks, library
from mpifed.core import loops
from mpifed.core.errors import MpifedError, UsageError
from mpifed.results.text import human_bytes
from mpifed.run.environment import versions
from mpifed.run.launch import guarded
from mpifed.text import counted, on_screen

_SLURM_S = 5.0  # that a command of Slurm may take
_PMI, _PMIX = "MPICH or Intel MPI", "Open MPI"  # families whose launchers and libraries fit each other
_FAMILIES = {"Open MPI": _PMIX, "OpenRTE": _PMIX, "PRRTE": _PMIX, "Intel": _PMI, "HYDRA": _PMI, "MPICH": _PMI}
_LITTLE_BYTES = 2**30  # less free space than this is worth a warning


class CheckResult(NamedTuple):
    """The result of one check."""

    what: str
    remedy: str = ""  # of a problem
    fatal: bool = False

    @property
    def level(self) -> str:
        """ok, warning or error."""
        return "error" if self.fatal else "warning" if self.remedy else "ok"

    def __str__(self) -> str:
        return f"{self.level:9}{'; '.join(filter(None, self[:2]))}"


class RankLocation(NamedTuple):
    """The host and the usable cores of a rank."""

    host: str
    cores: frozenset[int]  # that it may use


def examine(environment: Mapping[str, str] = os.environ) -> int:
    """Run all checks, and print their results on rank 0; 1 on every rank if any is an error, else 0. Collective."""
    try:
        comm, failure = connect(environment), None
    except UsageError as error:
        comm, failure = Solo(), error
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)

    def report() -> int:
        locations = comm.gather(RankLocation(platform.node(), frozenset(usable)))
        code = None
        if locations is not None:
            name = library()
            of_ranks = joined(locations, environment, failure), launcher(name, environment), cores(locations)
            findings = [*chain(*of_ranks, _parts(name), folder(Path.cwd()), devices(), slurm(name, environment))]
            if failure is None or launched_rank(environment) == 0:
                print(on_screen("\n".join(map(str, findings))), flush=True)
            code = int(any(finding.fatal for finding in findings))
        return int(comm.bcast(code))

    return int(guarded(comm, None, report))


def joined(
    locations: Sequence[RankLocation], environment: Mapping[str, str], failure: MpifedError | None
) -> Iterator[CheckResult]:
    """Whether all ranks that the launcher started have joined."""
    launched, hosts = launched_ranks(environment), sorted({location.host for location in locations})
    if failure is not None:
        yield CheckResult(str(failure), fatal=True)
    elif launched > len(locations):
        what = f"{launched} ranks launched, {len(locations)} joined"
        yield CheckResult(what, "start them with the launcher of this MPI library", fatal=True)
    elif len(locations) == 1:
        yield CheckResult("one rank; `mpiexec -n P mpifed doctor` checks whether P ranks join")
    else:
        yield CheckResult(f"{len(locations)} ranks joined, on {', '.join(hosts)}")


def launcher(name: str | None, environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Whether the mpiexec on PATH belongs to the library `name`."""
    yield CheckResult(name) if name else CheckResult("no MPI library: one rank alone", "pip install 'mpifed[mpich]'")
    path = has("mpiexec", environment)
    if path is None:
        remedy = "" if has("srun", environment) or name is None else "activate the MPI library's environment or module"
        yield CheckResult("no mpiexec on PATH", remedy)
        return
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        said = ""
    of_launcher, of_library = (
        next((family for word, family in _FAMILIES.items() if word in text), None) for text in (said, name or "")
    )
    if of_launcher is None or of_library is None:
        what = f"{path}: cannot determine whether it belongs to the MPI library"
        yield CheckResult(what, "try `mpiexec -n 2 mpifed doctor`")
    elif of_launcher == of_library:
        yield CheckResult(f"{path} belongs to {of_launcher}")
    else:
        what = f"{path} belongs to {of_launcher}, the MPI library to {of_library}: ranks would not join"
        yield CheckResult(what, "put the mpiexec of the MPI library first on PATH", fatal=True)


def cores(locations: Sequence[RankLocation]) -> Iterator[CheckResult]:
    """Whether each rank has a core of its own."""
    by_host: dict[str, list[frozenset[int]]] = defaultdict(list)
    for location in locations:
        by_host[location.host].append(location.cores)
    for host, usable in sorted(by_host.items()):
        count = len(frozenset().union(*usable))
        remedy = "start at most one per core, or bind them otherwise: waiting ranks use their cores"
        what = f"{host}: {counted(len(usable), 'rank')}, {counted(count, 'usable core')}"
        yield CheckResult(what, remedy if len(usable) > count else "")


def _parts(name: str | None) -> Iterator[CheckResult]:
    """Versions; whether BLAS can be limited to one thread a rank; compiled loops."""
    packages = ", ".join(f"{package} {version}" for package, version in versions().items())
    yield CheckResult(packages)
    blas = {f"{pool['internal_api']} {pool['version']}" for pool in threadpool_info() if pool["user_api"] == "blas"}
    what = f"BLAS: {', '.join(sorted(blas)) or 'none whose threads can be limited; results may depend on their number'}"
    yield CheckResult(what, "" if blas else "export OMP_NUM_THREADS=1, or install NumPy with OpenBLAS")
    if loops.compiled is None:
        what = "memory-bound loops are not compiled: short rounds take up to a third longer, with the same results"
        yield CheckResult(what, "install a C compiler and Python's headers, and reinstall mpifed")


def folder(path: Path) -> Iterator[CheckResult]:
    """Whether results can be written to a folder, and its free space."""
    try:
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        yield CheckResult(
            f"{path}: cannot be written ({error.strerror})", "choose another folder, or --out", fatal=True
        )
        return
    free = shutil.disk_usage(path).free
    remedy = "checkpoints may not fit" if free < _LITTLE_BYTES else ""
    yield CheckResult(f"{path}: files can be written, {human_bytes(free)} free", remedy)


def devices() -> Iterator[CheckResult]:
    """What CuPy sees."""
    try:
        cupy = importlib.import_module("cupy")
        runtime = cupy.cuda.runtime
        names = [runtime.getDeviceProperties(i)["name"].decode() for i in range(runtime.getDeviceCount())]
    except ImportError:
        yield CheckResult("no CuPy: everything runs on the CPU")
        return
    except RuntimeError as error:  # CuPy's own errors derive from it
        yield CheckResult(f"CuPy, but no GPU ({error})", "everything runs on the CPU")
        return
    yield CheckResult(f"CuPy {cupy.__version__}: {', '.join(names) or 'no GPU, everything runs on the CPU'}")
    if os.environ.get("CUPY_TF32", "0") not in ("", "0"):
        what = "CUPY_TF32 is set: products would be rounded to 10 bits, so runs on a GPU are refused"
        yield CheckResult(what, "unset CUPY_TF32", fatal=True)


def slurm(name: str | None, environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Whether srun can start the library `name`, where there is Slurm."""
    if has("sbatch", environment) is None or name is None:
        return
    try:
        listed = plugins(environment, _SLURM_S) or set()
        how = "lists; no rank was started" if listed else "did not list"
        needed = plugin(name, environment, listed)
        yield CheckResult(f"this library needs `srun --mpi={needed}`, which `srun --mpi=list` {how}")
    except MpifedError as error:
        yield CheckResult(str(error), "ask for a plugin that fits")
    if why := misconfigured(environment):
        yield CheckResult(why, "ask who runs Slurm here")
