"""Whether received words can be distinguished from uniform random numbers: a family of tests, judged together.

Each upload is tested by itself, and so are the differences of pairs: two uploads of a client, and two clients' uploads
in a round. A mask that is used twice cancels in a difference. All p-values of a report are a family, judged by Holm's
step-down method: if all words are uniform and independent, the probability of any rejection is at most `LEVEL`, as far
as the p-values hold; those of counts are asymptotic, and are used only where every cell expects `EXPECTED` counts.

The monobit and runs tests are those of NIST SP 800-22, 2.1 and 2.3, the first with the exact binomial law.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.record import Array

Words = NDArray[np.uint64]
Floats = NDArray[np.float64]

LEVEL = 1e-6  # significance level of the family
EXPECTED = 20  # least expected count of a cell
SHORTEST = 64  # least words of a test
LARGEST = 2**15  # most words of a message that are tested
PAIRS = 64  # most pairs of uploads of each kind


class Sample(NamedTuple):
    """Words that should be uniform, and independent of each other."""

    exchange: str
    round: int
    client: int  # -1: of several
    words: Words
    bits: int  # of a word: 32 or 64

    @property
    def name(self) -> str:
        whose = f"round {self.round}, client {self.client}"
        return f"{self.exchange}, {whose if self.client >= 0 else 'short uploads together'}"

    @property
    def fractions(self) -> Floats:
        """[m] the words divided by their range, in [0, 1)."""
        return self.words / 2.0**self.bits

    def binary(self) -> NDArray[np.uint8]:
        """[m bits] all bits of the words, low bits first."""
        octets = self.words.astype("<u8").view(np.uint8).reshape(len(self.words), 8)[:, : self.bits // 8]
        return np.unpackbits(octets.ravel(), bitorder="little")

    def minus(self, other: Sample) -> Sample:
        """The sample of differences modulo the words' range."""
        count = min(len(self.words), len(other.words))
        words = self.words[:count] - other.words[:count]
        return self._replace(words=words & np.uint64(2**self.bits - 1))


class UniformityResult(NamedTuple):
    """p-value of a test of a sample or a pair."""

    test: str
    what: str
    p: float


class Uniformity(NamedTuple):
    """All tests, and those that reject uniformity."""

    results: tuple[UniformityResult, ...]
    rejected: tuple[UniformityResult, ...]  # by Holm's method at `LEVEL`, the least likely first
    samples: int
    short: int  # uploads too short to be tested

    @property
    def uniform(self) -> bool | None:
        """Whether no test rejects uniformity; None if there was nothing to test."""
        return None if not self.results else not self.rejected


def excerpt(words: Array, start: float) -> Array:
    """At most `LARGEST` consecutive words; `start` in [0, 1] selects among the possible first positions."""
    first = round(start * max(0, len(words) - LARGEST))
    return words[first : first + LARGEST]


def of_integers(exchange: str, round: int, client: int, data: Array) -> Sample:
    """A sample from integers as they were sent, or from bytes, by eight."""
    data = np.ascontiguousarray(data).ravel()
    if data.dtype == np.uint8:
        data = data[: len(data) // 8 * 8].view("<u8")
    data, width = data[:LARGEST], data.dtype.itemsize
    return Sample(exchange, round, client, data.view(f"u{width}").astype(np.uint64), 8 * width)


def of_residues(exchange: str, round: int, client: int, numbers: Words, modulus: int) -> Sample:
    """A sample from residues: 32 binary digits of each number divided by the modulus."""
    if modulus == 2**64:
        return of_integers(exchange, round, client, numbers)
    words = np.floor(numbers[:LARGEST] / float(modulus) * 2.0**32).astype(np.uint64)
    return Sample(exchange, round, client, words, 32)


def examine(samples: Sequence[Sample]) -> Uniformity:
    """Run all tests on every sample of sufficient length, on short samples together, and on pairs."""
    long = [sample for sample in samples if len(sample.words) >= SHORTEST]
    joined, short = _joined([sample for sample in samples if len(sample.words) < SHORTEST])
    results = [result for sample in (*long, *joined) for result in sample_tests(sample)]
    for first, second in _pairs(long):
        results += _pair_tests(first, second)
    return Uniformity(tuple(results), rejected(results), len(samples), short)


def _joined(samples: Sequence[Sample]) -> tuple[list[Sample], int]:
    """(the short uploads of each exchange, concatenated, and the number of those that are still too short).

    Rounds of two clients are left out: the upload of one client is the sum less that of the other.
    """
    groups: dict[tuple[str, int], list[Sample]] = {}
    for same in _by_round(samples).values():
        if len({sample.client for sample in same}) != 2:
            groups.setdefault((same[0].exchange, same[0].bits), []).extend(same)
    joined, tested = [], 0
    for (exchange, bits), same in groups.items():
        words = np.concatenate([sample.words for sample in same])
        if len(words) >= SHORTEST:
            joined.append(Sample(exchange, same[0].round, -1, words[:LARGEST], bits))
            tested += len(same)
    return joined, len(samples) - tested


def _by_round(samples: Sequence[Sample]) -> dict[tuple[str, int, int], list[Sample]]:
    groups: dict[tuple[str, int, int], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.exchange, sample.round, sample.bits), []).append(sample)
    return groups


