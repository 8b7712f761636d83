"""Starts one adapter and waits for its result; time, processor time and memory are of all that it started."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from common import CASES, LAUNCHED, NETWORK
from processes import MARK, Memory, family
from variants import Variant

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent / ".cache" / "rivals"
LOOK_S = 1.0  # between two looks at the memory


def environment_of(rival: str) -> Path:
    """The folder of a rival's virtual environment."""
    return ENVIRONMENTS / rival


def command(variant: Variant, case: str, rounds: int, data: Path, more: list[str]) -> list[str]:
    """The command line of one run."""
    binaries = environment_of(variant.rival) / "bin" if variant.rival else Path(sys.executable).parent
    python = str(binaries / "python") if variant.rival else sys.executable
    adapter = [python, str(HERE / variant.adapter), case, variant.setting, str(rounds), str(data), *more]
    launcher = shlex.split(os.environ.get("MPIEXEC", "mpiexec"))
    return [*launcher, "-n", str(variant.ranks), *adapter] if variant.ranks else adapter


def surroundings(variant: Variant, mark: str) -> dict[str, str]:
    """The environment variables of one run: compiled modules may be kept, as an installation has them."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    binaries = environment_of(variant.rival) / "bin" if variant.rival else Path(sys.executable).parent
    found = kept | {
        MARK: mark,
        "PATH": os.pathsep.join([str(binaries), kept.get("PATH", "")]),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    return found if variant.rival else found | {"PYTHONPATH": str(HERE.parents[1])}


def run(
    variant: Variant, case: str, rounds: int, data: Path, more: list[str] | None = None, limit_s: float = 300
) -> dict[str, Any]:
    """The result of one run, or why there is none.

    Returns
    -------
    dict
        What the adapter printed, `peak_rss_bytes` of the largest process, `total_rss_bytes` and `processes` of all
        together; or `error`.
    """
    mark = uuid.uuid4().hex
    memory = Memory(mark)
    with (
        tempfile.TemporaryDirectory() as folder,
        open(Path(folder, "out"), "w+") as out,
        open(Path(folder, "err"), "w+") as err,
    ):
        settings = surroundings(variant, mark) | {"RIVALS_OUT": folder, LAUNCHED: repr(time.time())}
        settings[NETWORK] = CASES[case].network
        started = subprocess.Popen(
            command(variant, case, rounds, data, more or []),
            env=settings, cwd=folder, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        end, code = time.monotonic() + limit_s, None
        try:
            while code is None and time.monotonic() < end:
                memory.look()
                with suppress(subprocess.TimeoutExpired):
                    code = started.wait(LOOK_S)
        finally:  # also of what was interrupted
            _end_all(mark)
            started.wait()
        found = _printed(Path(folder, "out"))
        if code != 0 or found is None:
            said = (Path(folder, "err").read_text() + Path(folder, "out").read_text())[-1500:]
            return {"error": f"no end within {limit_s:.0f} s" if code is None else f"exit code {code}: {said}"}
    return found | {
        "peak_rss_bytes": memory.largest, "total_rss_bytes": memory.total, "processes": memory.processes
    }  # fmt: skip


def _printed(out: Path) -> dict[str, Any] | None:
    """The last line of JSON in a file."""
    lines = [line for line in out.read_text().splitlines() if line.startswith('{"')]
    return json.loads(lines[-1]) if lines else None


def _end_all(mark: str) -> None:
    """End what a run has left behind."""
    for process in family(mark):
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
