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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from mpifed.batch.plugin import plugin, plugins
from mpifed.batch.slurm import has, misconfigured
from mpifed.comm.mpi import Solo, connect, launched_rank, launched_ranks, library
from mpifed.core import loops
from mpifed.core.errors import MpifedError, UsageError
from mpifed.results.text import human_bytes
from mpifed.run.environment import blas, versions
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
            findings = [*chain(*of_ranks, _parts(), folder(Path.cwd()), devices(), slurm(name, environment))]
            if failure is None or launched_rank(environment) == 0:
                print(on_screen("\n".join(map(str, findings))), flush=True)
            code = int(any(finding.fatal for finding in findings))
        return int(comm.bcast(code))

    return int(guarded(comm, None, report))


def joined(
    locations: Sequence[RankLocation], environment: Mapping[str, str], failure: MpifedError | None
) -> Iterator[CheckResult]:
    """Whether all ranks that the launcher started have joined."""
    launched, count = launched_ranks(environment), len(locations)
    if failure is not None:
        yield CheckResult(str(failure), fatal=True)
    elif launched > count:
        remedy = "start them with the launcher of this MPI library"
        yield CheckResult(f"{launched} ranks launched, {count} joined", remedy, fatal=True)
    elif count == 1:
        yield CheckResult("one rank; `mpiexec -n P mpifed doctor` checks whether P ranks join")
    else:
        yield CheckResult(f"{count} ranks joined, on {', '.join(sorted({location.host for location in locations}))}")


def launcher(name: str | None, environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Whether the mpiexec on PATH belongs to the library `name`."""
    yield CheckResult(name) if name else CheckResult("no MPI library: one rank alone", "pip install 'mpifed[mpich]'")
    path = has("mpiexec", environment)
    if path is None:
        remedy = "" if has("srun", environment) or name is None else "activate the MPI library's environment or module"
        yield CheckResult("no mpiexec on PATH", remedy)
        return
    said = ""
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    owner, family = (next((_FAMILIES[word] for word in _FAMILIES if word in text), None) for text in (said, name or ""))
    if owner is None or family is None:
        what = f"{path}: cannot determine whether it belongs to the MPI library"
        yield CheckResult(what, "try `mpiexec -n 2 mpifed doctor`")
    elif owner == family:
        yield CheckResult(f"{path} belongs to {owner}")
    else:
        what = f"{path} belongs to {owner}, the MPI library to {family}: ranks would not join"
        yield CheckResult(what, "put the mpiexec of the MPI library first on PATH", fatal=True)


def cores(locations: Sequence[RankLocation]) -> Iterator[CheckResult]:
    """Whether each rank has a core of its own."""
    for host, ranks in sorted(Counter(location.host for location in locations).items()):
        count = len(frozenset().union(*(location.cores for location in locations if location.host == host)))
        remedy = "start at most one per core, or bind them otherwise: waiting ranks use their cores" * (ranks > count)
        yield CheckResult(f"{host}: {counted(ranks, 'rank')}, {counted(count, 'usable core')}", remedy)


def _parts() -> Iterator[CheckResult]:
    """Versions; whether BLAS can be limited to one thread a rank; compiled loops."""
    yield CheckResult(", ".join(f"{package} {version}" for package, version in versions().items()))
    known = ", ".join(blas())
    what = known or "none whose threads can be limited; results may depend on their number"
    yield CheckResult(f"BLAS: {what}", "" if known else "export OMP_NUM_THREADS=1, or install NumPy with OpenBLAS")
    if loops.compiled is None:
        what = "memory-bound loops are not compiled: short rounds take up to a third longer, with the same results"
        yield CheckResult(what, "install a C compiler and Python's headers, and reinstall mpifed")


def folder(path: Path) -> Iterator[CheckResult]:
    """Whether results can be written to a folder, and its free space."""
    try:
        tempfile.TemporaryFile(dir=path).close()
        free = shutil.disk_usage(path).free
        remedy = "checkpoints may not fit" if free < _LITTLE_BYTES else ""
        yield CheckResult(f"{path}: files can be written, {human_bytes(free)} free", remedy)
    except OSError as error:
        what = f"{path}: cannot be written ({error.strerror})"
        yield CheckResult(what, "choose another folder, or --out", fatal=True)


def devices() -> Iterator[CheckResult]:
    """Whether each device that CuPy sees compiles a kernel, and multiplies."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        yield CheckResult("no CuPy: everything runs on the CPU")
        return
    try:
        runtime = cupy.cuda.runtime
        if not (count := runtime.getDeviceCount()):
            raise RuntimeError("it sees none")
        for number in range(count):
            name = runtime.getDeviceProperties(number)["name"].decode()
            with cupy.cuda.Device(number):
                double = cupy.ElementwiseKernel("float32 x", "float32 z", "z = 2 * x", "mpifed_double")
                ones = cupy.ones((64, 64), "f4")
                found = float(double(ones @ ones)[0, 0])
            remedy = "" if found == 128 else "use another device"
            yield CheckResult(f"{name}, CuPy {cupy.__version__}: compiles, and says that 2 * 64 is {found:g}", remedy)
    except Exception as error:  # CuPy's own are of many kinds
        remedy = "everything runs on the CPU; with a GPU, pip install 'mpifed[gpu]', for CUDA 12 'mpifed[gpu12]'"
        yield CheckResult(f"CuPy {cupy.__version__}, but no GPU that computes ({error})", remedy)
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
