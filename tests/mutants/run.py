"""By hand: do the tests notice deliberate bugs? Each is made in a copy of the repository, whose tests then run.

`mutants.toml` has the list. The exit code is 1 where a mutant survives, where its tests fail without it as well, or
where its text is not there exactly once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900  # of the tests of a mutant


def copy_repository(folder: Path) -> None:
    """The files that git knows or would, and what was compiled of them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    compiled = [str(path.relative_to(ROOT)) for path in (ROOT / "mpifed").rglob("*.so")]
    for name in [*filter(None, listed.stdout.split("\0")), *compiled]:
        if (ROOT / name).is_file():  # else it was removed, and that is not committed yet
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def write(folder: Path, name: str, text: str) -> None:
    """Write a source, and compile it anew where it is C."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    for stale in path.parent.glob(f"__pycache__/{path.stem}.*"):  # a source of the same size and second looks alike
        stale.unlink()
    if path.suffix == ".c":
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
        subprocess.run(build, cwd=folder, check=True, capture_output=True)


def passes(folder: Path, mutant: dict[str, Any]) -> bool:
    """Whether its tests pass in the copy; a time-out is a failure."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", *mutant["tests"]]
    if (ranks := mutant.get("ranks", 1)) > 1:
        command = [os.environ["MPIEXEC"], "-n", str(ranks), *command, "--with-mpi"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    with subprocess.Popen(
        command, cwd=folder, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    ) as run:
        try:
            return run.wait(LIMIT_S) == 0
        except BaseException as error:
            os.killpg(run.pid, 9)  # with what the tests have started
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return False


def outcome_of(folder: Path, mutant: dict[str, Any]) -> str:
    """Empty where the mutant is caught; else what is wrong."""
    before = (folder / mutant["file"]).read_text(encoding="utf-8")
    if before.count(mutant["before"]) != 1:
        return f"{mutant['file']} has its text {before.count(mutant['before'])} times"
    if not passes(folder, mutant):
        return "its tests fail without it"
    write(folder, mutant["file"], before.replace(mutant["before"], mutant["after"]))
    survived = passes(folder, mutant)
    write(folder, mutant["file"], before)
    return "survived" if survived else ""


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression: mutants whose name, file or promise has it")
    options = parser.parse_args()
    table = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text(encoding="utf-8"))
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        copy_repository(Path(name))
        for mutant in table["mutant"]:
            if re.search(options.only, f"{mutant['name']} {mutant['file']} {mutant['breaks']}"):
                outcome = outcome_of(Path(name), mutant)
                wrong += bool(outcome)
                print(f"{mutant['name']:32} {outcome or 'caught'}", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
