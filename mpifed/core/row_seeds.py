"""Seeds of rows: the random numbers that a model draws for a sample in training, as the masks of dropout.

A sample's seed is a function of the job's seed, the round, the client, the local step and the number of its row in the
client's shard: never of who else is in its minibatch, or where. It travels as two more columns behind the features, so
that a pass stays a function of its arguments, however samples are cut into pieces, joined or copied.

What follows from a seed is SplitMix64's (G. L. Steele, D. Lea, C. H. Flood: "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014), whose i-th word is a function of the seed and i alone.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpifed.core.record import Array, beside, namespace
from mpifed.core.round import Round

COLUMNS = 2  # behind the features
_HALF = 24  # bits of a seed in each column: integers that float32 has
_SIGNED = 2**64  # 64 bits as PyTorch has them
_ODD = 0x9E3779B97F4A7C15 - _SIGNED
_FACTORS = (30, 0xBF58476D1CE4E5B9 - _SIGNED), (27, 0x94D049BB133111EB - _SIGNED)

Words = TypeVar("Words", bound=Any)  # integers of 64 bits, with a sign, of NumPy, CuPy or PyTorch


def words(seeds: Words, numbers: Words) -> Words:
    """The random words of these `numbers` that follow from the seeds; both broadcast."""
    mixed: Words = seeds + numbers * _ODD
    for shift, factor in _FACTORS:
        mixed ^= (mixed >> shift) & (2 ** (64 - shift) - 1)
        mixed *= factor
    mixed ^= (mixed >> 31) & (2**33 - 1)
    return mixed


def row_seeds(now: Round, clients: NDArray[np.int64], rows: NDArray[np.int64], steps: ArrayLike) -> NDArray[np.int64]:
    """[n, s] seeds of 48 bits of the `rows` [n, s] of each of `clients` [n], in the local steps, [s] or one of all."""
    of_clients = now.words_of_clients("rows in training", clients)[:, None]
    seeds = words(words(of_clients, np.atleast_1d(steps)), rows)
    upper: NDArray[np.int64] = (seeds >> (64 - 2 * _HALF)) & (2 ** (2 * _HALF) - 1)
    return upper


def with_seeds(X: Array, seeds: NDArray[np.int64]) -> Array:
    """[n, s, p + 2] samples X [n, s, p], and behind them their seeds [n, s]."""
    columns = np.stack([seeds & (2**_HALF - 1), seeds >> _HALF], axis=-1)
    return namespace(X).concatenate([X, beside(X, columns, X.dtype)], axis=-1)


def seeds_of(columns: Words) -> Words:
    """[..., s] the seeds that stand in these integers [..., s, 2]."""
    seeds: Words = columns[..., 0] + (columns[..., 1] << _HALF)
    return seeds
