"""Speed, CPU time and memory of mpifed against the hand-written loop and against the commit that `base` names.

    python benchmarks/bench.py [--quick] [--cases 2 columns]

First the gate, six cases on one rank (gate.py; not with --cases). Then the rows of each case as soon as it is done,
every run of mpifed beside one of base (not with --quick), what is accepted, and the times of private rounds (not with
--quick or --cases). Ends with 1 where something is slower than base.
Every repetition is written to .cache/results.jsonl when it ends, and at the end to results.json beside this file, or,
where not all was run in full, to .cache/results.json. The data are MNIST from $MPIFED_DATA/mnist, or synthetic of its
shape; they are prepared once, in .cache beside this file. Every rank has one BLAS thread. $MPIEXEC names another
launcher. Let nothing else run meanwhile; ratios are what lasts, no single times.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cases import BY_ROWS, CASES, FAMILIES, NUMBERS, QUICK, Planned, chosen, planned
from gate import gate, job_path
from prepared import CACHE, HERE, ROOT, base, prepared, prepared_cells, prepared_clients, prepared_small, run
from private_rounds import private_rounds, shown
from report import BASE, accepted, grouped, slower, table
from topk import slow_topk

from mpifed.files.json_file import read_json, write_json
from mpifed.files.run_folder import summary
from mpifed.run.environment import commit, versions

WHOLE = HERE / "results.json"  # of a run of all cases in full


def launched(ranks: int, *command: str, root: Path = ROOT) -> str:
    """The standard output of a Python command on so many ranks."""
    return run([*shlex.split(os.environ.get("MPIEXEC", "mpiexec")), "-n", str(ranks), sys.executable, *command], root)


BY_HAND = {"hand": "", "hand-exact": "-exact", "products": "-products"}  # and how these loops are called


def by_hand(case: str, variant: str, ranks: int, rounds: int, data: Path) -> dict[str, Any]:
    """One repetition of a hand-written loop, of one with exact sums, or of its matrix products alone."""
    loop = [str(HERE / "handwritten.py"), case + BY_HAND[variant]]
    if CASES[case].loop:
        program, *settings = CASES[case].loop
        loop = [str(HERE / program), *settings]
    elif floor := CASES[case].floor:
        loop = [str(HERE / "handwritten_columns.py"), "products" if variant == "products" else floor[0], *floor[1:]]
    folder = data if CASES[case].data else data / "npz"
    result: dict[str, Any] = json.loads(launched(ranks, *loop, str(rounds), str(folder)))
    return result


def job_of(case: str, rounds: int, data: Path, numbers: str, root: Path = ROOT) -> list[str]:
    """The job of a case, and the settings that a variant changes, as arguments of `mpifed run`."""
    changes = [*CASES[case].changes, f"--set=rounds={rounds}", f"--set=data.path={data}"]
    changes += NUMBERS[numbers]
    return [job_path(CASES[case].job or f"case{case}.toml", root), *changes]


def by_mpifed(case: str, ranks: int, rounds: int, data: Path, numbers: str, root: Path = ROOT) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "run")
        launched(ranks, "-m", "mpifed", "run", *job_of(case, rounds, data, numbers, root), "--out", str(out), root=root)
        found = summary(out)
        return {
            "seconds_per_round": found["seconds_per_round"],
            "cpu_s_per_round": read_json(out / "run.json")["cpu_s"] / rounds,
            "peak_rss_bytes": found["peak_rss_bytes"],
        }


def data_of(case: str, variant: str, root: Path = ROOT) -> Path:
    """The folder of a variant's data, prepared where it is not there yet."""
    if CASES[case].data == "clients":
        return prepared_clients(100_000 if variant == "many" else CASES[case].clients, root)
    if CASES[case].data == "small":
        return prepared_small(CASES[case].clients, root)
    if CASES[case].data:
        return prepared_cells(CASES[case].data, root)
    return prepared(CASES[case].clients, "columns" if CASES[case].floor else "rows", root)


def repetition(case: str, ranks: int, rounds: int, variant: str, beside: Path | None) -> dict[str, Any]:
    """One repetition; of mpifed with one of the state in the folder `beside` right after it."""
    data = data_of(case, variant)
    if variant == "streams":
        result = json.loads(launched(ranks, str(HERE / "streams.py"), str(rounds)))
    elif variant in BY_HAND:
        result = by_hand(case, variant, ranks, rounds, data)
    elif variant == "rows":
        data = prepared(CASES[case].clients, "rows")
        result = by_mpifed(BY_ROWS[case], ranks, rounds, data, "exact")
    else:
        result = by_mpifed(case, ranks, rounds, data, variant)
        if beside is not None:
            then = by_mpifed(case, ranks, rounds, data_of(case, variant, beside), variant, beside)
            result |= {BASE: then["seconds_per_round"]}
    return result | {"data": data.name}


def machine() -> dict[str, Any]:
    """What kind of machine this is."""
    model = platform.processor()
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {"system": platform.platform(), "architecture": platform.machine(), "cpu": model, "cores": os.cpu_count()}


def measured(plan: list[Planned], beside: Path | None, about: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of all that is planned, each written when it ends; says what is done."""
    results: list[dict[str, Any]] = []
    cases = list(dict.fromkeys(repetition.case for repetition in plan))
    with open(CACHE / "results.jsonl", "w", encoding="utf-8") as log:
        print(json.dumps(about), file=log, flush=True)
        for number, case in enumerate(cases, 1):
            began, of_case = time.monotonic(), []
            for each in (one for one in plan if one.case == case):
                result = repetition(case, each.ranks, each.rounds, each.variant, beside) | each._asdict()
                of_case.append(result)
                print(json.dumps(result), file=log, flush=True)
            results += of_case
            print(table(grouped(of_case)))
            print(f"case {case}, {number} of {len(cases)}: {time.monotonic() - began:.0f} s", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    several = ", ".join(QUICK)
    parser.add_argument("--quick", action="store_true", help=f"the gate; cases {several} once, without base")
    parser.add_argument("--cases", nargs="*", help=f"of these names, or of families: {', '.join(FAMILIES)}")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    given = parser.parse_args()
    about = {"started": datetime.now(timezone.utc).isoformat(timespec="seconds"), "machine": machine()}
    about |= {"versions": versions(), "commit": commit()}
    try:
        cases = chosen(given.cases) if given.cases is not None else list(QUICK if given.quick else CASES)
    except ValueError as error:
        parser.error(str(error))
    plan = planned(cases, given.ranks, given.quick)
    CACHE.mkdir(exist_ok=True)
    failed = [*gate(), *slow_topk()] if given.cases is None else []
    print(
        "base: its time / this variant's; hand, exact, floor: those by hand, of exact sums by hand, of the bare\n"
        f"products / this variant's; {len(plan)} repetitions",
        flush=True,
    )
    results = measured(plan, None if given.quick else base(), about)
    parts: dict[str, Any] = {}
    if not given.quick and given.cases is None:
        private = private_rounds()
        parts = {"private_rounds_s": {f"{name} {count}": one._asdict() for (name, count), one in private.items()}}
        print(*shown(private), sep="\n")
    written = WHOLE if parts and given.ranks == [1, 2] else CACHE / "results.json"
    write_json(written, about | {"results": results} | parts)
    failed += slower(grouped(results))
    print(*accepted(grouped(results)), f"every repetition: {written}", *failed, sep="\n")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(f"interrupted; what is done: {CACHE / 'results.jsonl'}") from None
