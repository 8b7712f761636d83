"""`mpifed check JOB` ends, however long a round is; what it has extrapolated is near, and it says so."""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from pathlib import Path
from typing import Any

import pytest
from forecasts import forecast

from mpifed.core.errors import UsageError
from mpifed.forecast import extrapolated, rehearsal
from mpifed.forecast.job import forecast_text


@pytest.fixture
def shown(digits: Path, write_job: Callable[..., Path], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """shown(*changes): the forecast of a small job that is changed so."""
    table = {
        "name": "t", "rounds": 7, "data": {"path": str(digits)}, "model": {"name": "mlp", "bias": False, "hidden": 5},
        "algorithm": {"name": "fedavg", "batch_size": 20, "local_steps": 2,
        "client_optimizer": {"learning_rate": 0.1}}, "record": {"evaluate_every": 3},
    }  # fmt: skip
    job = write_job(tmp_path / "job.toml", table)

    def shown(*changes: str, ranks: int = 2) -> dict[str, Any]:
        return forecast(job, changes, ranks)

    return shown


def test_many_local_steps(shown: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    many = shown("algorithm.local_steps=100000")
    monkeypatch.setattr(extrapolated, "_WHOLE_S", 1e9)
    few = shown("algorithm.local_steps=400")
    assert few["extrapolated"] == []
    (note,) = many["extrapolated"]
    assert note.endswith(" of 100000 local steps")
    assert "EXTRAPOLATED, as is the memory, from rehearsals of 2 and " in forecast_text(many)
    assert many["up_bytes"] == few["up_bytes"] and many["exchanges"] == few["exchanges"]


def test_many_passes_over_the_shard(shown: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extrapolated, "_WHOLE_S", 0.02)  # no number of seconds is looked at
    changes = ("algorithm={name='fedavg', batch_size=2, local_epochs=10000}",)
    found = shown(*changes)
    assert found["extrapolated"][0].endswith(" of 900000 local steps")


def test_a_wide_network_as_if_it_had_been_rehearsed(
    shown: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shown("model.hidden=1000", "aggregation.security=masked")
    monkeypatch.setattr(extrapolated, "_WIDE", 20_000)
    found = shown("model.hidden=1000", "aggregation.security=masked")
    assert found["extrapolated"] == ["156 and 312 of 1000 hidden units"]
    for key in ("setup", "exchanges", "measures"):
        assert [_sizes(one) for one in found[key]] == [_sizes(one) for one in whole[key]]
    work = found["memory_bytes"]["work"] / whole["memory_bytes"]["work"]
    assert 0.7 < work < 1.4


def test_of_several_layers_the_first_is_narrowed(
    shown: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the weights of both of its sides: from 64 features, and to 36 units of the next layer."""
    whole = shown("model.hidden=[1000, 36, 4]", "aggregation.security=masked")
    monkeypatch.setattr(extrapolated, "_WIDE", 20_000)
    found = shown("model.hidden=[1000, 36, 4]", "aggregation.security=masked")
    assert found["extrapolated"] == ["100 and 200 of 1000 units of the first hidden layer"]
    for key in ("setup", "exchanges", "measures"):
        assert [_sizes(one) for one in found[key]] == [_sizes(one) for one in whole[key]]


def _sizes(exchange: dict[str, Any]) -> dict[str, Any]:
    """All but what is measured."""
    return {key: value for key, value in exchange.items() if key != "crypto_s"}


@pytest.mark.long
def test_a_network_as_wide_as_may_be(shown: Callable[..., dict[str, Any]]) -> None:
    found = shown("model.hidden=1000000")
    assert found["memory_bytes"]["work"] > 2**31
    assert found["exchanges"][0]["broadcast"][0]["shape"] == [64, 1_000_000]


def test_large_blocks(shown: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = shown("data.block=8", ranks=1)
    monkeypatch.setattr(rehearsal, "_TOGETHER", 4)
    found = shown("data.block=8", ranks=1)
    assert found["extrapolated"] == ["2 and 4 of 8 clients of a block"]
    assert found["exchanges"] == whole["exchanges"]


def test_so_many_rounds_that_nobody_counts_them(shown: Callable[..., dict[str, Any]]) -> None:
    found = shown("rounds=99999999", "record.evaluate_every=1", "record.certify_every=7")
    assert found["seconds"]["evaluations"] == 100_000_000
    assert found["seconds"]["certificates"] == 14_285_716  # rounds 0, 7, 14 ... and the last


@pytest.mark.parametrize(("rounds", "every", "certify_every"), [(7, 3, 2), (12, 4, 6), (9, 3, 0), (5, 0, 3), (1, 1, 1)])
def test_rounds_are_counted_as_they_come(
    shown: Callable[..., dict[str, Any]], rounds: int, every: int, certify_every: int
) -> None:
    found = shown(f"rounds={rounds}", f"record.evaluate_every={every}", f"record.certify_every={certify_every}")
    measured = {0, rounds, *(range(0, rounds, every) if every else ())} if every else set()
    certified = {0, rounds} | {one for one in measured if certify_every and one < rounds and one % certify_every == 0}
    assert found["seconds"]["evaluations"] == len(measured)
    assert found["seconds"]["certificates"] == (len(certified) if measured else 0)


def test_many_who_may_leave(shown: Callable[..., dict[str, Any]]) -> None:
    found = shown("participation={dropout_rate=0.1, max_dropouts=1}")
    assert found["void_chance"] == pytest.approx(1 - 0.9**8 - 8 * 0.1 * 0.9**7, abs=1e-12)
    found = shown("participation={dropout_rate=0.1, max_dropouts=3}")
    more = sum(comb(8, k) * 0.1**k * 0.9 ** (8 - k) for k in range(4, 9))
    assert found["void_chance"] == pytest.approx(more, abs=1e-12)


def test_more_ranks_than_there_are(shown: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(UsageError, match="at most 1000000"):
        shown(ranks=10**12)


def test_rows_that_nobody_could_draw(shown: Callable[..., dict[str, Any]], digits: Path) -> None:
    with pytest.raises(UsageError, match="a client would draw 150000000 rows in a round, more than 100000000"):
        shown("algorithm.batch_size=150", "algorithm.local_steps=1000000")
