"""What an installation from a clone gives: the package for scripts in any folder, and runs without a C compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from documents import ROOT

WITHOUT_LOOPS = "import sys; sys.modules['mpifed.core._loops'] = None; from mpifed.cli import main; main()"


def python(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program of a user's, whose path is that of the installation alone."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, check=False)


def test_a_script_beside_the_clone_imports_the_package(tmp_path: Path) -> None:
    """A folder `mpifed` beside a script is a namespace package, which an import hook of setuptools would come after."""
    (tmp_path / "mpifed").symlink_to(ROOT)
    (tmp_path / "script.py").write_text("import mpifed as mf; print(mf.FedAvg.__name__)", encoding="utf-8")
    ended = python("script.py", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "FedAvg\n"), ended.stderr


def test_without_compiled_loops_a_run_says_so_once(digits: Path, tmp_path: Path) -> None:
    job = ROOT / "jobs/quickstart.toml"
    settings = ("--set", f"data.path={digits}", "--set", "rounds=2", "--progress", "none")
    slow = python("-c", WITHOUT_LOOPS, "run", job, *settings, "--out", "slow", folder=tmp_path)
    fast = python("-m", "mpifed", "run", job, *settings, "--out", "fast", folder=tmp_path)
    assert (slow.returncode, fast.returncode) == (0, 0), slow.stderr + fast.stderr
    assert slow.stderr.count("no compiled loops") == 1
    hashes = [next(line for line in ended.stdout.splitlines() if "SHA-256" in line) for ended in (slow, fast)]
    assert hashes[0] == hashes[1]
