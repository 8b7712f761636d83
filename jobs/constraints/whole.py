"""All shipped jobs with constraints at full length, each certified once more: `make certify-constraints`.

By hand: a quarter of an hour on one core, if the headers of the jobs are right. For each job it prints the last row's
numbers beside those of `certify.py`; for the two whose optimum is known, multipliers and objective beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from jobs.constraints import certify
from jobs.constraints.optimum import AIMED, FOUND

JOBS = Path(__file__).parents[1]

# by folder of shards: what `mpifed data` is told but for the folder; $ is the folder of real data
DATA: dict[str, tuple[str, ...]] = {
    "mnist-rows-10": ("mnist", "$/mnist", "--split", "rows", "--clients", "10"),
    "mnist-columns-10": ("mnist", "$/mnist", "--split", "columns", "--clients", "10"),
    "a9a-rows-10": (
        "svmlight", "$/libsvm/a9a.bz2", "--test", "$/libsvm/a9a.t.bz2", "--split", "rows", "--clients", "10",
    ),
}  # fmt: skip
SSCA = (
    "alg2-auto", "alg2-b1", "alg2-b10", "alg2-b100", "alg2-limit", "alg2-met", "alg4-auto", "alg4-b10", "alg4-b100",
    "alg4-b1000", "alg4-limit",
)  # fmt: skip


def names() -> list[str]:
    """FOLDER/JOB of all of them."""
    return [*(f"constraints/{name}" for name in FOUND), *(f"ssca/{name}" for name in SSCA)]


def prepare(folder: Path) -> None:
    """Makes all shards that are not there."""
    for name, source in DATA.items():
        if not (folder / name / "federation.h5").exists():
            told = [part.replace("$", os.environ.get("MPIFED_DATA", "data")) for part in source]
            _mpifed("data", *told, "--out", folder / name)


def _mpifed(*arguments: str | Path) -> None:
    ended = subprocess.run([sys.executable, "-m", "mpifed", *map(str, arguments)])
    if ended.returncode not in (0, 5):  # 5: a limit is not met, as with the paper's steps
        raise SystemExit(ended.returncode)


def beside_optimum(name: str, run: Path) -> str:
    """The last row of a run beside the optimum, and that with the limits less their margins, at which the job aims."""
    row, columns = certify.last_row(run), (FOUND[name], AIMED[name])
    lines = [f"  {'':<22}{'history':>16}{'optimum':>16}{'with margins':>16}"]
    parts = [("objective", [known.objective for known in columns])]
    parts += [(f"multiplier_{m + 1}", [known.multipliers[m] for known in columns]) for m in range(len(columns[0][1]))]
    lines += [f"  {part:<22}" + "".join(f"{value:>16.6g}" for value in (row[part], *best)) for part, best in parts]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, certifies and compares; 1 where a number differs."""
    parser = ArgumentParser(prog="python -m jobs.constraints.whole", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/constraints"), help="folder of the runs")
    parser.add_argument("--only", default="", help="jobs whose name has this in it")
    asked, code = parser.parse_args(arguments), 0
    prepare(Path("data"))
    for name in [name for name in names() if asked.only in name]:
        out = asked.out / name
        # what has run is not run again
        if not any((out / file).exists() for file in ("sweep.csv", "model.h5")):
            _mpifed("run", JOBS / f"{name}.toml", "--out", out, "--progress", "none")
        code |= certify.main([str(path.parent) for path in sorted(out.rglob("model.h5"))])
        if (short := name.split("/")[1]) in FOUND:
            print(beside_optimum(short, out))
    return code


if __name__ == "__main__":
    sys.exit(main())
