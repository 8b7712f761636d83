"""The models of the shipped jobs, bit by bit and round by round: `test_hashes.py` compares them.

Bits belong to a processor and to libraries. A table says under which it was written (`fingerprint`). Those without
networks are of instructions that x86-64 processors have since 2013 (`KERNELS`), and hold on all of these. Where
processor and libraries are here, models have the hashes of the table. Elsewhere the base, the last commit that wrote
the table, is built in a worktree, runs its own jobs on this machine, and models have the hashes that come of that. A
commit that moves a hash writes the table, is its own base, and says in its message which and why.

Values of histories are the same on every machine, to a tolerance that stands beside each of them.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shipped import ROOT, Data, Outcome, RealData, rows, run

TABLES = {
    "laws": ROOT / "tests/laws/hashes.json",
    "models": ROOT / "tests/models/hashes.json",
    "real": ROOT / "tests/laws/real-hashes.json",
}
VALUES = {name: path.with_name("values.json") for name, path in TABLES.items() if name != "real"}
LIBRARIES = {
    "laws": ("numpy", "scipy", "dp-accounting", "scikit-learn", "seal-python"),
    "models": ("numpy", "torch", "jax", "jaxlib"),
    "real": ("numpy", "scipy", "dp-accounting", "scikit-learn", "seal-python"),
}
# of OpenBLAS for AVX2, and NumPy's without AVX-512: newer processors would take others, with other last bits
KERNELS = {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR"}
CHOOSING = ("GLIBC_TUNABLES", "MKL_", "ONEDNN_", "XLA_")  # variables whose effect nothing else here shows
PARTS = ("families", "fedpdm", "heterogeneous", "hyfdca", "mcmahan", "others", "ssca")
MOVES = 5  # runs whose data are moved by one ulp
TIMES = 10  # a value may differ by so many times their spread,
LEAST = 2.0**-23  # which counts as one ulp of float32 at least, in which models are; relative
MOST = 0.01  # a row ends where that is more; relative


# --- this machine --------------------------------------------------------------------------------------------------


def fingerprint(table: str) -> dict[str, Any]:
    """What bits depend on, by a process that has loaded what the runs have, and nothing else."""
    found: dict[str, Any] = json.loads(called(ROOT, "fingerprint", table))
    return found


def facts(table: str) -> dict[str, Any]:
    """The same, of this process."""
    import numpy as np
    import scipy.linalg  # noqa: F401 - its BLAS is loaded
    from threadpoolctl import threadpool_info

    found: dict[str, Any] = {
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "blas": sorted(
            f"{one['internal_api']} {one['version']} {one.get('architecture')}"
            for one in threadpool_info()
            if one["user_api"] == "blas"
        ),
        "simd": np.show_config(mode="dicts")["SIMD Extensions"]["found"],  # type: ignore[call-overload]
        "versions": {name: installed(name) for name in LIBRARIES[table]},
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith(CHOOSING)},
    }
    if table == "models":
        import torch

        # by its make and model, MKL and XLA choose kernels
        found["processor"] = of_processor("vendor_id", "cpu family", "model") or platform.processor()
        found["torch"] = torch.backends.cpu.get_cpu_capability()
        found["onednn"] = onednn()
    return found


def installed(name: str) -> str:
    """A package's version, "" where it is not here."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def of_processor(*names: str) -> str:
    """What Linux says of it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").split("\n\n")[0].splitlines() if path.exists() else []
    facts = dict(line.replace("\t", "").split(":", 1) for line in lines)
    return " ".join(facts.get(name, "").strip() for name in names).strip()


def kernels(table: str) -> Mapping[str, str]:
    """The variables of `KERNELS`, but for networks, whose libraries choose by the processor's model too."""
    return KERNELS if table != "models" and {"avx2", "fma"} <= set(of_processor("flags").split()) else {}


def onednn() -> str:
    """The instructions that oneDNN says it uses, at its first convolution."""
    code = "import torch; torch.nn.Conv2d(1, 32, 5)(torch.zeros(4, 1, 28, 28))"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ONEDNN_VERBOSE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return next((line.rpartition("isa:")[2] for line in said.stdout.splitlines() if "isa:" in line), "none")


# --- runs ----------------------------------------------------------------------------------------------------------


def part_of(name: str) -> str:
    """Which of `PARTS` a row is in."""
    folder = name.partition("/")[0]
    return folder if folder in PARTS else "others"


