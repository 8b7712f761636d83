"""`mpifed doctor`: checks MPI, HDF5, BLAS, GPUs, cryptography and Slurm, and says what to do about problems.

Under a launcher every rank sends its host and cores to rank 0, which runs all other checks and prints.
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpifed.batch.plugin import plugin, plugins
from mpifed.batch.slurm import has, misconfigured
from mpifed.comm.channels import bfv
from mpifed.comm.channels.keys import STREAM_BYTES, Pad, Stream
from mpifed.comm.mpi import Solo, connect, launched_rank, launched_ranks, library
from mpifed.core import loops
from mpifed.core.errors import MpifedError, UsageError
from mpifed.core.text import on_screen
from mpifed.results.text import human_bytes
from mpifed.run.environment import hdf5_version, versions
from mpifed.run.launch import guarded

_SLOW_MS = 8.0  # for 10^6 values; about 1 with AES instructions and 30 without
_MASKED = 2**18  # values of one measurement
_SLURM_S = 5.0  # that a command of Slurm may take
_PMI, _PMIX = "MPICH or Intel MPI", "Open MPI"  # families whose launchers and libraries fit each other
_FAMILIES = {"Open MPI": _PMIX, "OpenRTE": _PMIX, "PRRTE": _PMIX, "Intel": _PMI, "HYDRA": _PMI, "MPICH": _PMI}
_LITTLE_BYTES = 2**30  # less free space than this is worth a warning


class CheckResult(NamedTuple):
    """The result of one check."""

    level: str  # ok, warning, error
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level:9}{self.what}{self.remedy and '; ' + self.remedy}"

    @classmethod
    def of(cls, problem: object, what: str, remedy: str) -> CheckResult:
        """A warning with its remedy where there is a problem, else ok."""
        return cls("warning", what, remedy) if problem else cls("ok", what)


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

    def report() -> int:
        locations = comm.gather(_location())
        code = None
        if locations is not None:
            findings = [*joined(locations, environment, failure), *_facts(locations, environment)]
            if failure is None or launched_rank(environment) == 0:
                print(on_screen("\n".join(map(str, findings))), flush=True)
            code = int(any(finding.level == "error" for finding in findings))
        return int(comm.bcast(code))

    return int(guarded(comm, None, report))


def _facts(locations: Sequence[RankLocation], environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """All checks except whether the ranks have joined."""
    name = library()
    yield CheckResult("ok", ", ".join(f"{package} {version}" for package, version in versions().items()))
    of_ranks = mpi_library(name), launcher(name, environment), cores(locations)
    of_host = blas(), hdf5(environment), folder(Path.cwd(), environment), compiled_loops(), devices()
    yield from chain(*of_ranks, *of_host, key_streams(), encryption(), slurm(name, environment))


def _location() -> RankLocation:
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return RankLocation(platform.node(), frozenset(usable))


def joined(
    locations: Sequence[RankLocation], environment: Mapping[str, str], failure: MpifedError | None
) -> Iterator[CheckResult]:
    """Whether all ranks that the launcher started have joined."""
    launched = launched_ranks(environment)
    if failure is not None:
        yield CheckResult("error", str(failure))
    elif launched > len(locations):
        what = f"{launched} ranks launched, {len(locations)} joined"
        yield CheckResult("error", what, "start them with the launcher of this MPI library")
    elif len(locations) == 1:
        yield CheckResult("ok", "one rank; `mpiexec -n P mpifed doctor` checks whether P ranks join")
    else:
        hosts = sorted({location.host for location in locations})
        yield CheckResult("ok", f"{len(locations)} ranks joined, on {', '.join(hosts)}")


def mpi_library(name: str | None) -> Iterator[CheckResult]:
    yield CheckResult.of(name is None, name or "no MPI library: only one rank can run", "pip install 'mpifed[mpich]'")


def _family_of(text: str) -> str | None:
    """The family of a library or launcher, by its version text; None if it is not known."""
    return next((family for word, family in _FAMILIES.items() if word in text), None)


def launcher(name: str | None, environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Whether the mpiexec on PATH belongs to the library `name`."""
    path = has("mpiexec", environment)
    if path is None:
        if srun := has("srun", environment):
            yield CheckResult("ok", f"no mpiexec on PATH; {srun} launches ranks")
        elif name is not None:
            yield CheckResult("warning", "no mpiexec on PATH", "activate the environment or module of the MPI library")
        return
    launcher_family, library_family = _family_of(_version(path)), _family_of(name or "")
    if launcher_family is None or library_family is None:
        what = f"{path}: cannot determine whether it belongs to the MPI library"
        yield CheckResult("warning", what, "try `mpiexec -n 2 mpifed doctor`")
    elif launcher_family == library_family:
        yield CheckResult("ok", f"{path} belongs to {launcher_family}")
    else:
        what = f"{path} belongs to {launcher_family}, the MPI library to {library_family}: ranks would not join"
        yield CheckResult("error", what, "put the mpiexec of the MPI library first on PATH")


