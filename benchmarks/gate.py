"""Whether mpifed became slower than the commit that the file `base` names, by instructions and by time of six cases.

Both states play the same jobs on this machine, on one rank, without PyTorch, with data that each has prepared itself.
Instructions are counted by Callgrind from the first round on, whatever else the machine does. Times are taken in turns
of some rounds, of one state and then of the other: other processes slow down both, and their ratio lasts. Time is that
of the processor, since a round of a private run waits for the disk.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from prepared import ENVIRONMENT, HERE, ROOT, base, run
from report import LEAST_SPEED, slower_in_two

MOST_INSTRUCTIONS = 1.03  # of those of base; the same code in two folders has up to 1.004
TURNS = 12  # of each state in a pair of runs, after one that warms up
PAIRS = 3  # in a repetition: where a run's arrays happen to lie makes up to 15 % of short rounds, whatever the turns
SPLITS = {  # of the digits
    "rows": "--split rows --clients 8 --seed 1",
    "columns": "--split columns --clients 8 --seed 1",
    "cells": "--split grid --grid 4x4 --labels even-odd --scale unit-rows --seed 1",
}
REQUESTS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void stop(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


class Gated(NamedTuple):
    """A case: a job of this folder, what is changed in it, and how much of it is played."""

    job: str
    split: str
    counted: int  # rounds whose instructions are counted
    turn: int  # rounds of a turn, about 20 ms
    changes: tuple[str, ...] = ()


CASES = {
    "rows": Gated(  # local steps
        "clients.toml", "rows", 20, 10,
        (
            'model={name="softmax"}', 'algorithm={name="fedavg",batch_size=20,local_steps=5}', "participation={}",
            "data.block=1",
        ),
    ),
    "network": Gated("case1.toml", "rows", 40, 20, ("model.hidden=32",)),
    "columns": Gated("alg3.toml", "columns", 40, 20, ("model.hidden=32", "algorithm.batch_size=100")),
    "cells": Gated("hyfdca.toml", "cells", 20, 10),
    "private": Gated(
        "fedpdm.toml", "rows", 10, 5,
        ("participation={}", 'privacy={delta=1e-5,clip=1.0,noise_multiplier=1.0,noise="test"}'),
    ),
    "masked": Gated(
        "case1-fedsgd.toml", "rows", 40, 20,
        ("model.hidden=32", "algorithm.batch_size=20", 'aggregation.security="masked"', "server.dedicated=false"),
    ),
}  # fmt: skip


def job_path(name: str, root: Path) -> str:
    """A state's own job of that name, whose keys it knows; ours where it has none."""
    own = root / "benchmarks" / name
    return str(own if own.exists() else HERE / name)


def job(name: str, root: Path, folder: Path, turns: int, rounds: int, observe: str = "") -> list[str]:
    """The arguments of `mpifed run` by which a state plays so many turns of a case."""
    case = CASES[name]
    changes = [
        *case.changes, f"name={name}", f"data.path={folder / case.split}", f"observe=[{observe}]",
        f"rounds={turns * rounds}", f"record.evaluate_every={rounds}",
    ]  # fmt: skip
    out = Path(tempfile.mkdtemp(dir=folder), "run")
    return [
        job_path(case.job, root),
        *(f"--set={change}" for change in changes),
        "--out",
        str(out),
        "--progress",
        "none",
    ]


def instructions(root: Path, folder: Path, requests: Path) -> dict[str, int]:
    """How many each case has in its first rounds, of data that are made here."""
    for split, how in SPLITS.items():
        run([sys.executable, "-m", "mpifed", "data", "digits", *how.split(), "--out", str(folder / split)], root)
    observe = f'{{name="played:Counted",library="{requests}"}}'
    jobs = [job("private", root, folder, 1, 1)]  # which imports most
    jobs += [job(name, root, folder, 1, case.counted, observe) for name, case in CASES.items()]
    file = folder / "jobs.json"
    file.write_text(json.dumps(jobs), encoding="utf-8")
    run(
        [
            "valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no",
            f"--callgrind-out-file={folder / 'counts.%p'}", sys.executable, str(HERE / "played.py"), str(file),
        ],
        root, PYTHONPATH=f"{root}:{HERE}", PYTHONHASHSEED="0",
    )  # fmt: skip
    counts = {}
    for path in folder.glob("counts.*.*"):
        text = path.read_text(encoding="utf-8")
        name, total = (re.search(each, text, re.MULTILINE) for each in (r"Client Request: (\S+)", r"^totals: (\d+)"))
        if name and total:
            counts[name[1]] = int(total[1])
    return counts


