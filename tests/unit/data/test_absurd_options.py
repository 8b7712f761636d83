"""Short options that ask for much: refused, in a moment and before memory is taken."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mpifed.cli import data
from mpifed.core.errors import DataError, UsageError
from mpifed.data.memory import check_memory
from mpifed.data.partition import held_out
from mpifed.data.partitioners import deal
from mpifed.data.sources import Synthetic


def run(*words: object) -> None:
    CliRunner().invoke(data, list(map(str, words)), catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("digits --split rows --clients 1000000000", "1000000000 clients for 1797 rows"),
        ("digits --split grid --grid 100000x100000", "100000 clients for 1797 rows"),
        (f"digits --split grid --grid {'9' * 5000}x2", "expected R groups of rows"),
        ("digits --split rows --clients 2 --partition classes:1000000000", "of 10 classes each"),
        (f"digits --split rows --clients 2 --partition classes:{'9' * 5000}", "classes:K or shards:K with K"),
        ("digits --split rows --clients 2 --partition dirichlet:inf", "dirichlet:A with A > 0"),
        ("digits --split rows --clients 2 --skew nan", "--skew nan"),
        ("synthetic --split rows --clients 2 --samples 1000000000000000", "no room for 7.451e.07 GiB"),
        ("synthetic --split rows --clients 2 --features 1000000000000000", "no room for 3.725e.09 GiB"),
        ("synthetic --split rows --clients 2 --task classification --classes 1000000000000", "not enough memory"),
        ("synthetic --split rows --clients 2 --noise inf", "--noise inf"),
    ],
)
def test_absurd_options(tmp_path: Path, words: str, message: str) -> None:
    with pytest.raises((UsageError, DataError), match=message) as caught:
        run(*words.split(), "--out", tmp_path / "out")
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "out").exists()


def test_data_that_no_disk_holds(tmp_path: Path) -> None:
    words = "synthetic --split rows --clients 2 --samples 1000000 --features 1000000000"
    with pytest.raises(DataError, match=r"no room for 3.725e\+06 GiB \(.*\); use less data, or set TMPDIR"):
        run(*words.split(), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_check_memory() -> None:
    check_memory(2**20, "this", "nothing")
    with pytest.raises(UsageError, match=r"^this: needs 9.313e\+08 GiB of memory, and there are .* GiB; do that$"):
        check_memory(10**18, "this", "do that")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**40, before[1]))
    try:
        with pytest.raises(DataError, match="needs 1025 GiB"):
            check_memory(1025 * 2**30, "this", "do that", DataError)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_memory_that_runs_out_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("Unable to allocate 8.00 PiB")

    monkeypatch.setattr(Synthetic, "read", fail)
    with pytest.raises(DataError, match=r"synthetic: not enough memory \(Unable .* 8.00 PiB"):
        run("synthetic", "--split", "rows", "--clients", 2, "--out", tmp_path / "out")


def test_very_many_classes_are_quick() -> None:
    y = np.repeat(np.random.default_rng(0).permutation(10_000), 2)
    held = held_out(y, 0.5, 0)
    assert np.array_equal(held[::2], ~held[1::2])  # one row of each
    groups = deal(y, 3, "dirichlet:1", None, 0)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(y)))


def test_an_out_that_cannot_be(tmp_path: Path) -> None:
    for out in (tmp_path / ("x" * 300), Path("/proc/nothing/out")):
        with pytest.raises(DataError, match="cannot be written"):
            run("digits", "--split", "rows", "--clients", 2, "--out", out)
