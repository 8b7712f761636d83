"""Speed, CPU time and memory of mpifed against the hand-written loop, on the same data, interleaved.

    python benchmarks/bench.py [--quick]

Prints a table and writes results.json beside this file, with every repetition. The data are MNIST from
$MPIFED_DATA/mnist, or synthetic of its shape; they are prepared once, in .cache beside this file. Every rank has one
BLAS thread. $MPIEXEC names another launcher. Let nothing else run meanwhile; ratios are what lasts, and not rounds per
second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from mpifed.run.environment import commit, versions
from mpifed.run.history import read_json, summary, write_json
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


class Case(NamedTuple):
    """How much of a case is run; what it is stands in its job file and in handwritten.py."""

    clients: int
    rounds: int
    sum: str  # the name of the exchange
    variants: tuple[str, ...] = ("hand", "float", "exact")


NUMBERS = {
    "float": ["--set=sum.numbers=float"],
    "exact": [],  # on the algorithm's own grid, 2^-40
    "exact32": ['--set=sum.bounds."{sum}.value"={bound}', "--set=sum.scales.{sum}={scale}"],
}
# 22 bits and the sign: above the largest entry of any client's gradient, which is larger on synthetic data
GRIDS = {"mnist": {"bound": 2.0**4, "scale": 2.0**-18}, "synthetic": {"bound": 2.0**10, "scale": 2.0**-12}}
CASES = {
    "1": Case(10, 300, "gradients", ("hand", "float", "exact", "exact32", "products")),
    "1-fedsgd": Case(10, 300, "changes", ("hand", "float", "exact", "exact32")),
    "2": Case(100, 60, "changes"),
    "3": Case(1000, 60, "changes"),
}


def run(command: Sequence[str]) -> str:
    """The standard output of a command; ends the benchmark where the command fails."""
    done = subprocess.run(command, env=ENVIRONMENT, cwd=HERE.parent, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout)[-2000:]
        raise SystemExit(f"{shlex.join(command)}\nended with {done.returncode}:\n{said}")
    return done.stdout


def launched(ranks: int, *command: str) -> str:
    """The standard output of a Python command on so many ranks."""
    return run([*shlex.split(os.environ.get("MPIEXEC", "mpiexec")), "-n", str(ranks), sys.executable, *command])


def prepared(clients: int) -> Path:
    """The folder with the data of so many clients, as shards for mpifed and, in `npz`, for the hand-written loop."""
    mnist = Path(os.environ.get("MPIFED_DATA", ""), "mnist")
    source = ["mnist", str(mnist)] if "MPIFED_DATA" in os.environ else SYNTHETIC.split()
    folder = CACHE / f"{source[0]}-{clients}"
    if not (folder / "npz").exists():
        shutil.rmtree(folder, ignore_errors=True)
        split = f"--split rows --clients {clients} --scale unit --seed 1 --out".split()
        run([sys.executable, "-m", "mpifed", "data", *source, *split, str(folder)])
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


def by_hand(case: str, ranks: int, rounds: int, data: Path) -> dict[str, Any]:
    """One repetition of handwritten.py."""
    result: dict[str, Any] = json.loads(launched(ranks, str(HERE / "handwritten.py"), case, str(rounds), f"{data}/npz"))
    return result


def by_mpifed(case: str, ranks: int, rounds: int, data: Path, numbers: str) -> dict[str, Any]:
    """One repetition of `mpifed run`."""
    changes = [f"--set=rounds={rounds}", f"--set=data.path={data}"]
    form = {"sum": CASES[case].sum, **GRIDS[data.name.split("-")[0]]}
    changes += [change.format(**form) for change in NUMBERS[numbers]]
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "run")
        launched(ranks, "-m", "mpifed", "run", str(HERE / f"case{case}.toml"), *changes, "--out", str(out))
        found = summary(out)
        return {
            "seconds_per_round": found["seconds_per_round"],
            "cpu_s_per_round": read_json(out / "run.json")["cpu_s"] / rounds,
            "peak_rss_bytes": found["peak_rss_bytes"],
        }


def repetitions(cases: Iterable[str], ranks: Iterable[int], times: int, share: float) -> Iterable[dict[str, Any]]:
    """Every repetition of every variant, those that are compared one right after the other."""
    for case in cases:
        clients, full, _, variants = CASES[case]
        data, rounds = prepared(clients), max(int(full * share), 1)
        for size in ranks:
            for repetition in range(times):
                for variant in variants:
                    if variant in NUMBERS:
                        result = by_mpifed(case, size, rounds, data, variant)
                    else:
                        loop = case if variant == "hand" else f"{case}-{variant}"
                        result = by_hand(loop, size, rounds, data)
                    about = {"case": case, "ranks": size, "repetition": repetition, "variant": variant}
                    yield result | about | {"rounds": rounds, "data": data.name}


def table(results: Iterable[dict[str, Any]]) -> Table:
    """Medians over the repetitions; the ratio is taken within each repetition first."""
    groups: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        groups[result["case"], result["ranks"]][result["variant"]].append(result)
    shown = Table("case", "ranks", "variant", box=box.SIMPLE_HEAD, collapse_padding=True)
    shown.caption = "ratio: time by hand / time of this variant"
    for heading in ("rounds/s", "ms/round", "spread", "CPU ms", "MiB", "ratio"):
        shown.add_column(heading, justify="right")
    for (case, ranks), variants in groups.items():
        hand = [one["seconds_per_round"] for one in variants["hand"]]
        for variant, runs in variants.items():
            taken = [one["seconds_per_round"] for one in runs]
            shown.add_row(
                case,
                str(ranks),
                variant,
                f"{1 / median(taken):.1f}",
                f"{1e3 * median(taken):.2f}",
                f"{(max(taken) - min(taken)) / median(taken):.0%}",
                f"{1e3 * median(one['cpu_s_per_round'] for one in runs):.2f}",
                f"{median(one['peak_rss_bytes'] for one in runs) / 2**20:.0f}",
                f"{median(theirs / ours for theirs, ours in zip(hand, taken, strict=True)):.2f}",
            )
        shown.add_section()
    return shown


def machine() -> dict[str, Any]:
    """What kind of machine this is."""
    model = platform.processor()
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {"system": platform.platform(), "architecture": platform.machine(), "cpu": model, "cores": os.cpu_count()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 repetitions of a fifth of the rounds")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    given = parser.parse_args()
    times, share = (2, 0.2) if given.quick else (5, 1.0)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    results = []
    with Console(stderr=True).status("preparing data") as status:
        for result in repetitions(given.cases, given.ranks, times, share):
            results.append(result)
            status.update("case {case}, ranks {ranks}, repetition {repetition}: {variant} done".format_map(result))
    about = {"started": started, "machine": machine(), "versions": versions(), "commit": commit()}
    write_json(HERE / "results.json", about | {"results": results})
    Console().print(table(results))


if __name__ == "__main__":
    main()