def outcomes(table: str, part: str | None, seed: int) -> dict[str, Outcome]:
    """What the rows of a table give in this process; `seed` above 0 moves data by an ulp."""
    import mpifed

    if ROOT not in Path(mpifed.__file__).parents:
        raise RuntimeError(f"mpifed is imported from {mpifed.__file__}, and is to be that of {ROOT}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        real = os.environ.get("MPIFED_DATA", "")
        data = RealData(folder, Path(real)) if table == "real" else Data(folder, seed)
        chosen = [row for row in rows(table) if part is None or part_of(row.name) == part]
        return {row.name: run(row, data.of(row), folder / f"run-{at}") for at, row in enumerate(chosen)}


def apart(tree: Path, table: str, part: str | None, seed: int = 0) -> dict[str, Outcome]:
    """The same by the package, the jobs and this file of a checkout, in a process of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "outcomes.json"
        options = {"--part": part, "--seed": seed}
        called(tree, "run", table, str(out), *(f"{option}={value}" for option, value in options.items() if value))
        return {name: Outcome(*one) for name, one in json.loads(out.read_text(encoding="utf-8")).items()}


def called(tree: Path, command: str, table: str, *words: str) -> str:
    """What this file of a checkout prints; by one thread, as in all tests, and by the kernels of a table."""
    paths = [str(tree / "built"), str(tree), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        **kernels(table),
    }
    done = subprocess.run(
        [sys.executable, str(tree / "tests/hashes.py"), command, table, *words],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"the jobs of {tree} do not run:\n{done.stdout}{done.stderr}")
    return done.stdout


# --- the base ------------------------------------------------------------------------------------------------------


def git(*words: str) -> str:
    """What git prints."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def base_of(table: str) -> str:
    """The last commit that wrote a table."""
    path = TABLES[table].relative_to(ROOT)
    commit = git("log", "-1", "--format=%H", "--", str(path))
    if not commit:
        raise RuntimeError(
            f"no commit has {path}, which was written on another kind of machine: commit it, or rewrite it"
        )
    if git("rev-parse", "--is-shallow-repository") == "true" and not git("log", "-1", "--format=%P", commit):
        raise RuntimeError(
            f"this clone has not all commits, so that the last that wrote {path} is unknown: git fetch --unshallow"
        )
    return commit


def base_tree(commit: str) -> Path:
    """A worktree of a commit with its package built, in `build/`; it is kept for the next time."""
    commit = git("rev-parse", "--verify", f"{commit}^{{commit}}")
    tree = ROOT / "build" / f"base-{commit[:12]}"
    tree.parent.mkdir(exist_ok=True)
    with (tree.parent / "base.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of pytest need it
        if not (tree / "built/mpifed").exists():
            if not tree.exists():
                git("worktree", "add", "--force", "--detach", str(tree), commit)
            with tempfile.TemporaryDirectory(dir=tree) as temporary:
                words = ["install", "--quiet", "--no-deps", "--target", f"{temporary}/built", str(tree)]
                done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
                if done.returncode:
                    raise RuntimeError(f"the package of {commit} cannot be built:\n{done.stdout}{done.stderr}")
                (Path(temporary) / "built").rename(tree / "built")
    return tree


# --- comparing -----------------------------------------------------------------------------------------------------


def read(path: Path) -> dict[str, Any]:
    """A table that is written; empty before it is."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def expected(table: str, part: str | None) -> tuple[dict[str, str], str]:
    """The hashes that models are to have on this machine, and where these are from."""
    stored = read(TABLES[table])
    if stored.get("fingerprint") == fingerprint(table):
        chosen = {name: sha for name, sha in stored["hashes"].items() if part is None or part_of(name) == part}
        return chosen, TABLES[table].name
    commit = base_of(table)
    return {
        name: one.sha256 for name, one in apart(base_tree(commit), table, part).items()
    }, f"{commit[:12]} on this machine"


def moved(now: Mapping[str, Outcome], before: Mapping[str, str], source: str) -> Iterator[str]:
    """A line for each model whose bits are not those before, and for each job that only one of both has."""
    for name, one in now.items():
        if name in before and one.sha256 != before[name]:
            yield f"{name}: model {one.sha256[:16]}, by {source} {before[name][:16]}"
    for name in now.keys() ^ before.keys():
        yield f"{name}: {'not in' if name in now else 'only in'} {source}; python tests/hashes.py write"


def differing(history: Mapping[str, list[float]], reference: Mapping[str, list[list[float]]]) -> Iterator[str]:
    """A line for each value beyond its tolerance, and for each measure that is not there."""
    for measure, pairs in reference.items():
        got_values = history.get(measure, [])
        if len(got_values) < len(pairs):
            yield f"{measure} is in the history for {len(got_values)} rounds, not {len(pairs)}"
        for at, ((value, tolerance), got) in enumerate(zip(pairs, got_values, strict=False)):
            if not abs(got - value) <= tolerance:
                yield f"{measure} of round {at} is {got:.9g}, not {value:.9g} +- {tolerance:.1g}"
                break


def differs(now: Outcome, reference: Mapping[str, list[list[float]]]) -> bool:
    """Whether any value is beyond its tolerance."""
    return any(differing(now.history, reference))


def all_differing(table: str, now: Mapping[str, Outcome]) -> Iterator[str]:
    """A line for each value of each row that is not that of the reference."""
    reference = read(VALUES[table]) if table in VALUES else {}
    for name, one in now.items():
        if name in reference:
            yield from (f"{name}: {line}" for line in differing(one.history, reference[name]))


def wrong(table: str, part: str | None = None) -> list[str]:
    """What is not as it was: models, and values of histories. The base, if it must run, runs at the same time."""
    with ThreadPoolExecutor(1) as beside:
        found = beside.submit(expected, table, part)
        now = apart(ROOT, table, part)
    before, source = found.result()
    lines = [*moved(now, before, source), *all_differing(table, now)]
    if table in VALUES:
        lines += [
            f"{name}: no reference values; python tests/hashes.py write"
            for name in now.keys() - read(VALUES[table]).keys()
        ]
    return lines


# --- writing -------------------------------------------------------------------------------------------------------


def reference_values(
    history: Mapping[str, list[float]], shifted: Sequence[Mapping[str, list[float]]]
) -> dict[str, Any]:
    """By measure, value and tolerance of each round, up to the first whose tolerance is too large to say anything."""
    found: dict[str, Any] = {}
    for measure, values in history.items():
        pairs = []
        for at, value in enumerate(values):
            runs = [value, *(one[measure][at] for one in shifted)]
            tolerance = TIMES * max(max(runs) - min(runs), LEAST * abs(value))
            if tolerance > MOST * abs(value):
                break
            pairs.append([float(f"{value:.10g}"), float(f"{tolerance:.2g}")])
        found[measure] = pairs
    return found


def write(table: str, *, values_too: bool) -> list[str]:
    """Write hashes and the values of new rows; of rows that differ only if `values_too`. Lines that say why not."""
    now = apart(ROOT, table, None)
    stored = read(TABLES[table])
    if stored:
        before, source = expected(table, None)
        lines = list(moved(now, before, source))
        print(f"{table}: {len(lines)} of {len(now)} rows have moved", *lines, sep="\n  ")
    if table in VALUES:
        reference = read(VALUES[table])
        if lines := list(all_differing(table, now)):
            if not values_too:
                return [*lines, "values differ: nothing is written; --values writes theirs too"]
            print(f"{table}: values that are written anew", *lines, sep="\n  ")
            reference = {name: one for name, one in reference.items() if name in now and not differs(now[name], one)}
        new = [name for name in now if name not in reference]
        for part in sorted({part_of(name) for name in new}):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                shifted = list(pool.map(lambda seed, part=part: apart(ROOT, table, part, seed), range(1, MOVES + 1)))
            for name in new:
                if part_of(name) == part:
                    reference[name] = reference_values(now[name].history, [run[name].history for run in shifted])
        save(VALUES[table], {name: reference[name] for name in now})
    save(TABLES[table], {"fingerprint": fingerprint(table), "hashes": {name: one.sha256 for name, one in now.items()}})
    return []


def save(path: Path, content: Mapping[str, Any]) -> None:
    """A table, a row a line, so that differences can be read."""

    def text(value: Any, indent: str) -> str:
        if not isinstance(value, Mapping) or not value:
            return json.dumps(value)
        inner = [f"{indent} {json.dumps(key)}: {text(one, indent + ' ')}" for key, one in value.items()]
        return "{\n" + ",\n".join(inner) + f"\n{indent}}}"

    path.write_text(text(content, "") + "\n", encoding="utf-8")


def here() -> list[str]:
    """The tables whose jobs can run here."""
    networks = find_spec("torch") is not None and find_spec("jax") is not None
    return ["laws", *(["models"] if networks else []), *(["real"] if os.environ.get("MPIFED_DATA") else [])]


def main() -> int:
    """The commands. `run` is what later commits call of this file in a checkout of this commit: it stays as it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="write to OUT, as JSON, hash and history of each row")
    running.add_argument("table", choices=TABLES)
    running.add_argument("out", type=Path)
    running.add_argument("--part", choices=PARTS)
    running.add_argument("--seed", type=int, default=0)
    saying = commands.add_parser("fingerprint", help="print, as JSON, what bits depend on")
    saying.add_argument("table", choices=TABLES)
    writing = commands.add_parser("write", help="write the tables whose jobs can run here, and say what has moved")
    writing.add_argument("--values", action="store_true", help="values of rows that differ, too")
    writing.add_argument("--table", choices=TABLES, help="of these alone")
    given = parser.parse_args()
    if given.command == "run":
        os.chdir(ROOT)
        given.out.write_text(json.dumps(outcomes(given.table, given.part, given.seed)), encoding="utf-8")
        return 0
    if given.command == "fingerprint":
        print(json.dumps(facts(given.table)))
        return 0
    tables = [given.table] if given.table else here()
    refused = {table: write(table, values_too=given.values) for table in tables}
    for table, lines in refused.items():
        print(table, *lines, sep="\n  ")
    print(
        *(f"{table}: its jobs cannot run here" for table in TABLES if not given.table and table not in tables), sep="\n"
    )
    return 1 if any(refused.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
