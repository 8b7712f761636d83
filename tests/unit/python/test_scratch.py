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
    above = tmp_path / f"mpifed-{os.getuid()}"
    assert ended(digits, tmp_path, "killed").returncode == -signal.SIGKILL
    (left,) = above.iterdir()
    assert len(list(left.iterdir())) == 2 and above.stat().st_mode & 0o777 == 0o700
    alive = above / f"{os.uname().nodename}@{os.getpid()}-{start_of(os.getpid())}"
    others = [above / name for name in ("elsewhere@1-1", "notes", f"{os.uname().nodename}@x-y")]
    for folder in (alive, *others):
        folder.mkdir()
    done = ended(digits, tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(above.iterdir()) == {alive, *others}
    assert [path.name for path in tmp_path.iterdir()] == [above.name]


def start_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]


def test_a_link_in_its_place_is_refused(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / f"mpifed-{os.getuid()}").symlink_to(tmp_path / "victim")
    done = ended(digits, tmp_path)
    assert done.returncode == 1 and "is a link, or another user's; set TMPDIR" in done.stderr
    assert not list((tmp_path / "victim").iterdir())
