"""`make mutants`: do the tests notice deliberate bugs? Each is made in a copy of the repository, whose tests then run.

`mutants.toml` has the list; a mutant is caught where one of its tests fails that passes without it. The exit code is 1
where one survives that is not said to, or no longer applies because its text is not there exactly once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.toml")
LIMIT_S = 900.0  # of the tests of a mutant
# in pytest's summary, or as tests/conftest.py says it on several ranks
_FAILED = re.compile(r"^(?:FAILED|ERROR|rank \d+:) (\S+::.+?)(?: - .*| \(\w+\) failed)?$", re.MULTILINE)


class Mutant(NamedTuple):
    """A deliberate bug: in `file`, `before` becomes `after`."""

    name: str
    breaks: str  # the promise, in a few words
    file: str
    before: str  # stands exactly once in the file
    after: str
    tests: list[str]  # files, or tests in them
    ranks: int = 1
    survives: str = ""  # why no test catches it

    def wrong(self) -> str:
        """Why it does not apply to this repository; empty where it does."""
        lacking = [test for test in self.tests if not (ROOT / test.partition("::")[0]).is_file()]
        if lacking or not (ROOT / self.file).is_file():
            return f"no file {(lacking or [self.file])[0]}"
        count = (ROOT / self.file).read_text(encoding="utf-8").count(self.before)
        return "" if count == 1 else f"{self.file} has its text {count} times: {self.before!r}"


class Outcome(NamedTuple):
    """How a mutant's tests ended."""

    mutant: Mutant
    kind: str  # "caught", "survived" or "error"
    detail: str  # the test that failed, or what went wrong
    seconds: float

    @property
    def expected(self) -> bool:
        return self.kind == ("survived" if self.mutant.survives else "caught")


class Copy:
    """A copy of the repository in which one mutant at a time is made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        )  # fmt: skip
        compiled = [str(path.relative_to(ROOT)) for path in (ROOT / "mpifed").rglob("*.so")]
        for name in [*filter(None, listed.stdout.split("\0")), *compiled]:
            if (ROOT / name).is_file():  # else it was removed, and that is not committed yet
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """With the mutant in it."""
        path = self.folder / mutant.file
        text = path.read_text(encoding="utf-8")
        try:
            self._write(path, text.replace(mutant.before, mutant.after))
            yield
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        for stale in path.parent.glob(f"__pycache__/{path.stem}.*"):  # a source of the same size and second looks alike
            stale.unlink()
        if path.suffix == ".c":
            build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
            subprocess.run(build, cwd=self.folder, check=True, capture_output=True)

    def pytest(self, tests: Sequence[str], ranks: int, *options: str) -> tuple[int, str]:
        """(exit code, output) of these tests in the copy."""
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *options, *tests]
        if any(test.startswith("tests/models/") for test in tests):
            command += ["-m", "models or not (long or docs or kill or slurm or gpu)"]
        if ranks > 1:
            command = [os.environ["MPIEXEC"], "-n", str(ranks), *command, "--with-mpi"]
        environment = os.environ | {"PYTHONPATH": str(self.folder), "COLUMNS": "1000"}
        with subprocess.Popen(
            command, cwd=self.folder, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            try:
                output, _ = process.communicate(timeout=LIMIT_S)
            except BaseException as error:
                os.killpg(process.pid, 9)  # with what the tests have started
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return -1, f"took longer than {LIMIT_S:g} s"
        return process.returncode, output

    def outcome(self, mutant: Mutant) -> Outcome:
        """Run a mutant's tests until one fails."""
        began = time.monotonic()
        with self.changed(mutant):
            code, output = self.pytest(mutant.tests, mutant.ranks, "-x")
        seconds, failed = time.monotonic() - began, _FAILED.search(output)
        if failed and code > 0:
            return Outcome(mutant, "caught", failed[1], seconds)
        if code == 0:
            return Outcome(mutant, "survived", mutant.survives, seconds)
        last = " ".join(word for word in output.split() if word.strip("=!"))[-200:]
        return Outcome(mutant, "error", f"pytest ended with {code}: {last}", seconds)


def outcomes_of(mutants: Sequence[Mutant], workers: int) -> list[Outcome]:
    """The outcomes in the order of the list; each is printed as it comes."""
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(workers):
            copies.put(Copy(Path(folder, str(number))))

        def outcome_of(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                return copy.outcome(mutant)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(workers) as pool:
            for future in as_completed([pool.submit(outcome_of, mutant) for mutant in mutants]):
                outcome = future.result()
                outcomes[outcome.mutant.name] = outcome
                print(f"[{len(outcomes)}/{len(mutants)}] {_line(outcome)}", flush=True)
        ordered = [outcomes[mutant.name] for mutant in mutants]
        failing = set(_fail_anyway(copies.get(), ordered))
    return [
        outcome._replace(kind="error", detail=f"fails without the mutant too: {outcome.detail}")
        if outcome.detail in failing else outcome
        for outcome in ordered
    ]  # fmt: skip


def _fail_anyway(copy: Copy, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The tests that caught a mutant, and fail in the repository as it is."""
    caught = [outcome for outcome in outcomes if outcome.kind == "caught"]
    for ranks in {outcome.mutant.ranks for outcome in caught}:
        tests = sorted({outcome.detail for outcome in caught if outcome.mutant.ranks == ranks})
        print(f"without mutants: {len(tests)} tests", flush=True)
        code, output = copy.pytest(tests, ranks)
        if code:
            yield from _FAILED.findall(output) or tests


def _line(outcome: Outcome) -> str:
    kind = outcome.kind if outcome.expected else outcome.kind.upper()
    return f"{kind:9} {outcome.seconds:4.0f} s  {outcome.mutant.name:32} {outcome.detail}"


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression: mutants whose name, file or promise has it")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="only whether all of them apply")
    options = parser.parse_args()
    everything = [Mutant(**table) for table in tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]]
    chosen = [m for m in everything if re.search(options.only, f"{m.name} {m.file} {m.breaks}")]
    wrong = [f"{mutant.name}: {why}" for mutant in chosen if (why := mutant.wrong())]
    print("\n".join([*wrong, f"{len(chosen) - len(wrong)} of {len(chosen)} mutants apply"]), flush=True)
    if options.check:
        return bool(wrong)
    outcomes = outcomes_of([mutant for mutant in chosen if not mutant.wrong()], options.workers)
    print("\n".join(["", *(f"{_line(outcome)}\n{'':19}{outcome.mutant.breaks}" for outcome in outcomes), ""]))
    unexpected = [outcome.mutant.name for outcome in outcomes if not outcome.expected]
    survived = sum(outcome.kind == "survived" for outcome in outcomes)
    print(f"{len(outcomes)} mutants, {survived} survived; not as listed: {', '.join(unexpected) or 'none'}")
    return bool(wrong or unexpected)


if __name__ == "__main__":
    raise SystemExit(main())