def sample_tests(sample: Sample) -> Iterator[UniformityResult]:
    from scipy import stats

    binary, fractions = sample.binary(), sample.fractions
    yield UniformityResult(
        "bytes" if len(binary) >= 8 * 256 * EXPECTED else "half-bytes", sample.name, chi_square(binary)
    )
    yield UniformityResult("monobit", sample.name, monobit(binary))
    yield UniformityResult("runs", sample.name, runs(binary))
    yield UniformityResult("serial correlation", sample.name, correlation(fractions[:-1], fractions[1:]))
    yield UniformityResult("top bits", sample.name, float(stats.kstest(fractions, "uniform").pvalue))


def chi_square(binary: NDArray[np.uint8]) -> float:
    """The p-value of the counts of bytes, or of half-bytes where there are few."""
    from scipy import special

    width = 8 if len(binary) >= 8 * 256 * EXPECTED else 4
    cells = binary[: len(binary) // width * width].reshape(-1, width) @ (1 << np.arange(width))
    counts = np.bincount(cells, minlength=2**width)
    statistic = ((counts - counts.mean()) ** 2).sum() / counts.mean()
    return float(special.chdtrc(len(counts) - 1, statistic))


def monobit(binary: NDArray[np.uint8]) -> float:
    """The p-value of the number of ones."""
    from scipy import stats

    ones = int(binary.sum())
    return min(1.0, 2 * float(stats.binom.cdf(min(ones, len(binary) - ones), len(binary), 0.5)))


def runs(binary: NDArray[np.uint8]) -> float:
    """The p-value of the number of runs of equal bits, given the number of ones; 0 if all bits are equal."""
    from scipy import special

    share = float(binary.mean())
    if not 0 < share < 1:
        return 0.0
    changes = int((binary[1:] != binary[:-1]).sum()) + 1
    spread = 2 * np.sqrt(2.0 * len(binary)) * share * (1 - share)
    return float(special.erfc(abs(changes - 2 * len(binary) * share * (1 - share)) / spread))


def correlation(first: Floats, second: Floats) -> float:
    """The p-value of the correlation of two sequences; 0 if either is constant."""
    from scipy import special

    if not (np.ptp(first) and np.ptp(second)):
        return 0.0
    away, half = float(abs(np.corrcoef(first, second)[0, 1])), len(first) / 2 - 1
    return float(2 * special.betainc(half, half, (1 - min(away, 1.0)) / 2))


def _pairs(samples: Sequence[Sample]) -> Iterator[tuple[Sample, Sample]]:
    """Consecutive uploads of a client, and uploads of two clients in a round of at least three.

    The masks of two clients who are alone cancel, so the upload of one client is the sum less that of the other.
    """
    by_client: dict[tuple[str, int, int], list[Sample]] = {}
    for sample in samples:
        by_client.setdefault((sample.exchange, sample.client, sample.bits), []).append(sample)
    in_time = [pair for same in by_client.values() for pair in pairwise(same)]
    among = [
        pair for same in _by_round(samples).values() if len({sample.client for sample in same}) > 2
        for pair in pairwise(same)
    ]  # fmt: skip
    yield from in_time[:PAIRS]
    yield from among[:PAIRS]


def _pair_tests(first: Sample, second: Sample) -> Iterator[UniformityResult]:
    from scipy import stats

    count = min(len(first.words), len(second.words))
    what = f"{first.name} and {second.name}"
    yield UniformityResult(
        "correlation of a pair", what, correlation(first.fractions[:count], second.fractions[:count])
    )
    difference = first.minus(second)
    yield UniformityResult("difference of a pair", what, chi_square(difference.binary()))
    yield UniformityResult(
        "top bits of a difference", what, float(stats.kstest(difference.fractions, "uniform").pvalue)
    )


def rejected(results: Iterable[UniformityResult], level: float = LEVEL) -> tuple[UniformityResult, ...]:
    """Tests that Holm's method rejects at the level of the family (S. Holm, Scand. J. Statist. 1979)."""
    ordered = sorted(results, key=lambda result: result.p)
    for number, result in enumerate(ordered):
        if result.p > level / (len(ordered) - number):
            return tuple(ordered[:number])
    return tuple(ordered)
