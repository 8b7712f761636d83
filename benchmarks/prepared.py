"""The data of the benchmarks, prepared once in .cache, and the commands that prepare and run."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mpifed.core.errors import NotCertified
from mpifed.shards.store import open_federation

HERE = Path(__file__).resolve().parent
CACHE = HERE / ".cache"
ENVIRONMENT = os.environ | {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
SYNTHETIC = "synthetic --samples 60000 --features 784 --task classification --classes 10 --dtype uint8"


def run(command: Sequence[str]) -> str:
    """The standard output of a command; ends the benchmark where the command fails.

    Some rounds need not be enough for a limit to be met.
    """
    done = subprocess.run(command, env=ENVIRONMENT, cwd=HERE.parent, capture_output=True, text=True)
    if done.returncode not in (0, NotCertified.exit_code):
        said = (done.stderr or done.stdout)[-2000:]
        raise SystemExit(f"{shlex.join(command)}\nended with {done.returncode}:\n{said}")
    return done.stdout


def prepared_cells(kind: str) -> Path:
    """The folder with 4 x 4 cells of MNIST, even against odd, or of sparse text; rows of norm 1."""
    data = Path(os.environ.get("MPIFED_DATA", ""))
    texts = data / "libsvm" / "20news-binary.train.svm.bz2"
    source = {"grid": ["mnist", str(data / "mnist"), "--labels", "even-odd"], "text": ["svmlight", str(texts)]}[kind]
    if "MPIFED_DATA" not in os.environ:
        if kind == "text":
            raise SystemExit("case hyfdca-text: needs libsvm/20news-binary.train.svm.bz2 in $MPIFED_DATA; leave it out")
        source = [*SYNTHETIC.split(), "--labels", "even-odd"]
    folder = CACHE / f"{source[0]}-{kind}"
    if not (folder / "federation.h5").exists():
        how = f"--split grid --grid 4x4 --scale unit-rows --force --out {folder}".split()
        run([sys.executable, "-m", "mpifed", "data", *source, *how])
    return folder


def prepared_clients(clients: int) -> Path:
    """The folder with 10 rows for each of so many clients, 1,000 clients a file."""
    folder = CACHE / f"clients-{clients}"
    if not (folder / "federation.h5").exists():
        what = f"synthetic --samples {10 * clients} --features 20 --task classification --seed 1"
        how = f"--split rows --clients {clients} --pack 1000 --force --out {folder}"
        run([sys.executable, "-m", "mpifed", "data", *what.split(), *how.split()])
    return folder


def prepared(clients: int, split: str) -> Path:
    """The folder with the data of so many clients, as shards for mpifed and, in `npz`, for the hand-written loops."""
    mnist = Path(os.environ.get("MPIFED_DATA", ""), "mnist")
    source = ["mnist", str(mnist)] if "MPIFED_DATA" in os.environ else SYNTHETIC.split()
    folder = CACHE / "-".join([source[0], *([split] if split != "rows" else []), str(clients)])
    if not (folder / "npz").exists():
        shutil.rmtree(folder, ignore_errors=True)
        how = f"--split {split} --clients {clients} --scale unit --seed 1 --out".split()
        run([sys.executable, "-m", "mpifed", "data", *source, *how, str(folder)])
        convert(folder, folder / "npz.new")
        (folder / "npz.new").rename(folder / "npz")
    return folder


def convert(data: Path, out: Path) -> None:
    """Writes the shards of a federation as one .npz a client."""
    out.mkdir()
    federation = open_federation(data)
    for client in range(federation.clients):
        shard = federation.shard(client, in_memory=True)
        x = np.empty((shard.samples, shard.features), np.float32)
        shard.take(np.arange(shard.samples), x)
        np.savez(out / f"shard-{client:05d}.npz", x=x, y=shard.y)
