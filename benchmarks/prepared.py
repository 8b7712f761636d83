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
ENVIRONMENT = os.environ | {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
SYNTHETIC = "synthetic --samples 60000 --features 784 --task classification --classes 10 --dtype uint8 --scale none"


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


def cache(root: Path) -> Path:
    """Where the data of a state are: another may not read them."""
    return root / "benchmarks" / ".cache"


def prepared_cells(kind: str, root: Path = ROOT) -> Path:
    """The folder with 4 x 4 cells of MNIST, even against odd, or of sparse text; rows of norm 1."""
    data = Path(os.environ.get("MPIFED_DATA", ""))
    texts = data / "libsvm" / "20news-binary.train.svm.bz2"
    source = {"grid": ["mnist", "--labels", "even-odd"], "text": ["svmlight", str(texts)]}[kind]
    if "MPIFED_DATA" not in os.environ:
        if kind == "text":
            raise SystemExit("case hyfdca-text: needs libsvm/20news-binary.train.svm.bz2 in $MPIFED_DATA; leave it out")
        source = [*SYNTHETIC.split(), "--labels", "even-odd"]
    folder = cache(root) / f"{source[0]}-{kind}"
    if not (folder / "federation.h5").exists():
        how = [*["--split", "grid", "--grid", "4x4", "--scale", "unit-rows", "--force", "--out"], str(folder)]
        run([sys.executable, "-m", "mpifed", "data", *source, *how], root)
    return folder


def prepared_clients(clients: int, root: Path = ROOT) -> Path:
    """The folder with 10 rows of 20 features for each of so many clients, 1,000 clients a file."""
    return _made(f"clients-{clients}", f"synthetic --samples {10 * clients} --features 20 --clients {clients}", root)


def prepared_small(clients: int, root: Path = ROOT) -> Path:
    """The folder with 70 rows of 64 features for each client, also in `npz`."""
    what = f"synthetic --samples {70 * clients} --features 64 --classes 10 --clients {clients}"
    return with_npz(_made(f"small-{clients}", what, root), root)


def _made(name: str, what: str, root: Path) -> Path:
    folder = cache(root) / name
    if not (folder / "federation.h5").exists():
        how = [*["--task", "classification", "--seed", "1", "--split", "rows", "--force", "--out"], str(folder)]
        run([sys.executable, "-m", "mpifed", "data", *what.split(), *how], root)
    return folder


def prepared(clients: int, split: str, root: Path = ROOT) -> Path:
    """The folder with the data of so many clients, as shards for mpifed and, in `npz`, for the hand-written loops."""
    source = ["mnist"] if "MPIFED_DATA" in os.environ else SYNTHETIC.split()
    folder = cache(root) / "-".join([source[0], *([split] if split != "rows" else []), str(clients)])
    if not (folder / "federation.h5").exists():
        how = [*f"--split {split} --clients {clients} --scale unit --seed 1 --force --out".split(), str(folder)]
        run([sys.executable, "-m", "mpifed", "data", *source, *how], root)
    return with_npz(folder, root)


def with_npz(folder: Path, root: Path) -> Path:
    """The folder, of this state with its shards in `npz` too."""
    if root == ROOT and not (folder / "npz").exists():
        convert(folder, folder / "npz.new")
        (folder / "npz.new").rename(folder / "npz")
    return folder


def convert(data: Path, out: Path) -> None:
    """Writes the shards of a federation as one .npz a client."""
    shutil.rmtree(out, ignore_errors=True)  # of a conversion that was interrupted
    out.mkdir()
    federation = open_federation(data)
    for client in range(federation.clients):
        shard = shard_of(federation, client)
        x = np.empty((shard.samples, shard.features), np.float32)
        shard.take(np.arange(shard.samples), x)
        np.savez(out / f"shard-{client:05d}.npz", x=x, y=shard.y)