def elapsed(process: subprocess.Popen[str]) -> float:
    """The processor time that a run tells next, when its turn is over."""
    said = []
    for line in process.stdout or ():
        if line.startswith("turn "):
            return float(line.split()[1])
        said.append(line)
    raise SystemExit(f"{' '.join(map(str, process.args))}\nended before its last turn:\n{''.join(said)[-2000:]}")


def speeds(name: str, states: Sequence[tuple[Path, Path]]) -> list[float]:
    """Time of base / time of this state, of each turn of a pair of runs."""
    rounds = CASES[name].turn
    with ExitStack() as stack:
        runs = []
        for root, folder in states:
            arguments = job(name, root, folder, TURNS + 2, rounds, '{name="played:Turns"}')
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "mpifed", "run", *arguments], cwd=root, text=True,
                    env=ENVIRONMENT | {"PYTHONPATH": str(HERE)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
            stack.callback(process.kill)
            runs.append(process)
        done = [elapsed(process) for process in runs]
        turns = []
        for turn in range(TURNS + 1):
            seconds = [0.0, 0.0]
            for k in (0, 1) if turn % 2 else (1, 0):
                print(file=runs[k].stdin, flush=True)
                now = elapsed(runs[k])
                seconds[k], done[k] = now - done[k], now
            turns.append(seconds[0] / seconds[1])
        return turns[1:]


def repetition(name: str, states: Sequence[tuple[Path, Path]]) -> float:
    """The median speed of several pairs of runs."""
    return median(median(speeds(name, states)) for _ in range(PAIRS))


def repeated(name: str, states: Sequence[tuple[Path, Path]]) -> list[float]:
    """The median speed of each repetition: of one if it is not slower, else of up to three, until two are."""
    medians = [repetition(name, states)]
    while medians[0] < LEAST_SPEED and len(medians) < 3 and not slower_in_two(medians):
        medians.append(repetition(name, states))
    return medians


def gate() -> list[str]:
    """Prints both measures of each case; what is slower, a line each."""
    failed = []
    for program, package in {"valgrind": "valgrind", "cc": "gcc libc6-dev"}.items():
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is missing, which counting instructions needs: apt-get install {package}")
    roots = base(), ROOT
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        requests = folder / "requests.so"
        (folder / "requests.c").write_text(REQUESTS, encoding="utf-8")
        run(["cc", "-shared", "-fPIC", "-o", str(requests), str(folder / "requests.c")])
        states = [(root, folder / name) for root, name in zip(roots, ("base", "now"), strict=True)]
        with ThreadPoolExecutor() as pool:
            then, now = pool.map(lambda state: instructions(*state, requests), states)
        print(f"{'case':10}{'instructions of base':>22}{'now':>16}{'ratio':>8}   speed, times base's")
        for name in CASES:
            if name not in then or name not in now:
                raise SystemExit(f"case {name}: Callgrind has counted nothing")
            ratio = now[name] / then[name]
            medians = repeated(name, states)
            shown = ", ".join(f"{speed:.2f}" for speed in medians)
            print(f"{name:10}{then[name]:22,}{now[name]:16,}{ratio:8.3f}   {shown}", flush=True)
            if ratio > MOST_INSTRUCTIONS:
                failed.append(
                    f"slower: case {name}: {now[name]:,} instructions, base {then[name]:,}: {ratio:.3f} times as many; "
                    f"at most {MOST_INSTRUCTIONS}"
                )
            if slower_in_two(medians):
                failed.append(f"slower: case {name}: {shown} of base's speed; at least {LEAST_SPEED} in two of three")
    return failed


if __name__ == "__main__":
    failed = gate()
    print(*failed, sep="\n")
    raise SystemExit(bool(failed))