def _version(path: str) -> str:
    """The version text of a launcher; empty if it cannot be run."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def cores(locations: Sequence[RankLocation]) -> Iterator[CheckResult]:
    by_host: dict[str, list[frozenset[int]]] = defaultdict(list)
    for location in locations:
        by_host[location.host].append(location.cores)
    for host, usable in sorted(by_host.items()):
        count = len(frozenset().union(*usable))
        what = f"{host}: {len(usable)} rank{'s' * (len(usable) > 1)}, {count} usable core{'s' * (count > 1)}"
        remedy = "start at most one per core, or bind them otherwise: waiting ranks use their cores"
        yield CheckResult.of(len(usable) > count, what, remedy)


def blas() -> Iterator[CheckResult]:
    """The BLAS libraries, and whether they can be limited to one thread per rank."""
    from threadpoolctl import threadpool_info

    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    libraries = sorted({f"{pool['internal_api']} {pool['version']}" for pool in pools})
    what = f"BLAS: {', '.join(libraries)}; `mpifed run` limits it to one thread per rank"
    if not libraries:
        what = "BLAS: none whose threads can be limited; results may depend on their number"
    yield CheckResult.of(not libraries, what, "export OMP_NUM_THREADS=1, or install NumPy with OpenBLAS")


def hdf5(environment: Mapping[str, str]) -> Iterator[CheckResult]:
    setting = environment.get("HDF5_USE_FILE_LOCKING")
    how = "" if setting is None else f", HDF5_USE_FILE_LOCKING={setting}"
    yield CheckResult("ok", f"HDF5 {hdf5_version()}{how}")


def folder(path: Path, environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Whether results can be written to a folder: permission, file locks, free space."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            yield from _locks(path, file.fileno(), environment)
    except OSError as error:
        yield CheckResult("error", f"{path}: cannot be written ({error.strerror})", "choose another folder, or --out")
        return
    free = shutil.disk_usage(path).free
    yield CheckResult.of(free < _LITTLE_BYTES, f"{path}: {human_bytes(free)} free", "checkpoints may not fit")


def _locks(path: Path, number: int, environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Whether files in a folder can be locked; mpifed locks no HDF5 files unless the environment asks for it."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        what = f"{path}: no file locks ({error.strerror})"
        setting = environment.get("HDF5_USE_FILE_LOCKING", "").upper()
        if setting in ("TRUE", "1") or (setting == "BEST_EFFORT" and error.errno != errno.ENOSYS):
            what += ", and HDF5_USE_FILE_LOCKING asks for them"
            yield CheckResult("error", what, "unset it, or set it to FALSE")
        else:
            yield CheckResult("ok", f"{what}; a run killed on another machine leaves its lock")
    else:
        yield CheckResult("ok", f"{path}: files can be written and locked")


def compiled_loops() -> Iterator[CheckResult]:
    if loops.compiled is not None:
        yield CheckResult("ok", "memory-bound loops are compiled")
        return
    what = "memory-bound loops are not compiled: short rounds take up to a third longer, with the same results"
    yield CheckResult("warning", what, "install a C compiler and Python's headers, and reinstall mpifed")


def devices() -> Iterator[CheckResult]:
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        yield CheckResult("ok", "no CuPy: everything runs on the CPU")
        return
    try:
        runtime = cupy.cuda.runtime
        names = [runtime.getDeviceProperties(i)["name"].decode() for i in range(runtime.getDeviceCount())]
    except RuntimeError as error:  # CuPy's own errors derive from it
        yield CheckResult("warning", f"CuPy {cupy.__version__}, but no GPU ({error})", "everything runs on the CPU")
        return
    yield CheckResult("ok", f"CuPy {cupy.__version__}: {', '.join(names) or 'no GPU, everything runs on the CPU'}")
    if os.environ.get("CUPY_TF32", "0") not in ("", "0"):
        what = "CUPY_TF32 is set: products would be rounded to 10 bits, so runs on a GPU are refused"
        yield CheckResult("error", what, "unset CUPY_TF32")


def key_streams() -> Iterator[CheckResult]:
    """The time to compute masks, which the masked channel takes for each partner of a client."""
    ms = 1e3 * min(_seconds_of_masks() for _ in range(5))
    what = f"masked channel: {ms:.2g} ms for 10^6 values of a key stream (AES-128)"
    remedy = "this processor or build lacks AES instructions: masked rounds will take long"
    yield CheckResult.of(ms > _SLOW_MS, what, remedy)


def _seconds_of_masks() -> float:
    message, start = np.zeros(_MASKED, dtype=np.int64), time.perf_counter()
    Pad().add([(Stream(os.urandom(STREAM_BYTES)), 1)], message, slice(0, _MASKED))
    return (time.perf_counter() - start) * 1e6 / _MASKED


def encryption() -> Iterator[CheckResult]:
    """Whether the library of the encrypted channel is there; a job that needs it says so."""
    try:
        bfv.library()
        what = "BFV (seal)"
    except UsageError:
        what = "no seal; if a job needs it, pip install 'mpifed[encrypted]'"
    yield CheckResult("ok", f"encrypted channel: {what}")


def slurm(name: str | None, environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Whether this is a Slurm job, a step of one or a login node, and whether srun can start the library `name`."""
    job, tasks = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_NUM_TASKS")
    if job is not None and tasks is not None:
        yield CheckResult("ok", f"Slurm job {job}, a step of {tasks} task{'s' * (tasks != '1')}")
        return
    sbatch = has("sbatch", environment)
    if job is None and sbatch is None:
        yield CheckResult("ok", "no Slurm")
        return
    plugin_name = "pmi2"
    if name is not None:
        try:
            listed = plugins(environment, _SLURM_S) or set()
            plugin_name = plugin(name, environment, listed)
            how = "`srun --mpi=list` lists; no rank was started" if listed else "`srun --mpi=list` did not list"
            yield CheckResult("ok", f"this library needs `srun --mpi={plugin_name}`, which {how}")
            mpiexec = has("mpiexec", environment)
            if mpiexec and plugin_name == "pmi2" and _family_of(name) == _PMI and "HYDRA" in _version(mpiexec):
                yield CheckResult("ok", f"batch jobs use {mpiexec}: with pmi2, MPICH's ranks sometimes fail to connect")
        except MpifedError as error:
            yield CheckResult("warning", str(error))
    if job is not None:
        how = f"`srun --mpi={plugin_name} mpifed doctor` checks its ranks"
        yield CheckResult("ok", f"Slurm job {job}, outside its steps; {how}")
    else:
        why = misconfigured(environment)
        yield CheckResult("warning", why) if why else CheckResult("ok", f"Slurm: {sbatch}; `sinfo` lists partitions")
