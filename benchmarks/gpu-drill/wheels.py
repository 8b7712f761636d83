"""Wheels of what `setup.cfg` asks for, for a machine without network: `python3 benchmarks/gpu-drill/wheels.py .whl`."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "3.12"
# of manylinux: pip takes a wheel for one of these alone
PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2014", "2_5", "1")
EXTRAS = ("mpich",)
OF_TESTS = ("pytest-mpi", "pytest-timeout")  # of the extra `test`: what tests of the device need
# what such a machine has, as fits its driver; also in place of what other packages ask for
THERE = (
    "numpy", "scipy", "h5py", "cupy-cuda12x", "cupy-cuda13x", "torch", "pytest", "hypothesis", "click", "rich",
    "scikit-learn", "threadpoolctl", "iniconfig", "packaging", "pluggy", "pygments",
)  # fmt: skip


def requirements() -> list[str]:
    """The lines of `setup.cfg` that the drill needs, without what is there."""
    read = configparser.ConfigParser()
    read.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = read["options"]["install_requires"].splitlines()
    extras = read["options.extras_require"]
    for name in EXTRAS:
        lines += extras[name].splitlines()
    lines += [line for line in extras["test"].splitlines() if name_of(line) in OF_TESTS]
    return [line for line in lines if line and not line.startswith("#") and name_of(line) not in THERE]


def name_of(text: str) -> str:
    """The name of a package, of a requirement or of a wheel's file."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._]*(?:-(?!\d)[A-Za-z0-9._]+)*", text)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def needless(folder: Path) -> Iterator[Path]:
    """The wheels of packages that are there."""
    return (path for path in folder.glob("*.whl") if name_of(path.name) in THERE)


def main(folder: Path) -> None:
    """Download what is required, with what that requires."""
    platforms = [word for name in PLATFORMS for word in ("--platform", f"manylinux{'_' * ('_' in name)}{name}_x86_64")]
    command = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--python-version", PYTHON]
    command += ["--implementation", "cp", *platforms, "-d", str(folder), *requirements()]
    subprocess.run(command, check=True)
    for path in needless(folder):
        path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
