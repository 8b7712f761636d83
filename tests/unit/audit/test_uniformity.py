"""Tests of uniformity: how often they raise a false alarm, and that they see what is not uniform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, kstest

from mpifed.audit.uniformity import (
    LEVEL,
    SHORTEST,
    Sample,
    UniformityResult,
    examine,
    monobit,
    of_integers,
    of_residues,
    rejected,
    runs,
)
from mpifed.audit.uniformity import sample_tests as alone

PRIME = 1152921504606830593  # of 60 bits


def integers(rng: np.random.Generator, count: int, kind: str = "int64") -> Any:
    span = np.iinfo(kind)
    return rng.integers(span.min, span.max, count, dtype=kind, endpoint=True)


def residues(rng: np.random.Generator, count: int) -> Any:
    return rng.integers(0, PRIME, count, dtype=np.uint64)


MAKERS = {
    "64 bits": lambda rng: of_integers("e", 0, 0, integers(rng, 300)),
    "32 bits": lambda rng: of_integers("e", 0, 0, integers(rng, 900, "int32")),
    "bytes": lambda rng: of_integers("e", 0, 0, integers(rng, 8003, "uint8")),
    "long": lambda rng: of_integers("e", 0, 0, integers(rng, 3000)),
    "residues": lambda rng: of_residues("e", 0, 0, residues(rng, 500), PRIME),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", MAKERS)
def test_p_values_of_uniform_numbers_are_uniform(kind: str) -> None:
    """1 in 100 below 0.01, for every test; each bound fails with chance 1e-6."""
    rng, trials = np.random.default_rng(3), 500
    found: dict[str, list[float]] = {}
    for _ in range(trials):
        for result in alone(MAKERS[kind](rng)):
            found.setdefault(result.test, []).append(result.p)
    assert len(found) == 5
    for test, values in found.items():
        assert np.mean(np.array(values) < 0.01) * trials <= binom.isf(1e-6, trials, 0.01), test
        if test != "monobit":  # a count, whose exact p-values are too large rather than too small
            assert kstest(values, "uniform").pvalue > 1e-6, test


@pytest.mark.long
def test_a_family_raises_no_more_false_alarms_than_its_level() -> None:
    """Holm at 0.1 over all tests of six uploads: at most 1 in 10 families, although some tests depend."""
    rng, families = np.random.default_rng(5), 150
    alarms = 0
    for _ in range(families):
        samples = [of_integers("e", t, c, integers(rng, 200)) for t in range(2) for c in range(3)]
        alarms += bool(rejected(examine(samples).results, 0.1))
    assert alarms <= binom.isf(1e-6, families, 0.1)


def test_holm_by_hand() -> None:
    """0.005 <= 0.05/4, 0.01 <= 0.05/3, but 0.03 > 0.05/2: two are rejected, although 0.04 < 0.05."""
    results = [UniformityResult(f"t{i}", "", p) for i, p in enumerate((0.01, 0.04, 0.03, 0.005))]
    assert [one.p for one in rejected(results, 0.05)] == [0.005, 0.01]
    assert rejected(results[1:3], 0.01) == ()


def test_monobit_and_runs_of_nist() -> None:
    """SP 800-22, the examples of 2.1.8 and 2.3.8, 100 binary digits of pi; monobit exactly, not by the normal law."""
    digits = "11001001000011111101101010100010001000010110100011000010001101001100010011000110011000101000101110000000"
    bits = np.array([int(one) for one in digits[:100]], dtype=np.uint8)
    assert bits.sum() == 42
    assert runs(bits) == pytest.approx(0.500798, abs=1e-6)
    assert monobit(bits) == pytest.approx(2 * binom.cdf(42, 100, 0.5))
    assert monobit(bits) == pytest.approx(0.1332, abs=1e-3)  # the normal law says 0.109599


@pytest.mark.parametrize("scale", [1e3, 1e9, 1e15])
def test_numbers_on_a_grid_are_seen(scale: float) -> None:
    rng = np.random.default_rng(7)
    samples = [of_integers("e", 0, c, (rng.standard_normal(500) * scale).astype(np.int64)) for c in range(3)]
    verdict = examine(samples)
    assert verdict.uniform is False
    assert verdict.rejected[0].p < LEVEL / len(verdict.results)


@pytest.mark.parametrize("trick", ["in time", "among clients", "opposite"])
def test_a_mask_that_is_used_twice_is_seen(trick: str) -> None:
    """Each upload by itself is uniform; the difference of two is a difference of plain numbers."""
    rng = np.random.default_rng(9)
    plain = [rng.integers(-1000, 1000, 400) for _ in range(6)]
    masks = [integers(rng, 400) for _ in range(6)]
    turns = [(t, c) for t in range(2) for c in range(3)]
    if trick == "in time":
        masks[3] = masks[0]  # client 0, again
    elif trick == "among clients":
        masks[1] = masks[0]  # clients 0 and 1
    else:
        masks[1] = -masks[0]
    sealed = [of_integers("e", *turns[i], plain[i] + masks[i]) for i in range(6)]
    for one in sealed:
        assert not rejected(list(alone(one)))
    verdict = examine(sealed)
    assert verdict.uniform is False
    assert {one.test for one in verdict.rejected} & {"difference of a pair", "correlation of a pair"}


def test_two_clients_alone_are_not_compared() -> None:
    """What one sends is the sum less what the other sends, and so is not independent of it, as it must be."""
    rng = np.random.default_rng(11)
    mask = integers(rng, 400)
    two = [of_integers("e", 0, 0, mask), of_integers("e", 0, 1, 5 - mask)]
    assert examine(two).uniform is True
    assert examine([*two, of_integers("e", 0, 2, integers(rng, 400))]).uniform is False


def test_differences_stay_in_range() -> None:
    one, other = (of_integers("e", 0, 0, np.array(v, dtype=np.int32)) for v in ([-1, 3, 5], [1, 4, 5, 9]))
    assert one.minus(other).words.tolist() == [2**32 - 2, 2**32 - 1, 0]
    assert one.binary().sum() == 32 + 2 + 2


def test_short_messages_are_said_to_be_untested() -> None:
    rng = np.random.default_rng(13)
    short = of_integers("e", 0, 0, np.zeros(SHORTEST - 1, dtype=np.int64))
    verdict = examine([short])
    assert (verdict.uniform, verdict.samples, verdict.short) == (None, 1, 1)
    verdict = examine([short, of_integers("e", 1, 0, integers(rng, 100))])
    assert (verdict.uniform, verdict.short) == (True, 1)


def test_short_messages_of_several_are_tested_together() -> None:
    rng = np.random.default_rng(15)
    turns = [(t, c) for t in range(3) for c in range(4)]
    sealed = [of_integers("e", *turn, integers(rng, 10)) for turn in turns]
    verdict = examine(sealed)
    assert (verdict.uniform, verdict.short, len(verdict.results)) == (True, 0, 5)
    verdict = examine([one._replace(words=one.words >> np.uint64(20)) for one in sealed])
    assert verdict.uniform is False
    assert {one.what for one in verdict.rejected} == {"e, short uploads together"}
    two = [one for one in sealed if one.client < 2]
    assert (examine(two).uniform, examine(two).short) == (None, 6)


def test_residues_keep_their_place_in_the_range() -> None:
    found = of_residues("e", 0, 0, np.array([0, PRIME // 2, PRIME - 1], dtype=np.uint64), PRIME)
    assert isinstance(found, Sample)
    np.testing.assert_allclose(found.fractions, [0, 0.5, 1], atol=2.0**-31)
    assert of_residues("e", 0, 0, np.array([5], dtype=np.uint64), 2**64).bits == 64
