"""The environment of a run: versions, commit, host, memory, and settings of its heap."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PACKAGES = ("mpifed", "numpy", "scipy", "h5py", "mpi4py", "mpich", "openmpi", "cupy", "scikit-learn")


@functools.cache
def versions() -> dict[str, str]:
    """The versions of Python and of the installed packages on which a run's bits depend."""
    from importlib import metadata  # here and below: only rank 0 tells of the environment

    versions_by_name = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions_by_name[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions_by_name


def blas() -> list[str]:
    """The loaded BLAS libraries, and the processor whose kernels they use: a run's bits depend on them."""
    from threadpoolctl import threadpool_info

    libraries = (info for info in threadpool_info() if info["user_api"] == "blas")
    return sorted(
        {f"{info['internal_api']} {info['version']} {info.get('architecture', '')}".strip() for info in libraries}
    )


@functools.cache
def commit() -> str | None:
    """The commit of this package's checkout, with + when it has changes; None outside one."""
    import subprocess

    clone = Path(__file__).resolve().parents[2]
    if not (clone / ".git").exists():  # installed, perhaps within another's
        return None
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@contextmanager
def unscanned_objects() -> Iterator[None]:
    """Within the context, the collector does not scan what is there when it begins, since it lives to the end.

    Does nothing where the user has made objects permanent: afterwards nobody could tell these from others.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def host() -> str:
    """Name and processor of this machine."""
    return f"{platform.node()} ({platform.machine()}, {os.cpu_count()} cores)"


def rss_bytes(peak: bool = False) -> int:
    """The memory that this process has resident, or the most that it has had: that, too, where only it is known."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:" if peak else "VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST_ON_HEAP = 32 * 2**20  # glibc takes no more
_MOST_FREE = 256 * 2**20


def keep_freed_memory(largest: int = _LARGEST_ON_HEAP) -> None:
    """Let glibc reuse freed arrays of up to `largest` bytes instead of returning their pages to the system.

    By default every array above 128 KiB may be a fresh mapping whose pages fault in one by one: a model of 100,000
    numbers then costs more to allocate than to compute with, and MPICH's own reduction buffers five times as much as
    the reduction. At most 256 MiB of freed memory are kept. Does nothing where the C library is another one.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, largest)
    mallopt(_M_TRIM_THRESHOLD, _MOST_FREE)
