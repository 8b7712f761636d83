"""The audit of clients who hold some rows of some columns: what duals and inner products give away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked

from mpifed.audit.command import Audit, as_text, audited
from mpifed.audit.recording import replay_job

ONE = {"name": "hyfdca", "rule": "paper", "inner": 1, "primal": "clear"}
ALL = {"name": "hyfdca", "primal": "clear"}
HINGE = {"name": "hinge", "bias": False, "l2": 5e-3}


def table(folder: Path, algorithm: dict[str, Any], channel: str, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "audit", "rounds": 60, "data": {"path": str(folder)}, "model": HINGE, "algorithm": algorithm,
        "record": {"evaluate_every": 0}, "aggregation": {"security": channel},
    }  # fmt: skip
    return base | changes


@pytest.fixture
def audit(write_job: Callable[..., Path], tmp_path: Path) -> Callable[..., Audit]:
    """audit(folder, algorithm, channel, rounds, **tables): of a job, in this process."""

    def audit(folder: Path, algorithm: dict[str, Any], channel: str, rounds: int, **changes: Any) -> Audit:
        job = write_job(tmp_path / "job.toml", table(folder, algorithm, channel, **changes))
        return audited(job, (), rounds)

    return audit


@pytest.fixture(scope="module")
def masked(squares: Path, write_job: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """Twelve rounds in which about one sample of each group of rows moves."""
    accepted = {"accept": ["in-the-clear"]}
    path = tmp_path_factory.mktemp("masked") / "job.toml"
    return audited(write_job(path, table(squares, ONE, "masked", audit=accepted)), (), 12)


def names(found: Audit) -> list[str]:
    return [one.name for one in found.findings]


def attack(found: Audit, name: str, seen: str) -> Any:
    (one,) = [one for one in found.attacks if one.attack == name and seen in one.seen]
    return one


def held(folder: Path) -> Any:
    """[24, 6] all rows, from the clients' shards."""
    found = np.zeros((24, 6))
    for shard in replay_job(checked(table(folder, ALL, "plain")), 1).shards.values():
        for i in range(shard.samples):
            out = np.empty((1, shard.features))
            shard.take(np.array([i]), out)
            found[shard.rows[i], shard.columns] = out[0]
    return found


# --- duals and inner products ----------------------------------------------------------------------------------------


def test_who_sees_duals_and_products_solves_for_the_rows(squares: Path, audit: Callable[..., Audit]) -> None:
    """What HyFDCA's paper says of a server without encryption, section 3.2."""
    found = audit(squares, ONE, "plain", 30)
    assert names(found) == ["answers", "inner-products", "linear-system"]
    products, duals = (attack(found, name, "each client's") for name in ("inner-products", "linear-system"))
    assert (products.recovered, products.of) == (48, 48)  # 12 rows of each of four clients, from three weights each
    assert "3 equations, 3 needed" in products.text
    assert duals.recovered >= 24


def test_no_channel_but_the_plain_one_shows_them(masked: Audit) -> None:
    """X'alpha of each client is in the clear all the same."""
    found = masked
    assert names(found) == ["in-the-clear"] and not found.leaks
    for name in ("inner-products", "linear-system"):
        assert not attack(found, name, "each client's").applies
    text = "\n".join(as_text(found))
    assert "the server knows w, and X'alpha, of every client; dual variables and inner products are for" in text
    assert "24 samples have two holders: each of them learns what the other one sent of them" in text


def test_rows_are_put_together_from_all_who_hold_parts(patchwork: Path, squares: Path) -> None:
    replay = replay_job(checked(table(squares, ALL, "plain")), 1)
    np.testing.assert_array_equal(replay.full_rows(np.array([20, 3])), held(squares)[[20, 3]])
    replay = replay_job(checked(table(patchwork, ONE, "plain")), 1)
    some = np.array([1700, 3, 700])
    rows = replay.full_rows(some)
    for shard in replay.shards.values():
        for i, row in enumerate(some):
            if row in shard.rows:
                own = replay.features(shard.client, np.flatnonzero(shard.rows == row))[0]
                np.testing.assert_array_equal(rows[i, shard.columns], own)
