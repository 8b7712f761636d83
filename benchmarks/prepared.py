"""What benchmarks need, prepared once in .cache: data, and the state to compare with; and the commands that run."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mpifed.core.errors import NotCertified
from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = HERE / ".cache"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ENVIRONMENT = os.environ | {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    **dict.fromkeys(THREADS, "1"),
}
MADE = "synthetic --task classification --samples"
IMAGES = (
    "mnist" if "MPIFED_DATA" in os.environ else f"{MADE} 60000 --features 784 --classes 10 --dtype uint8 --scale none"
)
DATA = {  # of so many clients
    "rows": f"{IMAGES} --split rows --clients {{0}} --scale unit --seed 1",
    "columns": f"{IMAGES} --split columns --clients {{0}} --scale unit --seed 1",
    "cells": f"{IMAGES} --labels even-odd --split grid --grid 4x4 --scale unit-rows",
    "small": f"{MADE} {{0}}0 --features 20 --split rows --clients {{0}} --seed 1",
    "newcomer": f"{MADE} 1400 --features 64 --classes 10 --split rows --clients {{0}} --seed 1",
}


def run(command: Sequence[str], root: Path = ROOT, **variables: str) -> str:
    """The standard output of a command, where `python -m mpifed` is that of `root`; ends the benchmark where it fails.

    Some rounds need not be enough for a limit to be met.
    """
    done = subprocess.run(command, env=ENVIRONMENT | variables, cwd=root, capture_output=True, text=True)
    if done.returncode not in (0, NotCertified.exit_code):
        said = (done.stderr or done.stdout)[-2000:]
        raise SystemExit(f"{shlex.join(command)}\nended with {done.returncode}:\n{said}")
    return done.stdout


def base() -> Path:
    """The folder of the commit that the file `base` names: its package, built here, and its benchmarks."""
    commit = (HERE / "base").read_text(encoding="utf-8").strip()
    folder = CACHE / f"base-{commit[:12]}-{sys.implementation.cache_tag}"
    if folder.exists():
        return folder
    if subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, stderr=subprocess.DEVNULL
    ).returncode:
        raise SystemExit(
            f"benchmarks/base: commit {commit}, with which speed is compared, is not in {ROOT}; it needs a clone with "
            "its history: git fetch --unshallow --tags"
        )
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        archive, source, built = (Path(temporary, name) for name in ("base.tar", "source", "built"))
        run(["git", "archive", "--output", str(archive), commit])
        shutil.unpack_archive(archive, source)
        run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(built), str(source)])
        if not any(built.rglob("*.so")):
            raise SystemExit("benchmarks/base: its C did not compile; without it speed cannot be compared")
        shutil.copytree(source / "benchmarks", built / "benchmarks")
        built.rename(folder)
    return folder


def prepared(kind: str, clients: int, root: Path = ROOT) -> Path:
    """The folder with data for so many clients, which another state may not read."""
    what = DATA[kind].format(clients).split()
    folder = root / "benchmarks" / ".cache" / f"{what[0]}-{kind}-{clients}"
    if not (folder / "federation.json").exists():
        run([sys.executable, "-m", "mpifed", "data", *what, "--force", "--out", str(folder)], root)
    return folder


def arrays(kind: str, clients: int) -> Path:
    """The folder with one .npz a client, for the loops by hand."""
    data = prepared(kind, clients)
    folder, new = data / "npz", data / "npz.new"
    if not folder.exists():
        shutil.rmtree(new, ignore_errors=True)  # of a conversion that was interrupted
        new.mkdir()
        federation = open_federation(data)
        for client in range(federation.clients):
            shard = shard_of(federation, client)
            x = np.empty((shard.samples, shard.features), np.float32)
            shard.take(np.arange(shard.samples), x)
            np.savez(new / f"shard-{client:05d}.npz", x=x, y=shard.y)
        new.rename(folder)
    return folder
