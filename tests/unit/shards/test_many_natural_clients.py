"""A table of 100,000 natural clients: what its import takes, and that the order of its rows does not matter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpifed.shards.store import open_federation

CLIENTS, FEATURES = 100_000, 10
IMPORT = """
import sys
from mpifed.cli import main
try:
    main(["data", "csv", sys.argv[1], "--by", "who", "--out", sys.argv[2]])
finally:
    print(open("/proc/self/status").read())
"""


def peak_mib(path: Path, out: Path) -> float:
    """The most memory that an import was in, of a process of its own."""
    ended = subprocess.run([sys.executable, "-c", IMPORT, path, out], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return int(re.search(r"VmHWM:\s+(\d+) kB", ended.stdout)[1]) / 1024  # type: ignore[index]  # of Linux


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
def test_many_clients_of_few_rows(tmp_path: Path) -> None:
    """Measured: 20 MiB of CSV take 148 MiB more than 200 rows do, 7.4 times the file: identifiers and orders."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2 * CLIENTS, FEATURES)).round(6).tolist()
    rows = [f"u{n // 2:07d},{','.join(map(str, row))},{n % 3 % 2}\n" for n, row in enumerate(values)]
    names = ",".join(["who", *(f"f{k}" for k in range(FEATURES)), "label\n"])
    peaks, digests = {}, set()
    for name in ("one", "other"):
        mixed = [rows[n] for n in rng.permutation(len(rows)).tolist()]
        (tmp_path / f"{name}.csv").write_text(names + "".join(mixed))
        peaks[name] = peak_mib(tmp_path / f"{name}.csv", tmp_path / name)
        folder = open_federation(tmp_path / name)
        assert (folder.clients, folder.samples, len(folder.checksums)) == (CLIENTS, 2 * CLIENTS, 100)
        digests.add((folder.sha256, folder.checksums))
    assert len(digests) == 1
    (tmp_path / "few.csv").write_text(names + "".join(rows[:200]))
    few = peak_mib(tmp_path / "few.csv", tmp_path / "few")
    size = (tmp_path / "one.csv").stat().st_size / 2**20
    assert max(peaks.values()) - few < 12 * size
