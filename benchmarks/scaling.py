"""Strong and weak scaling of a job: the time of a round on several numbers of ranks, as a table and a picture.

    python benchmarks/scaling.py JOB [--ranks 1 2 4] [--weak 100] [--rounds 60] [--repeat 3] [--out scaling]

`$MPIEXEC -n P` starts the ranks (`mpiexec` by default; in a Slurm allocation MPIEXEC='srun --mpi=pmi2'). Strong scaling
takes the job as it is; `--weak N` also gives N clients of 60 synthetic rows to each rank, for jobs whose data are split
by rows. Runs take turns; the median of their medians counts. Ranks that share a core measure how long they wait for it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot

OFF = ("record.evaluate_every=0", "record.checkpoint_every=0")
ROWS = 60  # of a synthetic client


def mpifed(*words: object, launch: str = "") -> None:
    command = [*shlex.split(launch), sys.executable, "-m", "mpifed", *map(str, words)]
    subprocess.run(command, check=True, env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ})


def seconds_of_round(given: argparse.Namespace, kind: str, ranks: int, turn: int) -> float:
    """The median round of one run."""
    changes = [*OFF, f"rounds={given.rounds}"]
    if kind == "weak":
        changes.append(f"data.path={synthetic(given, ranks * given.weak)}")
    out = given.out / f"{kind}-{ranks}-{turn}"
    settings = [word for change in changes for word in ("--set", change)]
    launch = f"{os.environ.get('MPIEXEC', 'mpiexec')} -n {ranks}"
    mpifed("run", given.job, *settings, "--out", out, "--overwrite", "--progress", "none", launch=launch)
    return float(json.loads((out / "run.json").read_text())["seconds_per_round"])


def synthetic(given: argparse.Namespace, clients: int) -> Path:
    """A folder of synthetic data for so many clients."""
    path: Path = given.out / f"data-{clients}"
    if not path.exists():
        rows = (
            "--samples",
            clients * ROWS,
            "--features",
            given.features,
            "--task",
            "classification",
            "--classes",
            given.classes,
        )
        mpifed("data", "synthetic", "--split", "rows", "--clients", clients, *rows, "--out", path)
    return path


def speed_ups(kind: str, seconds: dict[int, float]) -> Iterator[float]:
    """Over the fewest ranks; in weak scaling, of the work done in a second."""
    first = min(seconds)
    for ranks, taken in seconds.items():
        work = ranks / first if kind == "weak" else 1.0
        yield work * seconds[first] / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--weak", type=int, default=0, help="clients of each rank; 0: no weak scaling")
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("scaling"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    kinds = ["strong", "weak"] if given.weak else ["strong"]
    taken: dict[str, dict[int, list[float]]] = {kind: defaultdict(list) for kind in kinds}
    for turn in range(given.repeat):
        for kind in kinds:
            for ranks in sorted(given.ranks):
                taken[kind][ranks].append(seconds_of_round(given, kind, ranks, turn))
    _, axes = pyplot.subplots(figsize=(4.8, 3.6), layout="constrained")
    for kind in kinds:
        seconds = {ranks: median(runs) for ranks, runs in taken[kind].items()}
        faster = list(speed_ups(kind, seconds))
        for (ranks, runs), times in zip(taken[kind].items(), faster, strict=True):
            span = f"{1e3 * min(runs):.3g} to {1e3 * max(runs):.3g}"
            print(f"{kind:6} {ranks:5} ranks {span:>16} ms a round, speed-up {times:.2f}")
        axes.plot(list(seconds), faster, "o-", label=kind)
    axes.plot(given.ranks, [ranks / min(given.ranks) for ranks in given.ranks], "k:", label="ideal")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="speed-up")
    axes.legend()
    pyplot.savefig(given.out / "scaling.png")


if __name__ == "__main__":
    main()
