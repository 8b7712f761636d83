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
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot

ROWS = 60  # of a synthetic client
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}


def mpifed(*words: object, launch: str = "") -> None:
    command = [*shlex.split(launch), sys.executable, "-m", "mpifed", *map(str, words)]
    subprocess.run(command, check=True, env=ENVIRONMENT)


def seconds_of_round(given: argparse.Namespace, kind: str, ranks: int, turn: int) -> float:
    """The median round of one run."""
    changes = ["record.evaluate_every=0", "record.checkpoint_every=0", f"rounds={given.rounds}"]
    if kind == "weak":
        clients = ranks * given.weak
        data = given.out / f"data-{clients}"
        if not data.exists():
            made = f"--task classification --samples {clients * ROWS} --features 784 --classes 10 --clients {clients}"
            mpifed("data", "synthetic", "--split", "rows", *made.split(), "--out", data)
        changes.append(f"data.path={data}")
    out = given.out / f"{kind}-{ranks}-{turn}"
    settings = [f"--set={change}" for change in changes]
    launch = f"{os.environ.get('MPIEXEC', 'mpiexec')} -n {ranks}"
    mpifed("run", given.job, *settings, "--out", out, "--overwrite", "--progress", "none", launch=launch)
    return float(json.loads((out / "run.json").read_text())["seconds_per_round"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--weak", type=int, default=0, help="clients of each rank; 0: no weak scaling")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("scaling"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    given.ranks.sort()
    taken = defaultdict[tuple[str, int], list[float]](list)
    kinds = ["strong", "weak"] if given.weak else ["strong"]
    for turn in range(given.repeat):
        for kind in kinds:
            for ranks in given.ranks:
                taken[kind, ranks].append(seconds_of_round(given, kind, ranks, turn))
    _, axes = pyplot.subplots(figsize=(4.8, 3.6), layout="constrained")
    for kind in kinds:
        faster = []
        for ranks in given.ranks:
            runs = taken[kind, ranks]
            work = ranks / given.ranks[0] if kind == "weak" else 1.0  # done in a round, of that on the fewest ranks
            faster.append(work * median(taken[kind, given.ranks[0]]) / median(runs))
            span = f"{1e3 * min(runs):.3g} to {1e3 * max(runs):.3g}"
            print(f"{kind:6} {ranks:5} ranks {span:>16} ms a round, speed-up {faster[-1]:.2f}")
        axes.plot(given.ranks, faster, "o-", label=kind)
    axes.plot(given.ranks, [ranks / given.ranks[0] for ranks in given.ranks], "k:", label="ideal")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="speed-up")
    axes.legend()
    pyplot.savefig(given.out / "scaling.png")


if __name__ == "__main__":
    main()
