"""The models of the shipped jobs have the bits, and their histories the values, that they had: see `hashes.py`."""

from __future__ import annotations

import os
import re

import hashes
import pytest
from hashes import PARTS, ROOT, VALUES, read, wrong
from lengths import long_unless
from shipped import algorithm_of, families, invoke, rows

WITHOUT_NETWORKS = [part for part in PARTS if part != "mcmahan"]


@pytest.mark.timeout(1200)  # where the base is built, and its jobs run too
@pytest.mark.parametrize("part", long_unless("families".__eq__, WITHOUT_NETWORKS))
def test_as_before(part: str) -> None:
    """Each job in a reduced form."""
    assert not wrong("laws", part)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not os.environ.get("MPIFED_DATA"), reason="MPIFED_DATA does not name the folder of real data")
@pytest.mark.parametrize("part", [part for part in WITHOUT_NETWORKS if part != "families"])
def test_real_data_as_before(part: str) -> None:
    """Each job as it is, for three rounds: the hash of its model."""
    assert not wrong("real", part)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the table is of another machine, the commit that wrote it is built here, and says what it gives."""
    monkeypatch.setattr(hashes, "fingerprint", lambda table: {"machine": "another"})
    before, source = hashes.expected("laws", "families")
    assert source == f"{hashes.base_of('laws')[:12]} on this machine"
    assert not list(hashes.moved(hashes.apart(ROOT, "laws", "families"), before, source))


def test_every_job_has_a_row() -> None:
    """In one of the tables."""
    jobs = {path.relative_to(ROOT / "jobs").as_posix() for path in (ROOT / "jobs").rglob("*.toml")}
    assert {row.job for table in ("laws", "models") for row in rows(table)} == jobs
    for table in VALUES:
        assert list(read(VALUES[table])) == [row.name for row in rows(table)]


def test_every_method_has_a_family() -> None:
    """Those of the package, and the examples of one's own."""
    listed = set(
        re.findall(r"^  ([\w-]+): ", invoke("explain", "algorithm").partition("algorithms, for one of")[2], re.M)
    )
    assert "fedavg" in listed
    own = {algorithm_of(row)["name"] for row in rows("laws") if row.job.startswith("examples/")}
    named = [algorithm_of(row)["name"] for row in families()]
    assert set(named) == listed | own
