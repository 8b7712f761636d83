"""Speed, CPU time and memory of mpifed against loops by hand and against the commit that `base` names.

    python benchmarks/bench.py [--quick] [--cases 2 columns]

First the gate, six cases on one rank (gate.py; not with --cases). Then the rows of each case as soon as it is done,
every run of mpifed beside one of base (not with --quick). Ends with 1 where something is slower than base.
Every repetition is written to .cache/results.jsonl when it ends; of a run of all cases in full the medians are written
to docs/benchmarks/results.csv. The data are MNIST from $MPIFED_DATA/mnist, or synthetic of its shape; they are prepared
once, in .cache beside this file. Every rank has one BLAS thread. $MPIEXEC names another launcher. Let nothing else run
meanwhile; ratios are what lasts, no single times.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gate import gate, job_path
from prepared import CACHE, HERE, ROOT, arrays, base, prepared, run
from report import BASE, grouped, slower, table

from mpifed.files.json_file import read_json
from mpifed.files.run_folder import summary

REPETITIONS = 3  # two of them tell what is slower
WHOLE = ROOT / "docs" / "benchmarks" / "results.csv"
PRIVACY = "privacy={delta=1e-5,clip=1.0,noise_multiplier=1.0}"
VARIANTS = {  # what is changed in the job
    "blocks": ["aggregation.arithmetic=exact-blocks"],
    "private": [PRIVACY],
    "masked": ['aggregation.security="masked"', "server.dedicated=false"],
    "encrypted": ['aggregation.security="encrypted"', "server.dedicated=false"],
}


class Case(NamedTuple):
    """How much of a case is run; what it is stands in its job file and in loops.py."""

    family: str
    job: str
    clients: int
    rounds: int
    loop: Sequence[str] = ()  # by hand: its name, and the batch
    variants: Sequence[str] = ("exact",)
    changes: Sequence[str] = ()  # to the job
    data: str = "rows"
    ranks: Sequence[int] = ()  # instead of those asked for


CASES = {
    "1": Case("rows", "case1", 10, 200, ("ssca", "100"), ("blocks", "exact")),
    "1-fedsgd": Case("rows", "case1-fedsgd", 10, 200, ("fedsgd", "100")),
    "2": Case("local", "case2", 100, 120, ("fedavg", "30")),
    "3": Case("rows", "case3", 1000, 12, ("fedsgd", "10"), ("blocks", "exact")),
    "alg3-b1000": Case("columns", "alg3", 10, 200, ("columns", "1000"), data="columns"),
    "alg3-b100": Case(
        "columns", "alg3", 10, 200, ("columns", "100"), changes=["algorithm.batch_size=100"], data="columns", ranks=[2]
    ),
    "fedpdm": Case("states", "fedpdm", 1000, 150, ("states", "10"), ("exact", "private")),
    "torch-cnn": Case("networks", "torch", 8, 10, ("small_cnn", "20")),
    "torch-2nn": Case("networks", "torch", 8, 60, ("mlp", "20"), changes=["model.build=mpifed.models:mlp"]),
    "channels": Case("channels", "case1", 10, 30, variants=("exact", "masked", "encrypted")),
    "hyfdca": Case("cells", "hyfdca", 16, 20, ("cells", "0"), ("exact", "encrypted"), data="cells", ranks=[1]),
    "newcomer": Case("clients", "newcomer", 20, 1000, ("naive", "5"), data="newcomer", ranks=[1]),
    "clients": Case("clients", "clients", 1000, 40, variants=("few", "many"), data="small"),
    "clients-states": Case(
        "clients", "clients", 1000, 40, variants=("few", "many"), data="small",
        changes=['algorithm={name="fedpdm",batch_size=5,rho=2.0,local_steps=2,start="own"}'],
    ),
}  # fmt: skip
MANY = 100_000  # clients of the variant `many`
QUICK = ("2", "alg3-b100")  # that the loops by hand run


def launched(ranks: int, *command: str, root: Path = ROOT) -> str:
    """The standard output of a Python command on so many ranks."""
    return run([*shlex.split(os.environ.get("MPIEXEC", "mpiexec")), "-n", str(ranks), sys.executable, *command], root)


def by_mpifed(case: Case, ranks: int, rounds: int, variant: str, root: Path = ROOT) -> dict[str, Any]:
    """One repetition of a job by the mpifed of a state."""
    data = prepared(case.data, MANY if variant == "many" else case.clients, root)
    changes = [*case.changes, *VARIANTS.get(variant, ()), f"rounds={rounds}", f"data.path={data}"]
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "run")
        settings = [f"--set={change}" for change in changes]
        launched(
            ranks, "-m", "mpifed", "run", job_path(f"{case.job}.toml", root), *settings, "--out", str(out), root=root
        )
        found = summary(out)
        return {
            "seconds_per_round": found["seconds_per_round"],
            "cpu_s_per_round": read_json(out / "run.json")["cpu_s"] / rounds,
            "peak_rss_bytes": found["peak_rss_bytes"],
        }


def repetition(case: Case, ranks: int, rounds: int, variant: str, beside: Path | None) -> Mapping[str, Any]:
    """One repetition; of mpifed with one of the state in the folder `beside` right after it."""
    if variant == "hand":
        data = str(arrays(case.data, case.clients))
        found: Mapping[str, Any] = json.loads(launched(ranks, str(HERE / "loops.py"), *case.loop, str(rounds), data))
        return found
    result = by_mpifed(case, ranks, rounds, variant)
    if beside is not None:
        result[BASE] = by_mpifed(case, ranks, rounds, variant, beside)["seconds_per_round"]
    return result


def measured(name: str, sizes: Sequence[int], quick: bool, beside: Path | None) -> list[dict[str, Any]]:
    """All repetitions of a case, what is compared one right after the other; quick: one, a fifth as long."""
    case, results = CASES[name], []
    rounds = max(case.rounds // 5, 1) if quick else case.rounds
    for ranks in case.ranks or sizes:
        for number in range(1 if quick else REPETITIONS):
            for variant in (["hand"] if case.loop else []) + list(case.variants):
                told = {"case": name, "ranks": ranks, "variant": variant, "repetition": number}
                results.append(told | repetition(case, ranks, rounds, variant, beside))
                with open(CACHE / "results.jsonl", "a", encoding="utf-8") as log:
                    print(json.dumps(results[-1]), file=log)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    families = {case.family for case in CASES.values()}
    parser.add_argument("--quick", action="store_true", help=f"the gate; cases {', '.join(QUICK)} once, without base")
    parser.add_argument("--cases", nargs="*", choices=[*CASES, *sorted(families)], help="of these names, or families")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    given = parser.parse_args()
    wanted = given.cases or (QUICK if given.quick else CASES)
    CACHE.mkdir(exist_ok=True)
    failed = gate() if given.cases is None else []
    beside, results = None if given.quick else base(), []
    for name, case in CASES.items():
        if name in wanted or case.family in wanted:
            of_case = measured(name, given.ranks, given.quick, beside)
            print(table(grouped(of_case)).to_string(index=False), flush=True)
            results += of_case
    if wanted is CASES:
        table(grouped(results)).to_csv(WHOLE, index=False)
    failed += slower(grouped(results))
    print(f"every repetition: {CACHE / 'results.jsonl'}", *failed, sep="\n")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
