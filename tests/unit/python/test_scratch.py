"""Temporary folders of runs without `out`: one for each process, which goes with it, or after it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal, sys
import mpifed as mf

runs = [mf.run(mf.SSCA(batch_size=4), sys.argv[1], mf.Softmax(), rounds=1, progress="none") for _ in range(2)]
assert all(run.path.exists() for run in runs)
if len(sys.argv) > 2:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def ended(digits: Path, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """A process of the user's, whose temporary folder this is."""
    command = [sys.executable, "-c", PROGRAM, str(digits), *more]
    return subprocess.run(command, env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True)


def test_what_a_killed_process_has_left_goes_at_the_next_start(digits: Path, tmp_path: Path) -> None:
    assert ended(digits, tmp_path, "killed").returncode == -signal.SIGKILL
    left = list(tmp_path.iterdir())
    assert len(left) == 2 and {path.stat().st_mode & 0o777 for path in left} == {0o700}
    host, user = os.uname().nodename, f"mpifed-{os.getuid()}"
    started = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(") ")[2].split()[19]
    names = (f"{host}@{os.getpid()}-{started}-a", "elsewhere@1-1-a", "notes", f"{host}@x-1-a")
    others = [tmp_path / f"{user}-{name}" for name in names]
    for folder in (*others, victim := tmp_path / "victim"):
        folder.mkdir()
    link = tmp_path / f"{user}-{host}@1-1-link"
    link.symlink_to(victim)
    done = ended(digits, tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(tmp_path.iterdir()) == {*others, victim, link}
