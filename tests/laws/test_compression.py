"""Compressors by their definitions, the bytes of their messages by an encoder, and what does not go with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from methods import METHODS, named, private
from records import record_of, together
from registry import table

from mpifed.core.errors import UsageError
from mpifed.core.round import Round
from mpifed.data.store import open_federation
from mpifed.forecast.job import forecast
from mpifed.maths.compression import QSGD, Compression, Natural, RandK, Sign, TopK
from mpifed.testing import rounds

ALL = [TopK(k=5), TopK(fraction=0.3), RandK(k=7), QSGD(levels=1), QSGD(levels=4), Natural(), Sign()]
NOW = Round(3, 11, np.ones(1, bool))
LARGE = 40_000  # draws
U = np.linspace(0.2, 3, 48) * (-1) ** np.arange(48)


def drawn(compression: Compression, u: Any, times: int = 1) -> Any:
    """[times, d] C(u), by as many clients."""
    return compression.compress(np.repeat(u[None], times, axis=0), NOW, np.arange(times))


@pytest.mark.parametrize("compression", [one for one in ALL if one.unbiased], ids=repr)
def test_unbiased_ones_are_and_within_their_variance(compression: Compression) -> None:
    found, scale = drawn(compression, U, LARGE), float(U @ U)
    errors = ((found - U) ** 2).sum(axis=1)
    spread = found.std(axis=0) / LARGE**0.5
    assert (np.abs(found.mean(axis=0) - U) <= 5 * spread + 1e-12).all()
    assert errors.mean() <= compression.omega(len(U)) * scale + 5 * errors.std() / LARGE**0.5
    if isinstance(compression, RandK):
        assert errors.mean() == pytest.approx(compression.omega(len(U)) * scale, rel=0.02)


@pytest.mark.parametrize("u", [U, np.ones(48), np.array([1.0, -2.0, 0.0, 2.0, -2.0, 1.0] * 8), np.zeros(48)])
def test_contractions(u: Any) -> None:
    d, square = len(u), u @ u
    for k in (1, 5, d):
        (found,) = drawn(TopK(k=k), u)
        first = sorted(range(d), key=lambda j: (-abs(u[j]), j))[:k]
        np.testing.assert_array_equal(found, np.where(np.isin(np.arange(d), first), u, 0.0))
        assert ((found - u) ** 2).sum() <= (1 - k / d) * square + 1e-12
    (signs,) = drawn(Sign(), u)
    assert ((signs - u) ** 2).sum() == pytest.approx(square - np.abs(u).sum() ** 2 / d, abs=1e-9)


def test_numbers_that_are_none_travel() -> None:
    broken = np.array([1.0, np.nan, 3.0, 4.0], "f4")
    for compression in (TopK(k=1), QSGD(levels=2), Natural(), Sign()):
        assert np.isnan(drawn(compression, broken)).any()


# --- bytes ------------------------------------------------------------------------------------------------------------


def encoded(compression: Compression, sent: Any) -> str:
    """A message as a deployment would write it, in bits, from which the numbers follow again."""

    def number(x: Any) -> str:
        return "".join(f"{byte:08b}" for byte in np.asarray(x, sent.dtype).tobytes())

    d, at, signs = len(sent), np.flatnonzero(sent), ["01"[int(np.signbit(x))] for x in sent]
    if isinstance(compression, TopK):
        width = int(np.ceil(np.log2(d)))
        return "".join(f"{j:0{width}b}" + number(sent[j]) for j in at)
    if isinstance(compression, RandK):
        drawn = NOW.draw("compression", np.array([0]), np.array([d]), compression.number(d))[0]
        assert set(at) <= set(drawn)
        return "".join(number(sent[j]) for j in drawn)
    if isinstance(compression, Sign):
        np.testing.assert_array_equal(np.abs(sent), np.abs(sent[0]))
        return number(abs(sent[0])) + "".join(signs)
    if isinstance(compression, QSGD):
        norm, width = np.linalg.norm(U.astype(sent.dtype)), int(np.ceil(np.log2(compression.levels + 1)))
        levels = np.abs(sent) * compression.levels / norm
        np.testing.assert_allclose(levels, levels.round(), atol=1e-5)
        return number(norm) + "".join(
            sign + f"{int(x):0{width}b}" for sign, x in zip(signs, levels.round(), strict=True)
        )
    bits = sent.view(f"u{sent.itemsize}")
    mantissa, exponents = np.finfo(sent.dtype).nmant, 8 * sent.itemsize - 1 - np.finfo(sent.dtype).nmant
    assert not (bits & (2**mantissa - 1)).any()
    return "".join(f"{int(x) >> mantissa:0{exponents + 1}b}" for x in bits)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_are_those_of_an_encoder(digits: Path, dtype: str) -> None:
    for compression in ALL:
        (sent,) = drawn(compression, U.astype(dtype))
        assert len(encoded(compression, sent)) == compression.bits(len(U), 8 * sent.itemsize), compression
    job = {"compression": {"name": "qsgd", "levels": 4}, "compute": {"dtype": dtype}, "rounds": 2}
    facts = counted(digits, participation={"clients_per_round": 3}, **job)
    (d,) = next(one["shape"] for one in facts["exchanges"][0]["fields"] if one["field"] == "value")
    one = -(-QSGD(levels=4).bits(d, 8 * np.dtype(dtype).itemsize) // 8) + 8  # and the client's weight
    assert facts["up_bytes"] == 2 * 3 * one


def job_of(folder: Path, name: str = "fedavg", **tables: Any) -> dict[str, Any]:
    return table(folder, {"name": named(name), "batch_size": 4, **(METHODS[name].least or {})}, **tables)


def counted(folder: Path, **tables: Any) -> Any:
    return forecast(checked(job_of(folder, **tables)), 1)


@pytest.mark.parametrize("security", ["masked", "encrypted"])
def test_sealed_uploads_travel_whole(digits: Path, security: str) -> None:
    sealed, compression = {"aggregation": {"security": security}}, {"compression": {"name": "sign"}}
    plain, said = counted(digits, **sealed), counted(digits, **sealed, **compression)
    assert said["up_bytes"] == plain["up_bytes"]
    assert any("travel whole" in line for line in said["warnings"])


# --- with methods -----------------------------------------------------------------------------------------------------

LOCAL = [name for name, method in METHODS.items() if "client_optimizer" in (method.least or {})]
REFUSED = {"alone", "fedasync", "fedexp", "fedexprox", "mime-lite", "proxskip", "tamuna", "fedlin", "mime"}


@pytest.mark.parametrize("name", LOCAL)
def test_whole_messages_without_a_memory_change_no_bit(digits: Path, name: str) -> None:
    whole = {"compression": {"name": "top-k", "fraction": 1.0}}
    if name in REFUSED:
        with pytest.raises(UsageError, match=r"\[compression\]"):
            next(rounds(checked(job_of(digits, name, **whole))))
        return
    found, expected = ([*rounds(checked(job_of(digits, name, **more)))][-1].model for more in (whole, {}))
    for key, leaf in expected.items():
        np.testing.assert_array_equal(found[key], leaf)


@pytest.mark.parametrize("memory", ["ef21", "ef21-sgdm", "diana"])
@pytest.mark.parametrize("tables", [
    {"participation": {"dropout_rate": 0.3, "max_dropouts": 2, "attempts": 40}},
    {"participation": {"stragglers": 0.5, "drop_stragglers": True}},
], ids=["leaving", "dropped"])  # fmt: skip
def test_the_server_knows_the_mean_of_all_estimates(digits: Path, memory: str, tables: dict[str, Any]) -> None:
    """Whoever is absent, leaves, or has to try again in a void round."""
    compression = {"name": "qsgd", "levels": 3, "memory": memory}
    job = checked(job_of(digits, compression=compression, compute={"dtype": "float64"}, rounds=8, **tables))
    (*_, last) = rounds(job)
    clients, counts = together(last.clients).memory, open_federation(digits).counts
    kept = getattr(clients, "estimate", clients)
    mean = np.average(kept, axis=0, weights=counts)
    np.testing.assert_allclose(record_of(last.server).estimate, mean, rtol=0, atol=1e-9 * np.abs(mean).max())


RAND = {"name": "rand-k", "k": 5}
PEOPLE = private(level="client", trust="central")
WRONG: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("fedavg", {"name": "top-k"}, {}, "k, fraction: each says how many"),
    ("fedavg", {"name": "top-k", "k": 3, "fraction": 0.1}, {}, "k, fraction: each says how many"),
    ("fedavg", {"name": "rand-k", "k": 10**6}, {}, "k = 1000000: the model has"),
    ("fedavg", {"name": "rand-k", "k": 0}, {}, "expected a number above 0"),
    ("fedavg", {"name": "topk", "k": 3}, {}, 'did you mean "top-k"'),
    ("fedavg", {"name": "sign", "memory": "diana"}, {}, "needs an unbiased compressor"),
    ("fedavg", RAND | {"alpha": 0.1}, {}, "has no mean over rounds"),
    ("fedavg", RAND | {"memory": "diana", "alpha": 0.5}, {}, "1 / (1 + omega) alone"),
    ("fedavg", RAND, PEOPLE, "noise is of the sum's integers"),
    ("fedavg", RAND, {"aggregation": {"arithmetic": "exact-blocks"}}, "takes each client's upload by itself"),
    (
        "fedvarp",
        RAND | {"memory": "ef21"},
        {"participation": {"clients_per_round": 3}},
        "where clients are absent",
    ),
    ("ssca-horizontal", RAND, {}, "has no uploads of local steps"),
]


@pytest.mark.parametrize(("name", "compression", "tables", "said"), WRONG)
def test_refusals(digits: Path, name: str, compression: Any, tables: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        next(rounds(checked(job_of(digits, name, compression=compression, **tables))))
    assert said in str(refused.value)
