"""Short options that ask for much: refused, in a moment and before memory is taken."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mpifed.cli import data
from mpifed.core.errors import DataError, UsageError
from mpifed.shards import partition
from mpifed.shards.memory import check_memory
from mpifed.shards.partition import by_grid, held_out
from mpifed.shards.partitioners import _leave_nobody_out, deal
from mpifed.shards.sources import Synthetic
from mpifed.shards.store import open_federation


def run(*words: object) -> None:
    CliRunner().invoke(data, list(map(str, words)), catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("digits --split rows --clients 1000000000", "1000000000 clients for 1797 rows"),
        ("digits --split columns --clients 1000000000", "1000000000 clients for 64 columns"),
        ("digits --split grid --grid 100000x100000", "100000 clients for 1797 rows"),
        ("digits --split grid --grid 2x100000", "100000 clients for 64 columns"),
        (f"digits --split grid --grid {'9' * 5000}x2", "expected R groups of rows"),
        ("digits --split rows --clients 2 --pack 9223372036854775808", "--pack .* fewer than 2\\^31"),
        ("digits --split rows --clients 2 --seed 18446744073709551616", "--seed .* less than 2\\^64"),
        ("digits --split rows --clients 2 --partition classes:1000000000", "of 10 classes each"),
        (f"digits --split rows --clients 2 --partition classes:{'9' * 5000}", "classes:K or shards:K with K"),
        ("digits --split rows --clients 2 --partition shards:1000000000", "give K from 1 to 898"),
        (f"digits --split rows --clients 2 --partition shards:{'9' * 5000}", "classes:K or shards:K with K"),
        ("digits --split rows --clients 2 --partition shards:2 --skew 1", "runs are of equal size"),
        ("digits --split rows --clients 2 --partition dirichlet:inf", "dirichlet:A with A > 0"),
        ("digits --split rows --clients 2 --skew inf", "--skew inf"),
        ("digits --split rows --clients 2 --skew nan", "--skew nan"),
        (f"digits --split rows --clients 2 --labels below:{'9' * 5000}", "below:K"),
        ("synthetic --split rows --clients 2 --samples 1000000000000000", "--samples 1000000000000000: their labels"),
        ("synthetic --split rows --clients 2 --features 1000000000000000", "--features 1000000000000000: 1 scores"),
        ("synthetic --split rows --clients 2 --task classification --classes 1000000000000", "1000000000000 scores"),
        ("synthetic --split rows --clients 2 --noise inf", "--noise inf"),
        ("synthetic --split rows --clients 2 --noise 1e300", "--noise 1e\\+300"),
    ],
)
def test_absurd_options(tmp_path: Path, words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        run(*words.split(), "--out", tmp_path / "out")
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "out").exists()


def test_data_that_no_disk_holds(tmp_path: Path) -> None:
    words = "synthetic --split rows --clients 2 --samples 1000000 --features 1000000000"
    with pytest.raises(DataError, match=r"--out .*out: needs 3.725e\+06 GiB, and there are .*--samples or --features"):
        run(*words.split(), "--out", tmp_path / "out")


def test_an_out_that_cannot_be(tmp_path: Path) -> None:
    for out in (tmp_path / ("x" * 300), Path("/proc/nothing/out")):
        with pytest.raises(DataError, match="cannot be written"):
            run("digits", "--split", "rows", "--clients", 2, "--out", out)


def test_seeds_and_packs_of_any_size_that_is_allowed(tmp_path: Path) -> None:
    words = ("--seed", 2**64 - 1, "--pack", 2**31 - 1, "--out", tmp_path / "out")
    run("digits", "--split", "rows", "--clients", 2, *words)
    federation = open_federation(tmp_path / "out", verify=True)
    assert (federation.seed, federation.pack) == (2**64 - 1, 2**31 - 1)


def test_a_grid_of_more_clients_than_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "CLIENT_BYTES", 2**50)
    with pytest.raises(UsageError, match="--grid 30x30: 900 clients: needs"):
        by_grid(np.zeros(300), 300, (30, 30))


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


def test_what_a_process_may_have_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2**20, 2**20))
    check_memory(2**20, "this", "nothing")
    with pytest.raises(UsageError, match=r"there are 0.0009766 GiB"):
        check_memory(2**20 + 1, "this", "do that")


def test_memory_that_runs_out_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("Unable to allocate 8.00 PiB")

    monkeypatch.setattr(Synthetic, "read", fail)
    with pytest.raises(DataError, match=r"synthetic: not enough memory \(Unable .* 8.00 PiB"):
        run("synthetic", "--split", "rows", "--clients", 2, "--out", tmp_path / "out")


def test_nobody_is_left_out_as_before() -> None:
    """The largest gives its first row to each who has none, the first of the largest where they are as large."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        clients = int(rng.integers(1, 12))
        owner = rng.choice(clients, int(rng.integers(clients, 40)), p=rng.dirichlet(np.full(clients, 0.2)))
        one_by_one, counts = owner.copy(), np.bincount(owner, minlength=clients)
        for client in np.flatnonzero(counts == 0):
            giver = counts.argmax()
            one_by_one[np.flatnonzero(one_by_one == giver)[0]] = client
            counts[giver], counts[client] = counts[giver] - 1, 1
        assert _leave_nobody_out(owner, clients).tolist() == counts.tolist()
        assert owner.tolist() == one_by_one.tolist()


def test_very_many_classes_are_quick() -> None:
    y = np.repeat(np.random.default_rng(0).permutation(10_000), 2)
    held = held_out(y, 0.5, 0)
    assert np.array_equal(held[::2], ~held[1::2])  # one row of each
    groups = deal(y, 3, "dirichlet:1", None, 0)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(y)))


def test_very_many_classes_by_very_many_clients() -> None:
    y = np.arange(10**5)
    with pytest.raises(UsageError, match=r"100000 classes by 100000 groups: needs 223.5 GiB .* --task regression"):
        deal(y, 10**5, "dirichlet:1", None, 0)


def test_very_many_groups_of_which_most_get_nothing() -> None:
    y = np.zeros(60_000, dtype=np.int64)
    groups = deal(y, 30_000, "dirichlet:1e-300", None, 0)
    assert min(map(len, groups)) == 1
