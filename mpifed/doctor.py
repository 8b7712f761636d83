"""`mpifed doctor`: whether MPI, HDF5, BLAS, devices, ciphers and Slurm are as they should be, and what to do if not.

Under a launcher every rank tells rank 0 where it is; rank 0 looks at the rest, and prints.
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
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpifed.batch.cluster import partitions
from mpifed.batch.durations import limit_of
from mpifed.batch.plugin import plugin, plugins
from mpifed.comm.streams import KEY_BYTES, Pad, Stream
from mpifed.comm.transport import Alone, connect, launched_ranks, library
from mpifed.core import loops
from mpifed.core.errors import MpifedError, UsageError
from mpifed.run.environment import hdf5_version, versions
from mpifed.run.launch import guarded
from mpifed.run.units import human_bytes

_RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
_PMI, _PMIX = "MPICH or Intel MPI", "Open MPI"  # what launchers and libraries have in common
_FAMILIES = {"Open MPI": _PMIX, "OpenRTE": _PMIX, "PRRTE": _PMIX, "Intel": _PMI, "HYDRA": _PMI, "MPICH": _PMI}
_SLOW_MS = 8.0  # for 10^6 values; it is about 1 with AES instructions, and 30 without
_MASKED = 2**18  # values of a try
_SCHEMES = {"bfv": "seal", "threshold-bfv": "openfhe", "paillier": "tno.mpc.encryption_schemes.paillier"}
_LITTLE_BYTES = 2**30  # less free space than this is worth a warning


class Finding(NamedTuple):
    """One fact."""

    level: str  # ok, warning, error
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level:9}{self.what}{self.remedy and '; ' + self.remedy}"


class Place(NamedTuple):
    """Where a rank is."""

    host: str
    cores: frozenset[int]  # that it may use


def examine(environment: Mapping[str, str] = os.environ) -> int:
    """Print one line for each fact, on rank 0; 1 when any is an error, on every rank. Collective under a launcher."""
    try:
        transport, failure = connect(environment), None
    except UsageError as error:
        transport, failure = Alone(), error

    def report() -> int:
        places = transport.gather(_place())
        code = None
        if places is not None:
            found = [*joined(places, environment, failure), *_facts(places, environment)]
            if failure is None or _launcher_rank(environment) == 0:
                print(*found, sep="\n", flush=True)
            code = int(any(finding.level == "error" for finding in found))
        return int(transport.share(code))

    return int(guarded(transport, None, report))


def _facts(places: Sequence[Place], environment: Mapping[str, str]) -> Iterator[Finding]:
    """Everything but whether the ranks have joined."""
    name = library()
    yield Finding("ok", ", ".join(f"{package} {version}" for package, version in versions().items()))
    yield from mpi_library(name)
    yield from launcher(name, environment)
    yield from cores(places)
    yield from blas()
    yield from hdf5(environment)
    yield from folder(Path.cwd(), environment)
    yield from compiled_loops()
    yield from devices()
    yield from key_streams()
    yield from encryption()
    yield from slurm(name, environment)


def _place() -> Place:
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return Place(platform.node(), frozenset(usable))


def _launcher_rank(environment: Mapping[str, str]) -> int:
    """This process's number as the launcher says, for where MPI does not know it."""
    return next((int(environment[name]) for name in _RANKS if environment.get(name, "").isdigit()), 0)


def joined(places: Sequence[Place], environment: Mapping[str, str], failure: MpifedError | None) -> Iterator[Finding]:
    """Whether MPI has joined as many ranks as the launcher has started."""
    launched = launched_ranks(environment)
    if failure is not None:
        yield Finding("error", str(failure))
    elif launched > len(places):
        what = f"{launched} ranks launched, {len(places)} joined"
        yield Finding("error", what, "start them with one launcher, of this library")
    elif len(places) == 1:
        yield Finding("ok", "one rank; `mpiexec -n P mpifed doctor` tells whether P ranks join")
    else:
        hosts = sorted({place.host for place in places})
        yield Finding("ok", f"{len(places)} ranks joined, on {', '.join(hosts)}")


def mpi_library(name: str | None) -> Iterator[Finding]:
    """Whether there is an MPI library."""
    if name is None:
        yield Finding("warning", "no MPI library: one rank is all there can be", "pip install 'mpifed[mpich]'")
    else:
        yield Finding("ok", name)


