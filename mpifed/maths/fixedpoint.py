"""Exact sums: floats are rounded to a grid and added as integers, so that the order of addition does not matter.

A value x is rounded to the nearest multiple of `scale`, ties to even. The compiled loop adds C = 1.5 * 2^52 * scale in
float64, which does that rounding, and leaves the integer x / scale in the low bits of the result:
bits(C + k * scale) = bits(C) + k. So a float addition encodes, and an integer addition mod 2^64 sums; NumPy, and a
device's kernel, round x / scale. Where the range exceeds such an integer, x is split into a coarse multiple and a
remainder, two limbs.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core import loops
from mpifed.core.record import Array, ArrayModule, namespace, on_host

_LIMB_BITS = 32  # the low limb's width when there are two
# each position of a message adds up its column: without atomics, and the integers are the host's
_ENCODE = """
    high = low = 0;
    for (long long row = 0; row < clients; ++row) {
        const double value = (double)values[row * width + i];
        const double multiple = rint(value / coarse);
        high += (long long)multiple;
        low += (long long)rint((value - multiple * coarse) / fine);
    }
"""


class SumGrid(NamedTuple):
    """Integer representation of a field; it depends only on scale, bound, number of clients and dtype."""

    scale: float
    bound: float
    limbs: int  # integers of 64 bits per value: 1 or 2

    @property
    def limb_scales(self) -> tuple[float, ...]:
        """The grid of each limb, coarse first."""
        return (self.scale,) if self.limbs == 1 else (self.scale * 2.0**_LIMB_BITS, self.scale)

    @property
    def largest(self) -> tuple[int, ...]:
        """The largest absolute value of the integers that encode a value, for each limb."""
        coarse = math.ceil(self.bound / self.limb_scales[0])
        return (coarse, *[2 ** (_LIMB_BITS - 1)] * (self.limbs - 1))  # the remainder is at most half a coarse step


def grid(scale: float, bound: float, clients: int) -> SumGrid:
    """The representation of sums of up to `clients` values within `bound` as multiples of `scale`.

    Raises
    ------
    ValueError
        if `scale` is not a power of two, or bound / scale exceeds two limbs.
    """
    if scale <= 0 or np.frexp(scale)[0] != 0.5:
        raise ValueError(f"scale = {scale}: must be a power of two")
    if not 0 < bound < float("inf"):
        raise ValueError(f"bound = {bound}: must be positive and finite")
    steps = bound / scale
    for limbs, width in ((1, 0), (2, _LIMB_BITS)):
        if steps < 2.0 ** (51 + width) and clients * steps < 2.0 ** (62 + width):
            return SumGrid(scale, bound, limbs)
    raise ValueError(f"bound / scale = {bound} / {scale} for {clients} clients: must stay below 2^{51 + _LIMB_BITS}")


def outside(values: NDArray[np.floating], bound: float) -> bool:
    """Whether any of `values`, in memory or on a device, is NaN or exceeds `bound` in absolute value."""
    return bool(values.size) and not float(abs(values).max()) <= bound


@cache
def _kernel(xp: ArrayModule) -> Any:  # CuPy's, which has no types
    """Of CuPy: the sum of the rows of values [clients, width] in two limbs, the second 0 where fine is coarse."""
    inputs = "raw T values, int64 clients, int64 width, float64 coarse, float64 fine"
    return xp.ElementwiseKernel(inputs, "int64 high, int64 low", _ENCODE, "mpifed_encode", options=("--fmad=false",))


class Encoder:
    """Adds encoded values [n, size] to an integer accumulator."""

    def __init__(self, form: SumGrid) -> None:
        self.form = form
        self._constants = (*[1.5 * 2.0**52 * scale for scale in form.limb_scales], 0.0)[:2]
        self._largest = 2.0**51 * form.limb_scales[0]  # the largest value that adding a constant encodes

    def add(
        self, values: NDArray[np.floating], accumulator: NDArray[np.signedinteger], anew: bool = False,
        clients: int = 1, common: Array | None = None,
    ) -> bool:  # fmt: skip
        """Add the rows of `values` [n, size] to `accumulator` [limbs * size], which is overwritten with `anew`.

        Parameters
        ----------
        values : in memory or on a device
        clients : of how many each row is the sum; its bound is as many times that of a value
        common : [size] in memory, of the same dtype, added to each row before it is rounded

        Returns
        -------
        Whether all values are numbers within the bound. If not, the content of the accumulator is undefined.
        """
        bound, here = self.form.bound * clients, loops.compiled is not None and namespace(values) is np
        as_is = here and values.dtype in (np.float32, np.float64)
        if as_is and (bound <= self._largest or not outside(values, self._largest)):
            within: bool = loops.compiled.add_encoded(
                np.ascontiguousarray(values), common, *values.shape, min(bound, self._largest), self._constants, anew,
                accumulator,
            )  # fmt: skip
            return within
        values = values if common is None else values + common
        if outside(values, bound):
            return False
        if anew:
            accumulator[:] = 0
        accumulator += self._rounded(values)
        return True

    def _rounded(self, values: NDArray[np.floating]) -> Array:
        """[limbs * size] the sum of the rows of `values`, each rounded to the grid."""
        xp, remainder, limbs = namespace(values), values.astype(np.float64, copy=False), []
        if xp is not np:
            coded = xp.empty((2, values.shape[1]), np.int64)
            scales = self.form.limb_scales[0], self.form.scale
            _kernel(xp)(xp.ascontiguousarray(remainder), *values.shape, *scales, *coded)
            return on_host(coded[: self.form.limbs]).ravel()
        for scale in self.form.limb_scales:
            multiple = np.rint(remainder / scale)  # the division is exact, since scales are powers of two
            remainder = remainder - multiple * scale
            limbs.append(multiple.astype(np.int64).sum(axis=0))
        return np.concatenate(limbs)


def decode(accumulator: NDArray[np.signedinteger], form: SumGrid, dtype: str) -> NDArray[np.floating]:
    """The sum [size] that `accumulator` [limbs * size] represents, rounded to `dtype`."""
    if form.limbs == 1:
        total = accumulator.astype(dtype)
        total *= total.dtype.type(form.scale)
        return total
    coarse, fine = form.limb_scales
    high, low = accumulator.reshape(2, -1)
    return (high * coarse + low * fine).astype(dtype)
