"""Speed, CPU time and memory of mpifed against the hand-written loop, on the same data, interleaved.

    python benchmarks/bench.py [--quick]

Prints the rows of each case as soon as it is done, then what is accepted, and the times of SSCA's server step and of
private noise. Every repetition is written to .cache/results.jsonl when it ends, and at the end to results.json beside
this file, or, where not all was run in full, to .cache/results.json. The data are MNIST from
$MPIFED_DATA/mnist, or synthetic of its shape; they are prepared once, in .cache beside this file. Every rank has one
BLAS thread. $MPIEXEC names another launcher. Let nothing else run meanwhile; ratios are what lasts, no single times.
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
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from cases import BY_ROWS, CASES, GRIDS, NEIGHBOURS, NUMBERS
from noise import noise_costs
from prepared import CACHE, HERE, prepared, prepared_cells, prepared_clients, run
from rich import box
from rich.console import Console
from rich.table import Table
from server_step import PARAMETERS, server_steps

from mpifed.files.json_file import read_json, write_json
from mpifed.files.run_folder import summary
from mpifed.run.environment import commit, versions

REPETITIONS = 3  # of the server's step and of noise; of a case, its own

Grouped: TypeAlias = dict[tuple[str, int], dict[str, list[dict[str, Any]]]]  # by case and ranks, by variant


def launched(ranks: int, *command: str) -> str:
    """The standard output of a Python command on so many ranks."""
    return run([*shlex.split(os.environ.get("MPIEXEC", "mpiexec")), "-n", str(ranks), sys.executable, *command])


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


def by_mpifed(case: str, ranks: int, rounds: int, data: Path, numbers: str) -> dict[str, Any]:
    """One repetition of `mpifed run`."""
    changes = [*CASES[case].changes, f"--set=rounds={rounds}", f"--set=data.path={data}"]
    form = {"sum": CASES[case].sum, **GRIDS.get(data.name.split("-")[0], {})}
    changes += [change.format(**form) for change in NUMBERS[numbers]]
    job = HERE / (CASES[case].job or f"case{case}.toml")
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "run")
        launched(ranks, "-m", "mpifed", "run", str(job), *changes, "--out", str(out))
        found = summary(out)
        return {
            "seconds_per_round": found["seconds_per_round"],
            "cpu_s_per_round": read_json(out / "run.json")["cpu_s"] / rounds,
            "peak_rss_bytes": found["peak_rss_bytes"],
        }


def repetition(case: str, ranks: int, rounds: int, variant: str) -> dict[str, Any]:
    """One repetition of one variant."""
    if CASES[case].data == "clients":
        data = prepared_clients(100_000 if variant == "many" else CASES[case].clients)
    elif CASES[case].data:
        data = prepared_cells(CASES[case].data)
    else:
        data = prepared(CASES[case].clients, "columns" if CASES[case].floor else "rows")
    if variant in NEIGHBOURS:
        result = json.loads(launched(ranks, str(HERE / "streams.py"), str(NEIGHBOURS[variant]), str(rounds)))
    elif variant in BY_HAND:
        result = by_hand(case, variant, ranks, rounds, data)
    elif variant == "rows":
        data = prepared(CASES[case].clients, "rows")
        result = by_mpifed(BY_ROWS[case], ranks, rounds, data, "float")
    else:
        result = by_mpifed(case, ranks, rounds, data, variant)
    return result | {"case": case, "ranks": ranks, "variant": variant, "rounds": rounds, "data": data.name}


def repetitions(cases: Iterable[str], ranks: Iterable[int], share: float) -> Iterable[dict[str, Any]]:
    """Every repetition of every variant, those that are compared one right after the other; 2 of a share of rounds."""
    for case in cases:
        rounds = max(int(CASES[case].rounds * share), 1)
        for size in CASES[case].ranks or ranks:
            for number in range(CASES[case].repetitions if share == 1 else 2):
                for variant in CASES[case].variants:
                    yield repetition(case, size, rounds, variant) | {"repetition": number}


def grouped(results: Iterable[dict[str, Any]]) -> Grouped:
    """The repetitions, in order."""
    groups: Grouped = defaultdict(lambda: defaultdict(list))
    for result in results:
        groups[result["case"], result["ranks"]][result["variant"]].append(result)
    return groups


def ratio(variants: dict[str, list[dict[str, Any]]], above: str, below: str) -> float | None:
    """The median of the ratios of times taken within each repetition; None where one of the two was not run."""
    if above not in variants or below not in variants:
        return None
    times = ([one["seconds_per_round"] for one in variants[name]] for name in (above, below))
    return median(first / second for first, second in zip(*times, strict=True))


def beyond(variants: dict[str, list[dict[str, Any]]], variant: str, streams: str) -> float | None:
    """What a masked round takes beyond the exact plain one, in key streams; the median within each repetition."""
    if variant not in variants:
        return None
    times = ([one["seconds_per_round"] for one in variants[name]] for name in (variant, "exact", streams))
    return median((masked - exact) / bare for masked, exact, bare in zip(*times, strict=True))


def table(groups: Grouped) -> Table:
    """Medians over the repetitions."""
    shown = Table("case", "ranks", "variant", box=box.SIMPLE_HEAD, collapse_padding=True)
    for heading in ("ms/round", "spread", "CPU ms", "MiB", "hand", "exact", "floor"):
        shown.add_column(heading, justify="right")
    for (case, ranks), variants in groups.items():
        for variant, runs in variants.items():
            taken = [one["seconds_per_round"] for one in runs]
            ratios = [ratio(variants, floor, variant) for floor in ("hand", "hand-exact", "products")]
            shown.add_row(
                case,
                str(ranks),
                variant,
                f"{1e3 * median(taken):.2f}",
                f"{(max(taken) - min(taken)) / median(taken):.0%}",
                f"{1e3 * median(one['cpu_s_per_round'] for one in runs):.2f}",
                f"{median(one['peak_rss_bytes'] for one in runs) / 2**20:.0f}",
                *("" if one is None else f"{one:.2f}" for one in ratios),
            )
    return shown


def accepted(groups: Grouped) -> list[str]:
    """The ratios that have a bound, one line each."""
    lines = []
    for case in ("1", "alg2"):
        if (found := ratio(groups[case, 1], "products", "float")) is not None:
            lines.append(f"{case}, 1 rank, float sums: {found:.2f} of the speed of its bare products; at least 0.7")
    if (found := ratio(groups["fedpdm", 4], "hand", "float")) is not None:
        lines.append(f"fedpdm, 4 ranks, float sums: {found:.2f} of the speed of the loop by hand; at least 0.6")
    for case in ("torch-cnn", "torch-2nn"):
        for variant in ("float", "exact"):
            if (found := ratio(groups[case, 1], "hand", variant)) is not None:
                lines.append(
                    f"{case}, 1 rank, {variant} sums: {found:.2f} of the speed of the loop by hand; at least 0.9"
                )
    for ranks in (1, 2):
        for variant, streams in {"masked": "streams", "sparse": "streams-sparse"}.items():
            if (found := beyond(groups["channels", ranks], variant, streams)) is not None:
                lines.append(
                    f"channels, {ranks} ranks, {variant}: the exact plain round and {found:.2f} times the bare key "
                    "streams; at most 1.5"
                )
    for case in ("hyfdca", "hyfdca-text"):
        for variant, most in {"float sums": 1.5, "exact sums": 2.0}.items():
            if (found := ratio(groups[case, 1], variant.split()[0], "products")) is not None:
                lines.append(f"{case}, 1 rank, {variant}: {found:.2f} times its bare products; at most {most}")
    if encrypted := groups["hyfdca", 1].get("encrypted"):
        taken = median(one["seconds_per_round"] for one in encrypted)
        lines.append(f"hyfdca, 1 rank, encrypted: {taken:.2f} s an iteration; under 2 s")
    for case, what in {"clients": "no state", "clients-states": "states"}.items():
        for ranks in (1, 2):
            if (found := ratio(groups[case, ranks], "many", "few")) is not None:
                lines.append(
                    f"clients, {what}, {ranks} ranks: 100 of 100,000 take {found:.2f} times as long as 100 of 1,000; "
                    "under 2"
                )
    for case, rows in BY_ROWS.items():
        if (found := ratio(groups[case, 2], "float", "rows")) is not None:
            lines.append(f"{case}, 2 ranks, float sums: {found:.2f} times the time of {rows} by rows; at most 2")
    return lines


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
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    given = parser.parse_args()
    times, share = (2, 0.2) if given.quick else (REPETITIONS, 1.0)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    results, console = [], Console(highlight=False, soft_wrap=True)
    console.print("hand, exact, floor: time by hand, of exact sums by hand, of the bare products / of this variant")
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / "results.jsonl", "w", encoding="utf-8") as log, Console(stderr=True).status("") as status:
        for number, case in enumerate(given.cases, 1):
            status.update(f"case {case}: preparing data")
            began, of_case = time.monotonic(), []
            for result in repetitions([case], given.ranks, share):
                of_case.append(result)
                print(json.dumps(result), file=log, flush=True)
                done = "{ranks} ranks, repetition {repetition}, {variant} done".format_map(result)
                status.update(f"case {case} ({number} of {len(given.cases)}): {done}")
            console.print(table(grouped(of_case)))
            console.print(f"case {number} of {len(given.cases)}, {time.monotonic() - began:.0f} s")
            results += of_case
        status.update("server step and noise")
        steps, noise = server_steps(times), noise_costs(times)
    about = {"started": started, "machine": machine(), "versions": versions(), "commit": commit()}
    whole = not given.quick and given.cases == list(CASES) and given.ranks == [1, 2]
    written = (HERE if whole else CACHE) / "results.json"
    write_json(written, about | {"results": results, "server_step_s": steps, "noise_ns": noise})
    for line in accepted(grouped(results)):
        console.print(line)
    beyond = ", ".join(f"{1e3 * (seconds - steps[0]):.2f} with {M}" for M, seconds in steps.items() if M)
    console.print(f"server step, {PARAMETERS:,} parameters: {1e3 * steps[0]:.2f} ms; with constraints, more: {beyond}")
    for sigma, (own, normal, times_as_long) in noise.items():
        console.print(
            f"discrete Gaussian of {sigma:.0f} steps: {own:.1f} ns a number, {times_as_long:.2f} times NumPy's float32 "
            f"normals ({normal:.1f} ns); at most 1.25"
        )
    console.print(f"every repetition: {written}")


if __name__ == "__main__":
    main()