def launcher(name: str | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the mpiexec on PATH belongs to the library `name`."""
    path = _found("mpiexec", environment)
    if path is None:
        if srun := _found("srun", environment):
            yield Finding("ok", f"no mpiexec on PATH; {srun} launches ranks")
        elif name is not None:
            yield Finding("warning", "no mpiexec on PATH", "activate the environment or module of the MPI library")
        return
    its, own = _family(_version(path)), _family(name or "")
    if its is None or own is None:
        what = f"{path}: cannot tell whether it belongs to the library"
        yield Finding("warning", what, "try `mpiexec -n 2 mpifed doctor`")
    elif its == own:
        yield Finding("ok", f"{path} is of {its}")
    else:
        what = f"{path} is of {its}, the library of {own}: ranks would not join"
        yield Finding("error", what, "put the mpiexec of the library first on PATH")


def _found(command: str, environment: Mapping[str, str]) -> str | None:
    """The path of a command."""
    return shutil.which(command, path=environment.get("PATH", os.defpath))


def _version(path: str) -> str:
    """What a launcher says of itself."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _family(text: str) -> str | None:
    return next((family for word, family in _FAMILIES.items() if word in text), None)


def cores(places: Sequence[Place]) -> Iterator[Finding]:
    """Whether every rank has a core of its own."""
    by_host: dict[str, list[frozenset[int]]] = defaultdict(list)
    for place in places:
        by_host[place.host].append(place.cores)
    for host, usable in sorted(by_host.items()):
        count = len(frozenset().union(*usable))
        what = f"{host}: {len(usable)} rank{'s' * (len(usable) > 1)}, {count} usable core{'s' * (count > 1)}"
        if len(usable) > count:
            yield Finding(
                "warning", what, "start at most one a core, or bind them otherwise: ranks spin while they wait"
            )
        else:
            yield Finding("ok", what)


def blas() -> Iterator[Finding]:
    """Which BLAS there is, and whether it can be held to one thread a rank."""
    from threadpoolctl import threadpool_info

    found = {f"{one['internal_api']} {one['version']}" for one in threadpool_info() if one["user_api"] == "blas"}
    if found:
        yield Finding("ok", f"BLAS: {', '.join(sorted(found))}; `mpifed run` holds it to one thread a rank")
    else:
        yield Finding(
            "warning",
            "BLAS: none whose threads can be limited; bits may depend on their number",
            "export OMP_NUM_THREADS=1, or install NumPy with OpenBLAS",
        )


def hdf5(environment: Mapping[str, str]) -> Iterator[Finding]:
    """The HDF5 library."""
    setting = environment.get("HDF5_USE_FILE_LOCKING")
    how = "" if setting is None else f", HDF5_USE_FILE_LOCKING={setting}"
    yield Finding("ok", f"HDF5 {hdf5_version()}{how}")


def folder(path: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether results can be written to a folder: permission, locks, space."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            yield from _locks(path, file.fileno(), environment)
    except OSError as error:
        yield Finding("error", f"{path}: cannot be written ({error.strerror})", "choose another folder, or --out")
        return
    free = shutil.disk_usage(path).free
    what = f"{path}: {human_bytes(free)} free"
    yield Finding("warning", what, "checkpoints may not fit") if free < _LITTLE_BYTES else Finding("ok", what)


def _locks(path: Path, number: int, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether files can be locked there. mpifed opens HDF5 files without, unless the environment has them locked."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        what = f"{path}: no file locks ({error.strerror})"
        setting = environment.get("HDF5_USE_FILE_LOCKING", "").upper()
        if setting in ("TRUE", "1") or (setting == "BEST_EFFORT" and error.errno != errno.ENOSYS):
            yield Finding("error", f"{what}, and HDF5_USE_FILE_LOCKING asks for them", "unset it, or set it to FALSE")
        else:
            yield Finding("ok", f"{what}; none are needed")
    else:
        yield Finding("ok", f"{path}: files can be written and locked")


def compiled_loops() -> Iterator[Finding]:
    """Whether the loops over memory are compiled."""
    if loops.compiled is None:
        what = "loops over memory are not compiled: cheap rounds take up to a third longer, with the same bits"
        yield Finding("warning", what, "get a C compiler and Python's headers, and install mpifed again")
    else:
        yield Finding("ok", "loops over memory are compiled")


def devices() -> Iterator[Finding]:
    """CuPy and what it can use."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        yield Finding("ok", "no CuPy: everything runs on the CPU")
        return
    try:
        runtime = cupy.cuda.runtime
        names = [runtime.getDeviceProperties(i)["name"].decode() for i in range(runtime.getDeviceCount())]
    except RuntimeError as error:  # CuPy's own errors derive from it
        yield Finding("warning", f"CuPy {cupy.__version__}, but no device ({error})", "everything runs on the CPU")
        return
    yield Finding("ok", f"CuPy {cupy.__version__}: {', '.join(names) or 'no device, everything runs on the CPU'}")
    if os.environ.get("CUPY_TF32", "0") not in ("", "0"):
        what = "CUPY_TF32 is set: products would be rounded to 10 bits, and such runs are refused"
        yield Finding("error", what, "unset CUPY_TF32")


def key_streams() -> Iterator[Finding]:
    """How fast masks are made: what the masked channel costs, for each of a client's partners."""
    ms = 1e3 * min(_seconds_of_masks() for _ in range(5))
    what = f"masked channel: {ms:.2g} ms for 10^6 values of a key stream (AES-128)"
    if ms > _SLOW_MS:
        yield Finding("warning", what, "this processor or build has no instructions for AES: set [masking] neighbours")
    else:
        yield Finding("ok", what)


def _seconds_of_masks() -> float:
    message, start = np.zeros(_MASKED, dtype=np.int64), time.perf_counter()
    Pad().add([(Stream(os.urandom(KEY_BYTES)), 1)], message, [slice(0, _MASKED)])
    return (time.perf_counter() - start) * 1e6 / _MASKED


def encryption() -> Iterator[Finding]:
    """Which libraries of the encrypted channel can be loaded."""
    found, missing = [], []
    for scheme, module in _SCHEMES.items():
        name = f"{scheme} ({module.partition('.')[0]})"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one recommends another library
                importlib.import_module(module)
            found.append(name)
        except ImportError:
            missing.append(name)
    without = f"; not {', '.join(missing)}" * bool(missing)
    if not found:
        what = f"encrypted channel: none of {', '.join(missing)}"
        yield Finding("ok", what + ": pip install 'mpifed[encrypted]' where a job needs it")
    else:
        yield Finding("ok", f"encrypted channel: {', '.join(found)}{without}")


def slurm(name: str | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Slurm: inside a job, inside a step of it, or only at hand; whether it can start ranks of the library `name`."""
    job, tasks = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_NUM_TASKS")
    if job is not None and tasks is not None:
        yield Finding("ok", f"Slurm job {job}, a step of {tasks} task{'s' * (tasks != '1')}")
        return
    sbatch = _found("sbatch", environment)
    if job is None and sbatch is None:
        yield Finding("ok", "no Slurm")
        return
    word = "pmi2"
    if name is not None:
        try:
            listed = plugins(environment) or set()
            word = plugin(name, environment, listed)
            how = "this Slurm has, by `srun --mpi=list`; no rank was started" if listed else "srun did not list"
            yield Finding("ok", f"this library needs `srun --mpi={word}`, which {how}")
            own = _found("mpiexec", environment)
            if own is not None and word == "pmi2" and "HYDRA" in _version(own) and _family(name) == _PMI:
                yield Finding("ok", f"batch jobs take {own}: by pmi2 MPICH's ranks at times do not find each other")
        except MpifedError as error:
            yield Finding("warning", str(error))
    if job is not None:
        yield Finding("ok", f"Slurm job {job}, outside its steps; `srun --mpi={word} mpifed doctor` examines its ranks")
    else:
        yield Finding("ok", f"Slurm: {sbatch}")
        yield from _partitions(environment)


def _partitions(environment: Mapping[str, str]) -> Iterator[Finding]:
    """What a job could have, in the partition where it runs unless another is named."""
    try:
        found = partitions(environment)
    except MpifedError as error:
        yield Finding("warning", str(error), "ask the cluster's administrators whether Slurm is up")
        return
    for one in found:
        if one.default:
            working = [node for node in one.nodes if not node.out]
            largest = max(working, key=lambda node: (node.cpus, node.memory_mib), default=None)
            each = f", each {largest.cpus} CPUs and {largest.memory_mib} MiB or less" if largest else ""
            yield Finding(
                "ok" if one.available == "up" and working else "warning",
                f"partition {one.name} is {one.available}: {len(working)} of {len(one.nodes)} nodes in service{each}; "
                f"time limit {limit_of(one.limit_s)}",
            )
